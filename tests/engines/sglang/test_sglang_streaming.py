"""Streaming sessions on SGLang: a turn leaves its slots to the next one."""

from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines import Profile
from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.sglang.family import FAMILY
from cachesim.errors import OptionError, UpstreamAbort, UpstreamEndless
from cachesim.play.findings import play
from cachesim.scenario.format import Model, Scenario, Server, Step
from cachesim.typed import there_is
from cachesim.units import as_tokens
from tests.engines.sglang.workloads import server as opened

RELEASES = [name for name in FAMILY.names() if name != "0.5.9"]
FIRST, NEXT = list(range(100, 120)), list(range(200, 205))
REPLY = [300, 301, 302]

pytestmark = pytest.mark.parametrize("release", RELEASES)


def server(release: str, model: str = "dense", **options: Any) -> Engine:
    return opened(
        release, model, **{"enable_streaming_session": True, "max_total_tokens": 1000} | options
    )


def send(engine: Engine, tokens: list[int], **asked: Any) -> Ticket:
    fields = {"session_params": {"id": "S", "streaming": True, **asked}}
    prompt, reply = as_tokens(tokens), as_tokens(REPLY)
    return engine.submit(Request(prompt=prompt, predict=3, reply=reply, options=fields))


def answer(engine: Engine, tokens: list[int], **asked: Any) -> Reply:
    ticket = send(engine, tokens, **asked)
    engine.run()
    engine.check_integrity()
    return there_is(engine.reply(ticket))


def nodes(engine: Engine) -> list[int]:
    return [node["n_tokens"] for node in engine.snapshot()["nodes"]]


@pytest.mark.parametrize("model", ["dense", "hybrid", "swa"])
def test_a_turn_continues_from_the_slots_of_the_last(release: str, model: str) -> None:
    """Only the first prompt is in the tree; a session that closes frees the rest."""
    engine = server(release, model)
    answer(engine, FIRST)
    before = nodes(engine)

    found = answer(engine, NEXT)

    assert FIRST + REPLY + NEXT == list(found.prompt)
    assert len(FIRST + REPLY) - 1 == found.cached
    assert before == nodes(engine)
    answer(engine, NEXT, close=True)
    assert engine.snapshot()["free"] + max(nodes(engine), default=0) == 1000


def test_an_aborted_turn_leaves_its_slots_to_the_tree(release: str) -> None:
    """The next turn continues the last one that came to its end."""
    engine = server(release)
    answer(engine, FIRST)
    gone = send(engine, NEXT)
    engine.step()
    engine.cancel(gone)
    engine.run()

    found = answer(engine, [400])

    assert FIRST + REPLY + [400] == list(found.prompt)
    assert len(FIRST + REPLY) == found.cached


@pytest.mark.parametrize(
    "asked", [{"replace": True}, {"offset": 3}, {"drop_previous_output": True}]
)
def test_a_turn_that_is_no_append_is_refused(release: str, asked: dict[str, Any]) -> None:
    engine = server(release)
    answer(engine, FIRST)

    assert "BadRequestError" == answer(engine, NEXT, **asked).error
    assert len(FIRST + REPLY) - 1 == answer(engine, NEXT).cached


def test_a_server_without_the_flag_refuses_a_streaming_session(release: str) -> None:
    engine = server(release, enable_streaming_session=False)

    assert "BadRequestError" == answer(engine, FIRST).error


def test_two_first_turns_at_once_end_the_server(release: str) -> None:
    """The second is refused, and takes the session's place for a record all the same."""
    engine = server(release)
    send(engine, FIRST)
    send(engine, NEXT)

    with pytest.raises(UpstreamAbort, match="already has a slot"):
        engine.run()


def test_a_turn_beside_one_that_runs_is_not_simulated(release: str) -> None:
    """A refused request marks the session as idle: the third is taken though the second runs."""
    engine = server(release)
    answer(engine, FIRST)
    send(engine, NEXT)
    engine.step()
    send(engine, NEXT)
    engine.step()

    with pytest.raises(OptionError, match="not simulated"):
        send(engine, NEXT)


def test_a_turn_of_a_hybrid_that_is_aborted_in_the_queue_stays(release: str) -> None:
    """Its prompt is the start of the next one's; other models forget it."""
    prompts, long = {}, list(range(600, 680))
    for model in ("dense", "hybrid"):
        engine = server(release, model, max_total_tokens=200)
        answer(engine, FIRST)
        engine.submit(Request(prompt=as_tokens(range(500, 600)), predict=50))
        engine.step()
        gone = send(engine, long)
        engine.step()
        engine.cancel(gone)
        engine.run()
        prompts[model] = list(answer(engine, [400]).prompt)

    assert FIRST + REPLY + [400] == prompts["dense"]
    assert FIRST + REPLY + long + [400] == prompts["hybrid"]


def test_the_last_token_counts_as_computed_with_drafts(release: str) -> None:
    """Without overlap nothing has computed it."""
    engine = server(release, speculative_algorithm="EAGLE")
    answer(engine, FIRST)

    assert len(FIRST + REPLY) == answer(engine, NEXT).cached


@pytest.mark.parametrize(
    ("model", "drafts", "kind"),
    [
        ("dense", ((301,),), None),  # two tokens are missing, so a further step has begun
        ("hybrid", ((301,),), None),
        ("dense", ((), (9,)), "wrong answer"),  # one is missing: none has
        ("dense", ((301, 302),), None),  # the last token was a draft
    ],
)
def test_the_last_token_of_a_turn_is_computed_where_a_further_step_has_begun(
    release: str, model: str, drafts: tuple[tuple[int, ...], ...], kind: str | None
) -> None:
    flags = {"enable_streaming_session": True, "speculative_algorithm": "EAGLE"}
    turn = Step(
        prompt=tuple(range(100, 112)),
        predict=3,
        reply=tuple(REPLY),
        drafts=drafts,
        options={"session_params": {"id": "S", "streaming": True}},
    )
    scenario = Scenario(
        name="turns",
        engine=Server(name="sglang", profiles=(release,), options=flags),
        model=Model(preset=model),
        step=(turn, replace(turn, prompt=(200,), drafts=None)),
    )

    found = play(scenario, Profile.parse(f"sglang@{release}")).finding

    assert kind == (found and found.kind)


def test_a_request_that_waits_for_an_open_session_is_reported_as_such(release: str) -> None:
    engine = server(release, max_total_tokens=40)
    answer(engine, FIRST)
    engine.submit(Request(prompt=as_tokens(range(400, 425)), predict=1))

    with pytest.raises(UpstreamEndless, match="more memory than there is beside open sessions"):
        engine.run()
