"""Loads from a store that arrive steps later: who waits, who runs on, and what a failure costs."""

from functools import partial
from typing import Any

import pytest

from cachesim.engines import base
from cachesim.engines.vllm.block_pool import GroupSpec, Sizes
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.scan import Source, cached_states
from cachesim.engines.vllm.server import Vllm
from cachesim.engines.vllm.vocabulary import ChunkScheduled, LoadArrived
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.model.presets import preset
from cachesim.typed import of_kind
from cachesim.units import Token
from conformance.real.vllm.playing import play
from conformance.real.vllm.workloads import draw_loads
from tests.engines import asking

STORED = tuple(map(Token, range(300, 400)))
OTHER = tuple(map(Token, range(420, 460)))


answer = partial(asking.answer, predict=4)


def server(model: str = "dense", profile: str = "vllm@0.33.0", **options: Any) -> Vllm:
    """A server whose store has the blocks of `STORED`, and whose pool has none."""
    wanted = {"connector": "store-async", "load_steps": 3} | options
    made = base.Engine.create(profile, model=preset(model), options=wanted, arithmetic="ring")
    answer(made, STORED)
    assert of_kind(Vllm, made).reset_prefix_cache()
    return of_kind(Vllm, made)


@pytest.mark.parametrize("model", ["dense", "hybrid", "swa", "hybrid-swa"])
def test_a_load_that_comes_later_gives_the_cold_answer(model: str) -> None:
    engine = server(model)
    cold = answer(server(model, connector="none"), STORED)

    again = answer(engine, STORED)

    assert 96 == again.cached
    assert cold.generated == again.generated
    assert (cold.logits == again.logits).all()


def test_others_run_while_a_request_waits_for_its_load() -> None:
    engine = server(load_steps=5)
    seen = len(engine.events)
    waiting = engine.submit(base.Request(prompt=STORED, predict=1))
    other = engine.submit(base.Request(prompt=OTHER, predict=3))
    engine.run()

    order = [
        type(event).__name__ + str(event.task)
        for event in engine.events[seen:]
        if isinstance(event, ChunkScheduled | LoadArrived)
    ]

    ran, arrived = f"ChunkScheduled{other}", f"LoadArrived{waiting}"
    assert [ran] * 3 + [arrived, f"ChunkScheduled{waiting}"] == order


def test_a_failed_load_ends_the_request_by_default() -> None:
    engine = server()
    reply = answer(engine, STORED, options={"failed_block": 2})

    assert ("InternalServerError", None) == (reply.error, reply.cached)
    assert 96 == answer(engine, STORED).cached


@pytest.mark.parametrize(("failed", "valid"), [(2, 32), (1, 16), (99, 80)])
def test_what_arrived_before_the_failed_block_counts(failed: int, valid: int) -> None:
    engine = server(kv_load_failure_policy="recompute")
    cold = answer(server(connector="none"), STORED)

    reply = answer(engine, STORED, options={"failed_block": failed})

    assert valid == reply.cached
    assert (cold.logits == reply.logits).all()
    assert [valid] == [loss.after for loss in reply.losses if loss.rule == "load-failed"]


@pytest.mark.parametrize(("model", "failed"), [("dense", 0), ("hybrid", 2)])
def test_a_load_of_which_nothing_counts_is_looked_up_again(model: str, failed: int) -> None:
    """The store has it the second time; several groups lose the whole load."""
    engine = server(model, kv_load_failure_policy="recompute")

    assert 96 == answer(engine, STORED, options={"failed_block": failed}).cached
    told = [type(event).__name__ for event in engine.events]
    assert ["LoadFailed", "LoadArrived"] == [each for each in told if each.startswith("Load")]


def test_the_blocks_of_an_aborted_load_stay_until_it_has_ended() -> None:
    engine = server(load_steps=4)
    free = engine.manager.pool.num_free
    ticket = engine.submit(base.Request(prompt=STORED, predict=1))
    engine.step()
    engine.cancel(ticket)

    left = [engine.manager.pool.num_free]
    while engine.step():
        left.append(engine.manager.pool.num_free)

    assert [free - 6] * 4 + [free] * 2 == left


def test_a_load_leaves_free_blocks_to_the_rest_of_another_prompt() -> None:
    """Two loads of six blocks that held twelve of thirteen would wait for each other for ever."""
    engine = server(num_gpu_blocks_override=14, load_steps=2)
    seen = len(engine.events)
    longer = engine.submit(base.Request(prompt=STORED + OTHER, predict=1))
    stored = engine.submit(base.Request(prompt=STORED, predict=1))
    engine.run()

    told = [
        f"{type(event).__name__}{event.task}" for event in engine.events[seen:] if event.task >= 0
    ]
    assert [f"RequestDeferred{stored}"] * 3 == [each for each in told if "Deferred" in each]
    assert told.index(f"LoadArrived{longer}") < told.index(f"ChunkScheduled{stored}")
    assert [96, 96] == [reply.cached for each in (longer, stored) if (reply := engine.reply(each))]


