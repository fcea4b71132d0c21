"""Laws of vLLM's server: each is broken once, and by no workload of any release."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.events import Event
from cachesim.engines.family import Profile, family_of
from cachesim.engines.images import Image
from cachesim.engines.seen import Breach, Seen
from cachesim.engines.vllm.search import VllmLaws
from cachesim.engines.vllm.server import Vllm
from cachesim.engines.vllm.vocabulary import (
    BlocksPublished,
    CacheLookup,
    ChunkScheduled,
    DraftsVerified,
)
from cachesim.errors import ContractError
from cachesim.model.presets import preset
from cachesim.play.findings import play
from cachesim.scenario.files import loads
from cachesim.typed import of_kind, there_is
from cachesim.units import Count, Pos, as_tokens
from tests.engines.asking import answer
from tests.engines.seen_kit import found, seen_of

PROFILES = [f"vllm@{release}" for release in family_of("vllm").names()]
PROMPT = as_tokens(range(265, 305))
BLOCKS = {"block_size": 4, "max_num_batched_tokens": 8}


def server(model: str = "hybrid-swa", **options: Any) -> Any:
    return Engine.create("vllm@0.33.0", model=preset(model), options=BLOCKS | options)


def running(model: str = "hybrid-swa", **options: Any) -> Any:
    """A server with a request that decodes, and one that waits."""
    engine = server(model, max_num_seqs=1, **options)
    for _ in range(2):
        engine.submit(Request(prompt=PROMPT, predict=30))
    for _ in range(10):
        engine.step()
    engine.check_integrity()
    return engine


def test_no_chunk_ends_for_the_block_of_a_ring() -> None:
    """The engine core's block size is that of the groups whose blocks have ids."""
    spec = replace(preset("hybrid-swa"), window=8, chunked=True)
    engine = Engine.create("vllm@0.33.0", model=spec, options={"rings": True}, arithmetic="ring")
    reply = answer(engine, range(265, 281), 1)

    assert [(0, 16)] == [(e.start, e.end) for e in engine.events if isinstance(e, ChunkScheduled)]
    assert None is VllmLaws(of_kind(Vllm, engine)).broken(seen_of(reply, engine.events))


@pytest.mark.parametrize("profile", PROFILES)
def test_no_release_breaks_one(profile: str) -> None:
    for model, number in (("dense", 1), ("hybrid", 2), ("hybrid-swa", 3)):
        assert [] == found(profile, model, number)


def _manager(engine: Any, kind: str) -> Any:
    return next(manager for manager in engine.manager.managers if manager.spec.kind == kind)


def _waits_with_tokens(engine: Any) -> None:
    engine.scheduler.waiting[0].num_computed = 4


def _has_tokens_in_flight(engine: Any) -> None:
    engine.scheduler.running[0].in_flight += 1


def _has_computed_less(engine: Any) -> None:
    engine.scheduler.running[0].num_computed -= 1


def _runs_beside_the_limit(engine: Any) -> None:
    engine.scheduler.limits = replace(engine.scheduler.limits, max_seqs=0)


def _waits_before_an_earlier_one(engine: Any) -> None:
    engine.submit(Request(prompt=PROMPT, predict=30))
    engine.scheduler.waiting.reverse()


def _writes_to_the_null_block(engine: Any) -> None:
    engine.runner.pages.take(0, np.array([0]))


def _remembers_a_request(engine: Any) -> None:
    engine.runner.held[7] = engine.runner.held[0]


def null_last(kind: str) -> Callable[[Any], None]:
    """A null block in place of the last one of a group."""

    def change(engine: Any) -> None:
        table = _manager(engine, kind).tables[0]
        engine.manager.pool.free_blocks([table[-1]])
        table[-1] = 0

    return change


def disagrees(engine: Any, why: str) -> None:
    with pytest.raises(ContractError, match=why):
        engine.check_integrity()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda e: e.scheduler.waiting.append(e.scheduler.waiting[0]),
         "request 1, waiting, is in 2 queues"),
        (_waits_with_tokens, "request 1 waits with tokens"),
        (_has_tokens_in_flight, "2 tokens in flight"),
        (_has_computed_less, "has computed 42 of 44 tokens"),
        (lambda e: e.manager.managers[0].tables[0].extend(e.manager.pool.get_new_blocks(2)),
         "has 13 blocks for 44 tokens"),
        (lambda e: e.runner.held[0].tables[0].reverse(), "and in the runner"),
        (_runs_beside_the_limit, "1 requests run, of 0"),
        (_waits_before_an_earlier_one, r"the requests \[2, 1\] wait in this order"),
        (_writes_to_the_null_block, "the null block is written to"),
        (_remembers_a_request, "the runner has the requests"),
        (null_last("window"), "null blocks of"),
        (null_last("mamba"), "has the states"),
    ],
)  # fmt: skip
def test_books_of_a_running_request_that_disagree_are_found(
    change: Callable[[Any], None], why: str
) -> None:
    engine = running()

    change(engine)

    disagrees(engine, why)


