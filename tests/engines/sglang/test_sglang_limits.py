"""Replies with reasoning that are not kept, and the limits of a prefill."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.scheduler import FIRST_RATIO
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.units import Tokens, as_tokens
from tests.engines.sglang.workloads import server

RELEASES = FAMILY.names()
STRIPPING = RELEASES[1:]
"""0.5.9 has no `--strip-thinking-cache`."""

PROMPT = as_tokens(list(range(100)))


def send(engine: Engine, prompt: Tokens, most: int = 2, **fields: Any) -> Ticket:
    return engine.submit(Request(prompt=prompt, predict=most, options=fields))


def second_turn(release: str, *, page: int = 1, **fields: Any) -> tuple[int, int]:
    """Cached tokens of the prompt with the reply behind it, and the free slots of the pool."""
    engine = server(release, strip_thinking_cache=True, page_size=page)
    first = send(engine, PROMPT, 20, **fields)
    engine.run()
    free = engine.tree.pool.available
    second = send(engine, (*PROMPT, *engine.reply(first).generated, *as_tokens([900, 901])))
    engine.run()
    return engine.reply(second).cached, free


@pytest.mark.parametrize("release", STRIPPING)
@pytest.mark.parametrize(("page", "with_reply", "prompt"), [(1, 119, 100), (16, 112, 96)])
def test_of_a_reply_with_reasoning_nothing_is_kept(
    release: str, page: int, with_reply: int, prompt: int
) -> None:
    """Its slots are free again, and neither its answer nor a page of the prompt's end is found."""
    whole, _ = second_turn(release, page=page)
    stripped, free = second_turn(release, page=page, require_reasoning=True)

    assert (with_reply, prompt, 16384 - prompt) == (whole, stripped, free)


@pytest.mark.parametrize("fields", [{}, {"require_reasoning": False}])
def test_under_a_reasoning_parser_requests_reason_unless_they_say_no(
    fields: dict[str, Any],
) -> None:
    engine = server("0.5.23", strip_thinking_cache=True, reasoning_parser="qwen3")
    first = send(engine, PROMPT, 20, **fields)
    engine.run()
    second = send(engine, (*PROMPT, *engine.reply(first).generated))
    engine.run()

    assert (119 if fields else 100) == engine.reply(second).cached


def test_059_keeps_every_reply() -> None:
    with pytest.raises(OptionError, match=r"releases that have it are 0\.5\.22, 0\.5\.23"):
        server("0.5.9", strip_thinking_cache=True)


@pytest.mark.parametrize("release", STRIPPING)
def test_a_retracted_request_that_reasons_ends_the_server(release: str) -> None:
    """Its reply was inserted when its prompt was read again: more than is left of it."""
    options = {"max_total_tokens": 220, "strip_thinking_cache": True}
    engine = server(release, **options, reasoning_parser="qwen3")
    send(engine, as_tokens(list(range(40))), 80)
    send(engine, as_tokens(list(range(100, 140))), 80)

    with pytest.raises(UpstreamAbort, match="protected prefix is longer than what it inserts"):
        engine.run()


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("most", "prefills"), [(None, 1), (2, 2), (1, 4)])
def test_a_prefill_has_a_maximum_of_requests(release: str, most: int | None, prefills: int) -> None:
    engine = server(release, prefill_max_requests=most)
    for number in range(4):
        send(engine, as_tokens(list(range(100 * number, 100 * number + 10))))
    found = []
    while engine.step():
        last = engine.scheduler.last
        found += [last] if last is not None and last.extend else []

    assert prefills == len(found)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("factor", "together"), [(0.0, True), (1.0, False), (9.0, False)])
def test_a_running_request_reserves_a_share_of_what_it_may_generate(
    release: str, factor: float, together: bool
) -> None:
    """The second needs 71 of 140 tokens; the first has 20, and a share of 79 for its reply."""
    engine = server(release, max_total_tokens=140, schedule_conservativeness=factor)
    send(engine, as_tokens(list(range(20))), 80)
    engine.step()
    send(engine, as_tokens(list(range(100, 120))), 50)
    engine.step()
    engine.step()

    assert (0 if together else 1) == len(engine.scheduler.waiting)


@pytest.mark.parametrize("release", RELEASES)
def test_an_idle_server_reserves_as_much_as_at_its_start(release: str) -> None:
    """The share decays from decode to decode, until no request is there."""
    engine = server(release)
    send(engine, PROMPT, 40)
    for _ in range(30):
        engine.step()
    decayed = engine.scheduler.ratio
    engine.run()

    assert (True, FIRST_RATIO) == (decayed < FIRST_RATIO, engine.scheduler.ratio)
