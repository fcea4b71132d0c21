"""Which requests SGLang's scheduler admits next, and which have to make room for them."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.engines.sglang.family import FAMILY
from cachesim.errors import OptionError, UpstreamEndless
from cachesim.model.presets import tiny
from cachesim.units import as_tokens

RELEASES = FAMILY.names()
PRIORITIES = {"enable_priority_scheduling": True, "max_running_requests": 1}


def server(release: str, **options: Any) -> Engine:
    """A server with one page per token and no network."""
    model = tiny("dense", vocabulary=4096)
    return Engine.create(f"sglang@{release}", model=model, options=options, arithmetic="counts")


def send(engine: Engine, first: int, count: int, most: int = 2, **fields: Any) -> Ticket:
    """Send a prompt of consecutive tokens."""
    prompt = as_tokens(list(range(first, first + count)))
    return engine.submit(Request(prompt=prompt, predict=most, options=fields))


def run(engine: Engine) -> None:
    while engine.step():
        pass


def named(engine: Engine, name: str) -> list[int]:
    """The requests of all events of a name."""
    return [event.task for event in engine.events if event.name() == name]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("low_first", "order"), [(False, [1, 3, 2, 0, 4]), (True, [0, 2, 1, 3, 4])]
)
def test_the_queue_is_served_by_priority(release: str, low_first: bool, order: list[int]) -> None:
    """Equal priorities by arrival; one without any last."""
    engine = server(release, schedule_low_priority_values_first=low_first, **PRIORITIES)

    for number, priority in enumerate((0, 5, 1, 5)):
        send(engine, 100 * number, 10, priority=priority)
    send(engine, 400, 10)
    run(engine)

    assert order == named(engine, "request-finished")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("priority", "preempted"), [(10, []), (11, [0])])
def test_a_request_preempts_beyond_the_threshold(
    release: str, priority: int, preempted: list[int]
) -> None:
    """One row; the difference of the priorities must be more than ten."""
    engine = server(release, **PRIORITIES)
    send(engine, 0, 10, most=9, priority=0)
    for _ in range(3):
        engine.step()

    send(engine, 100, 10, priority=priority)
    run(engine)

    assert preempted == named(engine, "request-preempted")
    assert [1, 0] if preempted else [0, 1] == named(engine, "request-finished")


@pytest.mark.parametrize("release", RELEASES[1:])
def test_preemption_can_be_disabled(release: str) -> None:
    engine = server(release, disable_priority_preemption=True, **PRIORITIES)
    send(engine, 0, 10, most=9, priority=0)
    engine.step()

    send(engine, 100, 10, priority=99)
    run(engine)

    assert [] == named(engine, "request-preempted")


@pytest.mark.parametrize("release", RELEASES)
def test_059_forgets_whom_it_preempts_for_a_request_that_does_not_fit(release: str) -> None:
    """The second request makes room for one whose prompt is too long beside the first."""
    few = {"max_running_requests": 2, "max_total_tokens": 60}
    engine = server(release, **(PRIORITIES | few))
    send(engine, 0, 20, most=10, priority=20)
    send(engine, 100, 10, most=9, priority=0)
    for _ in range(3):
        engine.step()
    send(engine, 200, 40, most=2, priority=20)

    if release == "0.5.9":
        with pytest.raises(UpstreamEndless, match="in no queue"):
            run(engine)
    else:
        run(engine)

    assert [1] == named(engine, "request-preempted")
    assert [0, 2] == named(engine, "request-finished")[:2]


@pytest.mark.parametrize(("policy", "retracted"), [("length", [1]), ("priority", [0])])
def test_retraction_by_priority(policy: str, retracted: list[int]) -> None:
    """Both requests need 82 tokens of 79; the second has generated less."""
    few = {"max_running_requests": 2, "max_total_tokens": 79, "retraction_policy": policy}
    engine = server("0.5.23", **(PRIORITIES | few))

    send(engine, 0, 10, most=30, priority=0)
    engine.step()
    send(engine, 100, 15, most=30, priority=1)
    run(engine)

    assert retracted == named(engine, "request-retracted")


def test_retraction_by_priority_needs_priority_scheduling() -> None:
    with pytest.raises(OptionError, match="requires enable_priority_scheduling"):
        server("0.5.23", retraction_policy="priority")


@pytest.mark.parametrize("release", RELEASES)
def test_a_priority_can_be_refused(release: str) -> None:
    engine = server(release, abort_on_priority_when_disabled=True)

    refused, served = send(engine, 0, 10, priority=1), send(engine, 100, 10)
    run(engine)

    assert "priority" in engine.reply(refused).message
    assert engine.reply(served).error is None
