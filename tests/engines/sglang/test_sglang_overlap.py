"""The overlap schedule of SGLang: a batch is formed before the result of the last is processed."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.options import SglangOptions
from cachesim.engines.sglang.vocabulary import RequestRetracted
from cachesim.typed import there_is
from cachesim.units import as_tokens
from tests.engines.sglang.workloads import server as opened

RELEASES = FAMILY.names()
PROMPT = list(range(100, 120))
SERIAL = {"disable_overlap_schedule": True}

SCHEDULES = pytest.mark.parametrize("serial", [False, True])


def server(release: str, *, serial: bool = False, model: str = "dense", **options: Any) -> Engine:
    return opened(release, model, "ring", **options, **SERIAL if serial else {})


def send(engine: Engine, tokens: list[int], most: int = 4) -> Ticket:
    return engine.submit(Request(prompt=as_tokens(tokens), predict=most))


def cached(engine: Engine, ticket: Ticket) -> int | None:
    engine.run()
    engine.check_integrity()
    return there_is(engine.reply(ticket)).cached


@SCHEDULES
@pytest.mark.parametrize("release", RELEASES)
def test_a_prompt_is_matched_once_its_result_is_processed(release: str, serial: bool) -> None:
    """Without overlap that is before the next batch is formed."""
    engine = server(release, serial=serial)
    send(engine, PROMPT)
    engine.step()

    second = send(engine, [*PROMPT, 7])

    assert (len(PROMPT) if serial else 0) == cached(engine, second)


@pytest.mark.parametrize("release", RELEASES)
def test_an_earlier_chunk_of_a_prompt_is_matched(release: str) -> None:
    """It goes into the tree when the next batch is formed, before its result is processed."""
    engine = server(release, chunked_prefill_size=8, max_prefill_tokens=64)
    send(engine, PROMPT)
    engine.step()
    engine.step()

    second = send(engine, [*PROMPT[:8], 7])
    engine.step()

    assert 8 == cached(engine, second)


@pytest.mark.parametrize(("release", "more"), [("0.5.9", 1), ("0.5.22", 0), ("0.5.23", 0)])
def test_a_request_that_ends_decodes_once_more_in_059(release: str, more: int) -> None:
    """So its last token has a slot, and is reused."""
    found = {}
    for serial in (False, True):
        engine = server(release, serial=serial)
        first = send(engine, PROMPT)
        engine.run()
        reply = list(there_is(engine.reply(first)).generated)
        found[serial] = cached(engine, send(engine, [*PROMPT, *reply, 7]))

    assert {True: len(PROMPT) + 3, False: len(PROMPT) + 3 + more} == found


@pytest.mark.parametrize("release", RELEASES)
def test_a_request_whose_client_goes_decodes_once_more(release: str) -> None:
    """The step in flight computes its last token, which is kept."""
    found = {}
    for serial in (False, True):
        engine = server(release, serial=serial)
        first = send(engine, PROMPT, 40)
        for _ in range(3):
            engine.step()
        engine.cancel(first)
        engine.run()
        engine.check_integrity()
        found[serial] = [node["n_tokens"] for node in engine.snapshot()["nodes"]][-1]

    # four tokens generated, of which the last has no slot; three, of which it has one
    assert {True: len(PROMPT) + 3, False: len(PROMPT) + 3} == found


@SCHEDULES
@pytest.mark.parametrize("release", RELEASES)
def test_a_row_is_free_once_its_result_is_processed(release: str, serial: bool) -> None:
    """With overlap a pass of the scheduler finds no row; in 0.5.9 one decodes for nothing."""
    engine = server(release, serial=serial, max_running_requests=1)
    for first in (100, 200):
        send(engine, list(range(first, first + 20)), 1)

    expected = 2 if serial else 5 if release == "0.5.9" else 3
    assert expected == sum(1 for _ in iter(engine.step, False))


@SCHEDULES
@pytest.mark.parametrize("release", RELEASES)
def test_a_token_in_flight_is_sampled_again_after_a_retraction(release: str, serial: bool) -> None:
    """Two requests need 82 slots of 79: one starts over, and both answer as with more slots."""
    answers = []
    for tokens in (79, 1000):
        engine = server(release, serial=serial, max_total_tokens=tokens)
        tickets = [send(engine, PROMPT[:10], 30)]
        engine.step()
        tickets.append(send(engine, PROMPT[5:], 30))
        engine.run()
        engine.check_integrity()
        found = [there_is(engine.reply(ticket)) for ticket in tickets]
        answers.append([(each.generated, each.logits.tolist()) for each in found])
        retracted = sum(isinstance(event, RequestRetracted) for event in engine.events)
        assert (tokens == 79) == (retracted > 0)

    assert answers[1] == answers[0]


def overlaps(release: str, *, states: bool, **given: Any) -> bool:
    return SglangOptions(**given).overlaps(FAMILY.release(release).rules, states=states)


@pytest.mark.parametrize("release", RELEASES)
def test_a_server_overlaps_unless_its_states_have_no_buffer(release: str) -> None:
    old = release == "0.5.9"
    strategy = "mamba_scheduler_strategy" if old else "mamba_radix_cache_strategy"

    assert overlaps(release, states=False)
    assert overlaps(release, states=True, **{strategy: "extra_buffer"})
    assert not overlaps(release, states=True, **{strategy: "no_buffer"})
    assert not overlaps(release, states=False, **SERIAL)
    # `auto` and drafts
    assert overlaps(release, states=True) == (not old)
    assert overlaps(release, states=False, speculative_algorithm="EAGLE") == (not old)


@pytest.mark.parametrize("release", ["0.5.22", "0.5.23"])
def test_without_overlap_auto_is_no_buffer_unless_there_are_pages(release: str) -> None:
    rules = FAMILY.release(release).rules
    found = [SglangOptions(page_size=page, **SERIAL).extra_buffer(rules) for page in (1, 16)]

    assert [False, True] == found