def test_states_of_more_refused_drafts_than_a_block_has_are_none_too_many() -> None:
    engine = server(speculative_method="mtp", num_speculative_tokens=6)
    wrong = as_tokens([7] * 6)
    engine.submit(Request(prompt=PROMPT, predict=20, reply=PROMPT[:20], drafts=(wrong,) * 20))

    while engine.step():
        engine.check_integrity()


@pytest.mark.parametrize(("profile", "model"), [("0.33.0", "recurrent"), ("0.27.1", "swa")])
def test_a_step_in_flight_keeps_blocks_of_its_states_and_windows(profile: str, model: str) -> None:
    engine = Engine.create(f"vllm@{profile}", model=preset(model), options=BLOCKS)
    engine.submit(Request(prompt=as_tokens(range(265, 400)), predict=4))

    while engine.step():
        engine.check_integrity()


def test_an_image_that_is_kept_for_a_drafter_leaves_no_room_until_0_32() -> None:
    options = BLOCKS | {"max_num_batched_tokens": 12, "speculative_method": "eagle"}
    engine = Engine.create("vllm@0.31.0", model=preset("dense"), options=options)
    images = Image("i", Pos(3), Count(9)), Image("j", Pos(20), Count(4))
    ticket = engine.submit(Request(prompt=PROMPT, predict=1, images=images))
    engine.run()

    ends = [event.end for event in engine.events if isinstance(event, ChunkScheduled)]
    assert [12, 19] == ends[:2]
    reply = there_is(engine.reply(ticket))
    seen = replace(seen_of(reply, engine.events), images=True)
    assert None is VllmLaws(of_kind(Vllm, engine)).broken(seen)


def test_a_whole_block_without_an_id_is_found() -> None:
    engine = running("dense")

    engine.manager.pool.evict(engine.manager.managers[0].tables[0][0])

    disagrees(engine, "has no id, with 44 tokens computed")


def served(model: str = "hybrid", **fields: Any) -> Any:
    engine = server(model)
    engine.submit(Request(prompt=PROMPT, predict=3, **fields))
    engine.run()
    engine.check_integrity()
    return engine


def _queues_a_block_without_id_last(engine: Any) -> None:
    pool = engine.manager.pool
    pool.free.move_to_end(next(block for block in pool.free if pool.key[block] is None))


def _queues_the_first_block_first(engine: Any) -> None:
    pool, (job,), full = engine.manager.pool, engine._jobs, _manager(engine, "full")
    block = pool.block_of(job.request.hashes[0] * pool.groups + full.group)
    keyed = [each for each in pool.free if pool.key[each] is not None and each != block]
    for each in keyed:
        pool.free.move_to_end(each)


def _ends_other_tokens(engine: Any) -> None:
    pool = engine.manager.pool
    pool.key_tokens[next(block for block, key in enumerate(pool.key) if key is not None)] += 1


def _finds_less(engine: Any) -> None:
    for group in engine.manager.coordinator.spec_groups:
        find = group.manager.find
        group.manager.find = lambda query, f=find: f(query._replace(max_length=8))


def _has_less_room(engine: Any) -> None:
    engine.scheduler.encoder.unused -= 1


IMAGE = {"images": (Image("i", 4, 4),)}


@pytest.mark.parametrize(
    ("model", "fields", "change", "why"),
    [
        ("hybrid", {}, _queues_a_block_without_id_last, "is evicted before one without"),
        ("hybrid", {}, _queues_the_first_block_first, "evicted before the one that it continues"),
        ("hybrid", {}, _ends_other_tokens, "not each ends"),
        ("hybrid", {}, _finds_less, "where the groups can resume at 36"),
        # Outputs of the encoder.
        ("dense", IMAGE, _has_less_room, "unused and"),
        ("dense", IMAGE, lambda engine: engine.scheduler.encoder.idle.clear(), "idle"),
    ],
)
def test_ids_hits_and_outputs_that_disagree_are_found(
    model: str, fields: dict[str, Any], change: Callable[[Any], None], why: str
) -> None:
    engine = served(model, **fields)

    change(engine)

    disagrees(engine, why)


