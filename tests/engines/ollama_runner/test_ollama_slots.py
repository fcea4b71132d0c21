"""Slots and full contexts of Ollama's own runner; worked out by hand from its source."""

import pytest

from cachesim.engines.base import Reply, Request
from cachesim.engines.ollama_runner.rules import RunnerRules
from cachesim.engines.ollama_runner.server import Ollama, Part, RunnerCache
from cachesim.errors import UpstreamAbort
from cachesim.typed import there_is
from cachesim.units import as_tokens
from tests.engines.asking import is_cold, names
from tests.engines.llama_cpp_python.test_llama_cpp_python import run
from tests.engines.ollama_runner.test_resume_points import called, opened, together

A, B = run(0, 20), run(100, 20)


def counts(*replies: Reply) -> list[tuple[int | None, int | None]]:
    return [(reply.slot, reply.cached) for reply in replies]


def all_cold(engine: Ollama, *replies: Reply) -> bool:
    return all(is_cold(engine, reply) for reply in replies)


@pytest.mark.parametrize(
    ("multiuser", "expected"),
    [(False, [(0, 0), (0, 0), (0, 0)]), (True, [(0, 0), (1, 0), (0, 19)])],
)
def test_only_a_cache_for_many_users_leaves_a_conversation_in_its_slot(
    *, multiuser: bool, expected: list[tuple[int, int]]
) -> None:
    engine = opened(num_parallel=2, multiuser_cache=multiuser)

    replies = [called(engine, *tokens) for tokens in (A, B, A)]

    assert (counts(*replies), all_cold(engine, *replies)) == (expected, True)


@pytest.mark.parametrize(("multiuser", "cached"), [(False, 0), (True, 19)])
@pytest.mark.parametrize("model", ["dense", "swa"])
def test_the_prefix_of_a_busy_slot_is_shared_only_for_many_users(
    model: str, *, multiuser: bool, cached: int
) -> None:
    engine = opened("", model, num_parallel=2, multiuser_cache=multiuser)
    called(engine, *A)

    replies = together(engine, [*A, 50], [*A[:19], 60, 61], predict=4)

    assert counts(*replies) == [(0, 20), (1, cached)]
    assert all_cold(engine, *replies)
    assert ["slot-busy"] * (not multiuser) == [loss.rule for loss in replies[1].losses]


def test_a_third_request_waits_for_a_slot() -> None:
    engine = opened(num_parallel=2)

    replies = together(engine, A, B, [*B, 7], predict=3)

    assert [0, 1, 1] == [reply.slot for reply in replies]
    assert all_cold(engine, *replies)


def test_the_slot_used_longest_ago_is_taken_for_a_new_conversation() -> None:
    engine = opened(num_parallel=2, multiuser_cache=True)

    replies = [called(engine, *tokens) for tokens in (A, B, [*A, 9], run(200, 5))]

    assert counts(*replies) == [(0, 0), (1, 0), (0, 20), (1, 0)]


def test_one_batch_serves_all_and_goes_on_with_whom_it_left_out() -> None:
    engine = opened(num_parallel=3, n_batch=8)
    first = _begun(engine, run(0, 12), run(100, 3), run(200, 6))

    batches = [first, engine._forward(), engine._forward()]

    assert [[(0, 8)], [(1, 3), (2, 5)]] == [
        [(part.slot.id, len(part.tokens)) for part in batch] for batch in batches[:2]
    ]
    assert 0 == batches[2][0].slot.id


def test_windows_keep_a_token_more_where_there_are_slots() -> None:
    caches = [opened("", "swa", num_parallel=n).slots[0].cache for n in (1, 2)]

    assert [caches[0].window, caches[0].window + 1] == [cache.memory for cache in caches]


def test_a_model_with_a_state_has_one_slot_whatever_is_asked_for() -> None:
    assert 1 == len(opened("", "hybrid", num_parallel=4).slots)


def test_a_full_context_drops_half_of_it_behind_the_kept_tokens() -> None:
    engine = opened(n_ctx=32, num_keep=4)

    reply = called(engine, *run(0, 30), predict=6)

    assert (reply.approximated, len(reply.generated)) == ("context-shift", 6)
    assert [*run(0, 4), *run(18, 12), *reply.generated[:-1]] == engine.slots[0].inputs
    again = called(engine, *run(0, 4), *run(18, 5), 99)
    assert (again.cached, again.approximated) == (9, "context-shift")
    assert is_cold(engine, called(engine, *run(0, 4), 98))


def test_the_state_of_a_shifted_hybrid_moves_with_its_checkpoint() -> None:
    engine = opened("", "hybrid", n_ctx=32, num_keep=4)
    first = called(engine, *run(0, 20), predict=20)

    reply = called(engine, *engine.slots[0].inputs, 90)

    assert (first.approximated, reply.approximated) == ("context-shift", "context-shift")
    assert reply.cached == 6


