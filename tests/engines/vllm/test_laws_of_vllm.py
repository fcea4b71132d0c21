"""Laws of vLLM's server: each is broken once, and by no workload of any release."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.events import Event
from cachesim.engines.family import family_of
from cachesim.engines.images import Image
from cachesim.engines.seen import Breach
from cachesim.engines.vllm.events import ChunkScheduled, DraftsVerified
from cachesim.engines.vllm.laws import VllmLaws
from cachesim.errors import ContractError
from cachesim.model.presets import preset
from cachesim.typed import there_is
from cachesim.units import as_tokens
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


@pytest.mark.parametrize("profile", PROFILES)
def test_no_release_breaks_one(profile: str) -> None:
    for model, number in (("dense", 1), ("hybrid", 2), ("hybrid-swa", 3)):
        assert [] == found(profile, model, number)


def _manager(engine: Any, kind: str) -> Any:
    return next(each for each in engine.manager.managers if each.spec.kind == kind)


def _waits_with_tokens(engine: Any) -> None:
    engine.scheduler.waiting[0].num_computed = 4


def _has_tokens_in_flight(engine: Any) -> None:
    engine.scheduler.running[0].in_flight = 1


def _has_computed_less(engine: Any) -> None:
    engine.scheduler.running[0].num_computed -= 1


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
        (_has_tokens_in_flight, "1 tokens in flight"),
        (_has_computed_less, "has computed 43 of 45 tokens"),
        (lambda e: e.manager.managers[0].tables[0].extend(e.manager.pool.get_new_blocks(2)),
         "has 13 blocks for 44 tokens"),
        (lambda e: e.runner.held[0].tables[0].reverse(), "and in the runner"),
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


def test_a_whole_block_without_an_id_is_found() -> None:
    engine = running("dense")

    engine.manager.pool.evict(engine.manager.managers[0].tables[0][0])

    disagrees(engine, "has no id, with 45 tokens computed")


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


def judged(change: Callable[[Event], Event], engine: Any) -> Breach | None:
    """The law that a server's only request breaks, with other events."""
    (job,) = engine._jobs
    return VllmLaws(engine).broken(seen_of(job.reply(), map(change, engine.events)))


def _later(event: Event) -> Event:
    return replace(event, start=event.start + 1) if isinstance(event, ChunkScheduled) else event


def _shorter(event: Event) -> Event:
    shorter = isinstance(event, ChunkScheduled) and event.start == 32
    return replace(event, end=event.end - 1) if shorter else event


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


def test_a_prompt_that_would_not_be_found_again_is_lost() -> None:
    engine = served()
    assert judged(lambda event: event, engine) is None

    engine.reset_prefix_cache()

    assert Breach(
        kind="lost reuse", detail="0 of 36 tokens would be found of the 40 computed ones"
    ) == judged(lambda event: event, engine)