@pytest.mark.parametrize(("place", "held"), [(0, True), (6, False)])
def test_outputs_of_images_that_are_computed_or_not_yet_are_found(place: int, held: bool) -> None:
    engine = server("dense", async_scheduling=False)
    images = Image("i", 0, 4), Image("j", 6, 4)
    engine.submit(Request(prompt=PROMPT, predict=3, images=images))
    engine.step()
    engine.check_integrity()
    encoder = engine.scheduler.encoder

    encoder.users = {"i": {(0, 0)} if held else set(), "j": {(0, 6)} if held else set()}
    encoder.idle = {} if held else {"i": 4, "j": 4}

    disagrees(engine, f"request 0 at 8 tokens has an output for {place}: {held}")


def judged(change: Callable[[Event], Event], engine: Any, *more: Event, **fields: Any) -> Any:
    """The law that a server's last request breaks, with other events."""
    job = [*engine._jobs][-1]
    events = [change(event) for event in engine.events if event.task == job.ticket]
    reply = replace(job.reply(), **fields)
    return VllmLaws(engine).broken(seen_of(reply, [*more, *events]))


def _later(event: Event) -> Event:
    return replace(event, start=event.start + 1) if isinstance(event, ChunkScheduled) else event


def _shorter(event: Event) -> Event:
    shorter = isinstance(event, ChunkScheduled) and event.start == 32
    return replace(event, end=event.end - 1) if shorter else event


def _split(engine: Any, at: int) -> Seen:
    """The server's only request, with its chunk divided at a position inside."""
    (job,), events = engine._jobs, list[Event]()
    for event in engine.events:
        if isinstance(event, ChunkScheduled) and event.start < at < event.end:
            events += [replace(event, end=at), replace(event, start=at)]
        else:
            events.append(event)
    return seen_of(job.reply(), events)


def _refused(event: Event) -> Event:
    return replace(event, accepted=0) if isinstance(event, DraftsVerified) else event


@pytest.mark.parametrize(
    ("change", "options", "why"),
    [
        (_later, {}, "a chunk begins at 1, after 0 computed tokens"),
        (_shorter, {}, "a chunk of 7 tokens from 32 on, of 8"),
        (_refused, {"speculative_method": "ngram"}, "a chunk begins at"),
    ],
)
def test_chunks_that_do_not_follow_each_other_are_found(
    change: Callable[[Event], Event], options: dict[str, Any], why: str
) -> None:
    engine = server("dense", **options)
    engine.submit(Request(prompt=PROMPT[:10] * 4, predict=10, reply=PROMPT[:10]))
    engine.run()

    assert judged(lambda event: event, engine) is None
    assert why == there_is(judged(change, engine)).detail[: len(why)]


def test_a_state_below_those_of_an_interval_is_not_due() -> None:
    """A drafter drops attention's last block, and no state is kept at the one before."""
    options = {"mamba_cache_mode": "all", "prefix_cache_retention_interval": 16}
    options |= BLOCKS | {"speculative_method": "eagle"}
    engine = Engine.create("vllm@0.31.0", model=preset("hybrid"), options=options)
    engine.submit(Request(prompt=PROMPT, predict=3))
    engine.run()

    assert judged(unchanged, engine) is None


def test_nothing_is_due_of_a_lookup_that_ends_the_engine_core() -> None:
    options = {"block_size": 8, "prefix_match_unit": 4}
    engine = Engine.create("vllm@0.27.1", model=preset("hybrid-swa"), options=options)
    engine.submit(Request(prompt=PROMPT[:37], predict=3, cache_prompt=False))
    engine.run()
    engine.check_integrity()

    assert judged(unchanged, engine) is None


def test_a_prompt_that_would_not_be_found_again_is_lost() -> None:
    engine = served()
    assert judged(lambda event: event, engine) is None

    engine.reset_prefix_cache()

    assert Breach(
        kind="lost reuse", detail="0 of 36 tokens would be found of the 40 computed ones"
    ) == judged(lambda event: event, engine)


def unchanged(event: Event) -> Event:
    return event


@pytest.mark.parametrize("at", [12, 14])
def test_a_chunk_beside_states_that_ends_anywhere_is_found(at: int) -> None:
    engine = served()
    assert judged(unchanged, engine) is None

    broken = VllmLaws(engine).broken(_split(engine, at))

    assert f"a chunk from 8 on ends at {at}, where nothing asks for it" == there_is(broken).detail


