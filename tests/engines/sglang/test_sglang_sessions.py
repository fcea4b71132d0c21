"""Sessions on SGLang: requests that continue an earlier one by its name."""

from typing import Any

import pytest

from cachesim.engines import Profile
from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.sglang.family import FAMILY
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.play import run
from cachesim.scenario.format import Model, Scenario, Server, Step
from cachesim.typed import there_is
from cachesim.units import as_tokens
from tests.engines.sglang.workloads import server

RELEASES = FAMILY.names()
FIRST, NEXT = list(range(100, 120)), list(range(200, 205))
REPLY = [300, 301, 302]


def send(engine: Engine, tokens: list[int], name: str = "", **asked: Any) -> Ticket:
    fields = {each: asked.pop(each) for each in ("extra_key",) if each in asked}
    fields |= {"session_params": {"id": "S", **asked}, "rid": name}
    prompt, reply = as_tokens(tokens), as_tokens(REPLY)
    return engine.submit(Request(prompt=prompt, predict=3, reply=reply, options=fields))


def answer(engine: Engine, tokens: list[int], name: str = "", **asked: Any) -> Reply:
    ticket = send(engine, tokens, name, **asked)
    engine.run()
    return there_is(engine.reply(ticket))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("asked", "prompt"),
    [
        ({}, FIRST + REPLY + NEXT),
        ({"offset": 4}, FIRST[:4] + NEXT),
        ({"offset": -2}, (FIRST + REPLY)[:-2] + NEXT),
        ({"drop_previous_output": True}, FIRST + NEXT),
    ],
)
def test_a_request_continues_the_tokens_of_another(
    release: str, asked: dict[str, Any], prompt: list[int]
) -> None:
    """The common prefix is cached but for the last token, which has no slot; in 0.5.9 a step
    overlaps with the end, and computes it.
    """
    engine = server(release)
    answer(engine, FIRST, "r1")

    found = answer(engine, NEXT, "r2", rid="r1", **asked)

    common, computed = len(prompt) - len(NEXT), len(FIRST + REPLY) - (release != "0.5.9")
    assert prompt == list(found.prompt)
    assert min(common, computed) == found.cached


@pytest.mark.parametrize("release", RELEASES)
def test_a_request_that_still_runs_is_not_continued(release: str) -> None:
    """It is refused, but with `replace`, which ends the one that runs."""
    engine = server(release)
    first = send(engine, FIRST, "r1")
    engine.step()
    engine.step()

    refused = send(engine, NEXT, "r2", rid="r1")
    taken = send(engine, NEXT, "r3", rid="r1", replace=True)
    engine.run()

    assert "BadRequestError" == there_is(engine.reply(refused)).error
    assert FIRST + REPLY[:1] + NEXT == list(there_is(engine.reply(taken)).prompt)
    assert REPLY[:2] == list(there_is(engine.reply(first)).generated)


@pytest.mark.parametrize("release", RELEASES)
def test_an_unknown_request_is_refused(release: str) -> None:
    found = answer(server(release), NEXT, "r2", rid="r1")

    assert ("BadRequestError", "Invalid request session id") == (found.error, found.message)


@pytest.mark.parametrize("release", RELEASES)
def test_059_drops_the_extra_key_of_a_session(release: str) -> None:
    engine = server(release)
    answer(engine, FIRST, "r1", extra_key="a")

    found = answer(engine, FIRST, "r2", extra_key="b")

    assert (len(FIRST) - 1 if release == "0.5.9" else 0) == found.cached


@pytest.mark.parametrize("release", RELEASES)
def test_a_request_may_have_the_name_of_the_one_that_it_continues(release: str) -> None:
    engine = server(release)
    answer(engine, FIRST, "r1")
    answer(engine, NEXT, "r1", rid="r1")

    found = answer(engine, [400], "r2", rid="r1", replace=True)

    assert FIRST + REPLY + NEXT + REPLY + [400] == list(found.prompt)


@pytest.mark.parametrize("release", RELEASES)
def test_to_forget_two_requests_of_one_name_ends_the_server(release: str) -> None:
    """The list of those that continue a request has both, the table of names the second."""
    engine = server(release)
    answer(engine, FIRST, "r1")
    for _ in range(2):
        answer(engine, NEXT, "r2", rid="r1")

    with pytest.raises(UpstreamAbort, match="KeyError: 'r2'"):
        send(engine, [400], "r3", rid="r1", replace=True)


@pytest.mark.parametrize("release", RELEASES)
def test_to_replace_a_whole_session_ends_the_server(release: str) -> None:
    engine = server(release)
    answer(engine, FIRST, "r1", replace=True)

    with pytest.raises(UpstreamAbort, match="changed size during iteration"):
        send(engine, NEXT, "r2", replace=True)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("S", "is no session; write"),
        ({"name": "S"}, "is no session; write"),
        ({"rid": "r1"}, "has no id; write the name of a session"),
        ({"id": "S", "offset": "4"}, "offset is '4'"),
    ],
)
def test_a_session_that_is_none_is_refused(given: Any, problem: str) -> None:
    prompt = as_tokens(FIRST)
    with pytest.raises(OptionError, match=problem):
        server("0.5.23").submit(Request(prompt=prompt, options={"session_params": given}))


def test_a_run_counts_the_prompt_that_the_server_puts_together() -> None:
    """Its account has no token astray, and no prompt shorter than what is reused of it."""
    first, more = {"session_params": {"id": "S"}}, {"session_params": {"id": "S", "rid": "r1"}}
    engine = Server(name="sglang", profiles=("0.5.23",))
    steps = (
        Step(name="first", prompt=tuple(FIRST), predict=2, options={**first, "rid": "r1"}),
        Step(name="next", prompt=tuple(NEXT), predict=2, options=more),
    )
    scenario = Scenario(name="session", engine=engine, model=Model(preset="dense"), step=steps)

    first_step, next_step = run(scenario, Profile.parse("sglang@0.5.23")).steps
    assert (len(FIRST), len(FIRST) + 2 + len(NEXT)) == (
        first_step.prompt_tokens,
        next_step.prompt_tokens,
    )
    assert (len(FIRST) + 1, "same") == (next_step.cached, next_step.answer)