def test_a_forgotten_request_leaves_its_load_to_end() -> None:
    engine = server()
    ticket = engine.submit(base.Request(prompt=STORED, predict=1))
    engine.step()
    engine.cancel(ticket)
    engine.forget(ticket)
    engine.check_integrity()
    engine.run()

    engine.check_integrity()
    assert not engine.manager.managers[0].tables


@pytest.mark.parametrize(
    ("options", "fields", "why"),
    [
        ({"connector": "store"}, {"failed_block": 0}, "'store-async'"),
        ({"kv_load_failure_policy": "retry"}, {}, "fail, recompute"),
        ({"profile": "vllm@0.32.0"}, {}, r"0\.33\.0"),  # that was not compared
    ],
)
def test_what_does_not_go_together_is_refused(
    options: dict[str, Any], fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(OptionError, match=why):
        answer(server(**options), STORED, options=fields)


def test_drawn_loads_wait_fail_and_are_read_on() -> None:
    """Coverage of the comparison with the real scheduler."""
    rules = FAMILY.release("0.33.0").rules
    drawn = [draw_loads(1, number, rules) for number in range(10)]

    asked = [wanted for each in drawn for group in each["steps"] for wanted in group]
    for key in ("loads", "fails", "sends", "abort"):
        assert any(key in wanted for wanted in asked), key
    assert not [each["id"] for each in drawn if "error" in play(each, rules)[-1]]


def test_a_request_whose_load_failed_was_not_played_as_one_that_arrived() -> None:
    rules = FAMILY.release("0.33.0").rules
    whole = {"prompt": "1-40", "generate": 1, "reply": "99", "stored": 32, "loads": 2}
    config = {"groups": [{"kind": "full", "block": 8}], "blocks": 40, "store": True}

    def cached(more: dict[str, Any], **settings: Any) -> list[Any]:
        told = play({"config": config | settings, "steps": [[whole | more]]}, rules)
        return [request["cached"] for request in told[0]["requests"]]

    assert [32] == cached({})
    assert [8] == cached({"fails": 1}, recomputes=True)
    assert [None] == cached({"fails": 1})


# States that mode `all` takes from the chunks of Mamba-2's kernel (#57266).


@pytest.mark.parametrize("singly", [False, True])
def test_chunks_that_divide_blocks_give_each_block_its_own_state(singly: bool) -> None:
    (found,) = cached_states([(0, 20)], 8, 4, singly=singly)

    assert [Source(0, 0, 8), Source(1, 0, 16)] == found


@pytest.mark.parametrize(
    ("rows", "block", "chunk", "singly", "found"),
    [
        # Chunks that do not divide blocks give states of other lengths.
        ([(0, 2500)], 416, 256, False, [(0, number) for number in range(256, 1537, 256)]),
        ([(0, 2500)], 416, 256, True, [(0, number) for number in range(256, 1537, 256)]),
        # A block may get the state of the request before it.
        ([(0, 9), (5, 13)], 6, 4, False, [(0, 9), (1, 8)]),
        # Since 0.31 an index before the first state counts from the last.
        ([(1596, 3900)], 416, 256, True, [(0, 3900), (0, 1792), (0, 2048)]),
        ([(0, 8)], 2, 6, True, [(0, 8), (0, 8), (0, 8)]),
    ],
)
def test_where_states_of_blocks_come_from(
    rows: list[tuple[int, int]], block: int, chunk: int, singly: bool, found: list[tuple[int, int]]
) -> None:
    states = cached_states(rows, block, chunk, singly=singly)[-1]

    assert found == [(state.row, state.end) for state in states][: len(found)]


@pytest.mark.parametrize(
    ("rows", "block", "chunk", "why"),
    [
        ([(1596, 3900)], 416, 256, "0 states, 6 blocks"),  # begins before the first state
        ([(0, 8)], 2, 6, "cannot be zero"),  # a block below a chunk
    ],
)
def test_a_slice_without_states_ends_the_core_until_0_31(
    rows: list[tuple[int, int]], block: int, chunk: int, why: str
) -> None:
    with pytest.raises(UpstreamAbort, match=why):
        cached_states(rows, block, chunk, singly=False)


def test_beside_states_of_mode_all_an_id_covers_a_whole_block() -> None:
    groups = (GroupSpec(kind="full", block=32), GroupSpec(kind="mamba", block=32, mode="all"))

    assert Sizes(scheduler_block=32, hash_block=32) == Sizes.of(groups, 16)


@pytest.mark.parametrize(("model", "cached"), [("hybrid", 96), ("recurrent", 0)])
def test_a_store_of_attention_promises_nothing_for_a_model_without_it(
    model: str, cached: int
) -> None:
    engine = server(model, connector="store-attention")

    assert cached == answer(engine, STORED).cached
    assert 0 == answer(engine, OTHER).cached