@pytest.mark.parametrize(
    ("at", "why"),
    [(14, "a chunk from 8 on ends at 14, before no image"),
     (12, "a chunk ends at 12, though the image at 12 has room")],
)  # fmt: skip
def test_a_chunk_that_the_encoder_does_not_shorten_is_found(at: int, why: str) -> None:
    engine = served("dense", images=(Image("i", 12, 4),))
    assert VllmLaws(engine).broken(replace(_split(engine, 16), images=True)) is None

    broken = VllmLaws(engine).broken(replace(_split(engine, at), images=True))

    assert why == there_is(broken).detail


@pytest.mark.parametrize("overlaps", [False, True])
def test_drafts_that_are_not_those_of_the_latest_n_gram_are_found(*, overlaps: bool) -> None:
    """A step before whose output the next one is scheduled has places for all drafts."""
    engine = server("dense", speculative_method="ngram", async_scheduling=overlaps)
    engine.submit(Request(prompt=PROMPT[:10] * 4, predict=10, reply=PROMPT[:10]))
    engine.run()
    assert judged(unchanged, engine) is None

    fewer = judged(lambda e: replace(e, drafts=0) if isinstance(e, ChunkScheduled) else e, engine)
    refused = judged(unchanged, engine, generated=PROMPT[:1] + PROMPT[:9])

    assert overlaps or "0 drafts after 41 tokens, of 2" == there_is(fewer).detail
    assert "2 drafts accepted after 41 tokens, of 0" == there_is(refused).detail


def test_a_second_lookup_is_found() -> None:
    engine = served()
    lookup = next(event for event in engine.events if isinstance(event, CacheLookup))

    assert "2 lookups of a request, of 1" == judged(unchanged, engine, lookup).detail


def test_ids_of_blocks_behind_those_of_all_groups_are_found() -> None:
    engine = server("swa", block_size=8, window_block_size=4)
    engine.submit(Request(prompt=PROMPT[:38], predict=2))
    engine.run()
    assert judged(unchanged, engine) is None

    broken = judged(
        lambda e: replace(e, ends=(36,)) if isinstance(e, BlocksPublished) else e, engine
    )

    assert "blocks with ids end at (36,), of 32 tokens in whole ones" == broken.detail


def test_tokens_that_a_store_has_and_does_not_return_are_found() -> None:
    engine = server("dense", connector="store")
    for _ in range(2):
        engine.submit(Request(prompt=PROMPT, predict=3))
        engine.run()
    assert judged(unchanged, engine) is None

    broken = judged(unchanged, engine, cached=32)

    assert "32 of 36 stored tokens cached" == broken.detail


def test_a_state_that_is_lost_where_the_hit_of_attention_ended_is_found() -> None:
    engine = served()
    engine.submit(Request(prompt=PROMPT[:26] + PROMPT[:14], predict=3))
    engine.run()
    assert judged(unchanged, engine) is None
    pool, states = engine.manager.pool, _manager(engine, "mamba")
    number = [*engine._jobs][-1].request.hashes[5]

    pool.evict(pool.block_of(number * pool.groups + states.group))

    assert Breach(
        kind="lost reuse", detail="0 of 24 tokens would be found of the 25 computed ones"
    ) == judged(unchanged, engine)


THRESHOLD = """
format = 1
name = "threshold"

[model]
preset = "swa"

[engine]
name = "vllm"

[engine.options]
speculative_method = "ngram"
long_prefill_token_threshold = 2

[[step]]
name = "r0"
prompt = [286, 432, 451, 300, 301, 302]
reply = [297, 432, 451, 300, 301]
"""
"""After the second 432 and 451 two tokens are drafted; until 0.30 the threshold leaves one."""

SHIFTED = """
format = 1
name = "shifted"

[model]
preset = "hybrid"

[engine]
name = "vllm"

[engine.options]
block_size = 4
mamba_cache_mode = "align"
speculative_method = "eagle"
connector = "store"

[[step]]
name = "r0"
prompt = [265, 266, 267, 268, 269, 270, 271]
reply = [272, 273]
turns = 0

[[step]]
name = "r1"
prompt = [265, 266, 267, 268, 269, 270, 271, 272, 274, 275, 276, 277, 278, 279, 280, 281, 282, 283,
  284, 285, 286]
reply = [287]
"""
"""Attention's hit ends at 4, states have none, and the store has 8: the first chunk is 8 to 12."""