def test_qwen_3_5_processes_the_rest_of_a_full_context_again() -> None:
    engine = opened("", "hybrid-delta", n_ctx=32, n_batch=8, num_keep=4)

    reply = called(engine, *run(0, 30), predict=6)
    held = engine.slots[0].inputs

    assert [*run(0, 4), *run(18, 12), *reply.generated[:-1]] == held
    assert "shift-refused" in names(engine)
    assert is_cold(engine, there_is(called(engine, *held, 90)))


@pytest.mark.parametrize(("n_batch", "expected"), [(8, True), (32, False)])
def test_a_batch_begun_early_has_token_0_in_place_of_a_sampled_one(
    n_batch: int, *, expected: bool
) -> None:
    engine = opened("", "hybrid-delta", n_ctx=32, n_batch=n_batch, num_keep=4)
    called(engine, *run(0, 30), predict=5)

    assert expected == is_cold(engine, called(engine, *engine.slots[0].inputs, 90))


def test_shared_cells_cannot_be_moved() -> None:
    engine = opened(n_ctx=32, num_parallel=2, multiuser_cache=True)
    called(engine, *run(0, 28))

    together(engine, [*run(0, 28), 90], [*run(0, 28), 91], predict=8)

    assert "shift-refused" in names(engine)


def test_a_prompt_too_long_loses_its_middle() -> None:
    reply = called(opened(n_ctx=32, num_keep=4), *run(0, 40))

    assert (tuple(reply.prompt), reply.truncated) == ((*run(0, 4), *run(12, 28)), True)


def test_a_cancelled_request_frees_its_slot_at_once() -> None:
    engine = opened(num_parallel=1)
    tickets = [engine.submit(Request(prompt=as_tokens(each), predict=50)) for each in (A, B)]
    engine.step()
    engine.cancel(tickets[0])
    engine.run()

    reply = there_is(engine.reply(tickets[1]))
    assert ("cancelled", True) == (there_is(engine.reply(tickets[0])).error, is_cold(engine, reply))


LLAMA = "+llamarunner"


@pytest.mark.parametrize(
    ("model", "cached"), [("dense", 15), ("swa", 15), ("hybrid", 0), ("recurrent", 0)]
)
def test_llama_cpp_memory_decides_what_its_runner_keeps(model: str, cached: int) -> None:
    engine = opened(LLAMA, model)
    called(engine, *A)

    reply = called(engine, *A[:15], 90)

    assert (reply.cached, is_cold(engine, reply)) == (cached, True)
    assert ("cut-refused" in names(engine)) is not cached


def test_a_reply_of_its_runner_ends_with_the_token_behind_the_context() -> None:
    engine = opened(LLAMA, n_ctx=32, shift=False)

    assert 3 == len(called(engine, *run(0, 30), predict=9).generated)


@pytest.mark.parametrize(
    ("model", "told"), [("dense", "context-shifted"), ("hybrid-delta", "shift-refused")]
)
def test_its_runner_asks_llama_cpp_for_a_shift(model: str, told: str) -> None:
    engine = opened(LLAMA, model, n_ctx=32)

    reply = called(engine, *run(0, 30), predict=9)

    assert (len(reply.generated), told in names(engine)) == (9, True)


def test_each_sequence_of_its_runner_has_a_batch_of_its_own() -> None:
    engine = opened(LLAMA, num_parallel=2, n_batch=8)

    assert all_cold(engine, *together(engine, A, B, predict=3))
    assert [8, 8] == [len(part.tokens) for part in _begun(engine, run(300, 12), run(400, 12))]


def _begun(engine: Ollama, *prompts: range) -> list[Part]:
    for prompt in prompts:
        engine.submit(Request(prompt=as_tokens(prompt), predict=9))
    engine._admit()
    return engine._forward()


def test_its_runner_dies_where_it_shares_a_prefix() -> None:
    engine = opened(LLAMA, num_parallel=2, multiuser_cache=True)
    called(engine, *A)

    with pytest.raises(UpstreamAbort, match="seq_cp"):
        called(engine, *A[:15], 90)


@pytest.mark.parametrize(("first", "after"), [(2, 2), (4, 4), (9, 4), (14, 4), (20, 10)])
def test_a_shift_moves_what_is_held_of_a_window(first: int, after: int) -> None:
    cache = RunnerCache(RunnerRules(), 64, 8, hybrid=False)
    cache.first, cache.end = first, 32

    cache.shift(4, 10)

    assert (after, 22) == (cache.first, cache.end)


def test_an_idle_window_keeps_its_keys_while_another_slot_is_written() -> None:
    engine = opened("+memory", "swa", num_parallel=3)
    together(engine, [300, 301], run(300, 30))
    called(engine, 300, predict=30)

    reply = called(engine, *run(300, 22), 90, predict=8)

    assert (reply.slot, reply.cached, is_cold(engine, reply)) == (1, 22, True)