AGREED = "0.24.0+46281+44243-agreed"
"""Looks up what all groups have before it asks a store: then a junction lies before its tokens."""


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        *((THRESHOLD, each) for each in ("0.19.1", "0.22.1", "0.23.0", "0.24.0")),
        (SHIFTED, AGREED),
    ],
)
def test_chunks_that_a_threshold_cuts_or_a_store_moves_break_no_law(
    text: str, profile: str
) -> None:
    trial = play(loads(text.encode(), name="scenario"), Profile.parse(f"vllm@{profile}"))

    assert [] == trial.findings


def drafting(profile: str, method: str, **options: Any) -> Any:
    engine = Engine.create(
        f"vllm@{profile}",
        model=preset("dense"),
        options={"block_size": 4, "speculative_method": method} | options,
    )
    engine.submit(Request(prompt=PROMPT[:10] * 4, predict=10, reply=PROMPT[:10]))
    engine.run()
    return engine


RANGES = {"num_speculative_tokens_per_batch_size": "[[1, 1, 1], [2, 8, 2]]"}
"""One draft for a request that is alone in a step."""


@pytest.mark.parametrize(
    ("profile", "options", "due"),
    [
        ("0.24.0", {}, 2),
        ("0.24.0", {"long_prefill_token_threshold": 2}, 1),
        ("0.24.0", {"long_prefill_token_threshold": 1}, 0),
        ("0.24.0", RANGES, 1),
        ("0.30.0", RANGES | {"long_prefill_token_threshold": 1}, 0),
        ("0.32.0", RANGES | {"long_prefill_token_threshold": 1}, 1),
    ],
)
def test_as_many_n_grams_are_due_as_the_threshold_and_the_ranges_leave(
    profile: str, options: dict[str, Any], due: int
) -> None:
    engine = drafting(profile, "ngram", **options)
    assert judged(unchanged, engine) is None

    wrong = judged(lambda e: replace(e, drafts=3) if isinstance(e, ChunkScheduled) else e, engine)

    assert f"3 drafts after 41 tokens, of {due}" == there_is(wrong).detail


@pytest.mark.parametrize("profile", ["0.24.0", "0.30.0", "0.33.0"])
def test_a_step_has_the_drafts_of_the_range_of_one_request(profile: str) -> None:
    engine = drafting(profile, "eagle", **RANGES)
    assert judged(unchanged, engine) is None

    def shorter(event: Event) -> Event:
        if isinstance(event, ChunkScheduled) and event.start == 40:
            return replace(event, end=event.end - 1)
        return event

    assert "a chunk of 1 tokens from 40 on, of 2" == there_is(judged(shorter, engine)).detail


@pytest.mark.parametrize("padded", [False, True])
def test_a_request_that_resumes_with_one_token_is_padded_but_with_ranges(*, padded: bool) -> None:
    engine = drafting("0.33.0", "ngram", **({} if padded else RANGES))
    engine.submit(Request(prompt=PROMPT[:10] * 4 + PROMPT[:1], predict=3))
    engine.run()
    first = next(e for e in engine.events if isinstance(e, ChunkScheduled) and e.task == 1)

    assert (40, 43 if padded else 41) == (first.start, first.end)
    assert judged(unchanged, engine) is None


@pytest.mark.parametrize(("start", "end", "wrong"), [(8, 12, 16), (8, 12, 11), (12, 32, 16)])
def test_a_chunk_that_a_store_moves_ends_nowhere_else(start: int, end: int, wrong: int) -> None:
    options = {"block_size": 4, "mamba_cache_mode": "align", "speculative_method": "eagle"}
    engine = Engine.create(
        f"vllm@{AGREED}", model=preset("hybrid"), options=options | {"connector": "store"}
    )
    for prompt in (PROMPT[:7], PROMPT[:8] + PROMPT[9:]):
        engine.submit(Request(prompt=prompt, predict=2, reply=PROMPT[7:9]))
        engine.run()
    assert judged(unchanged, engine) is None

    def change(event: Event) -> Event:
        if not isinstance(event, ChunkScheduled):
            return event
        ends = {(start, end): (start, wrong), (end, event.end): (wrong, event.end)}
        first, last = ends.get((event.start, event.end), (event.start, event.end))
        return replace(event, start=first, end=last)

    broken = there_is(judged(change, engine))

    assert f"a chunk from {start} on ends at {wrong}, where nothing asks for it" == broken.detail
