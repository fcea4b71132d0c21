"""The worked rows C-1 to C-22: one layer, one sequence."""

import numpy as np
import pytest

from cachesim.engines.mlx_lm.caches.prompt_cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    can_trim_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamAttributeError,
    UpstreamNotImplementedError,
    UpstreamValueError,
)
from cachesim.engines.mlx_lm.family import FAMILY
from tests.engines.mlx_lm.cache_kit import RELEASES, RULES, kv, ring, rows, singly, used, write


def test_a_fresh_cache_is_empty_and_may_be_trimmed_by_nothing() -> None:
    cache = kv()

    assert (0, True, 0, 0, True) == (
        cache.offset,
        cache.empty(),
        cache.nbytes,
        cache.size(),
        cache.is_trimmable(),
    )
    assert 0 == cache.trim(5)


def test_three_tokens_allocate_a_step_of_256_rows() -> None:
    cache = kv()

    assert [[1, 2, 3]] == write(cache, [1, 2, 3])
    assert (3, 256, 2048) == (cache.offset, len(rows(cache)), cache.nbytes)


def test_trimmed_rows_are_overwritten() -> None:
    cache = kv(1, 2, 3)

    assert 2 == cache.trim(2)
    assert [[1, 8, 9]] == write(cache, [8, 9])
    assert (3, 256) == (cache.offset, len(rows(cache)))


def test_trimmed_to_zero_is_not_empty() -> None:
    cache = kv(1, 2, 3)

    assert 3 == cache.trim(100)
    assert (0, False, 2048) == (cache.offset, cache.empty(), cache.nbytes)


@pytest.mark.parametrize(
    ("writes", "capacities"),
    [
        ([255], [256]),
        ([256], [256]),
        ([257], [512]),
        ([300], [512]),
        ([512], [512]),
        ([513], [768]),
        ([250, 10, 600], [256, 506, 1028]),
        ([256, 1], [256, 512]),
    ],
)
def test_capacity_grows_in_steps_behind_the_used_rows(
    writes: list[int], capacities: list[int]
) -> None:
    cache, found = kv(), []
    for count in writes:
        write(cache, [7] * count)
        found.append(len(rows(cache)))

    assert capacities == found


def test_capacity_does_not_shrink_with_a_trim() -> None:
    cache = kv(*[7] * 300)
    cache.trim(200)
    write(cache, [1])

    assert (101, 512) == (cache.offset, len(rows(cache)))


def test_a_ring_turns_once_it_is_full() -> None:
    cache = ring(4)
    singly(cache, [1, 2, 3])
    after_three = (rows(cache), used(cache), cache.is_trimmable())
    singly(cache, [4])
    after_four = (rows(cache), cache.is_trimmable())
    singly(cache, [5])
    after_five = (rows(cache), cache.idx)
    singly(cache, [6, 7])

    assert ([1, 2, 3, 0], [[1, 2, 3]], True) == after_three
    assert ([1, 2, 3, 4], False) == after_four
    assert ([5, 2, 3, 4], 1) == after_five
    assert ([5, 6, 7, 4], 3, 4, 32) == (rows(cache), cache.idx, cache.size(), cache.nbytes)
    assert [4, 5, 6, 7] == [int(each) for each in cache.temporal_order(cache.keys)[0, 0, :, 0]]


def test_kept_rows_never_turn() -> None:
    cache = ring(4, keep=1)
    singly(cache, [1, 2, 3, 4, 5])
    after_five = (rows(cache), cache.idx)
    singly(cache, [6, 7])

    assert ([1, 5, 3, 4], 2) == after_five
    assert ([1, 5, 6, 7], 4) == (rows(cache), cache.idx)
    assert [1, 5, 6, 7] == [int(each) for each in cache.temporal_order(cache.keys)[0, 0, :, 0]]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (0, [[1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 8], [9, 6, 7, 8], [7, 8, 9, 10, 11, 12]]),
        (1, [[1, 2, 3, 4, 5, 6], [1, 5, 6, 7, 8], [1, 9, 7, 8]]),
    ],
)
def test_several_tokens_overshoot_a_ring(keep: int, expected: list[list[int]]) -> None:
    cache, found = ring(4, keep=keep), []
    for piece in ([1, 2, 3, 4, 5, 6], [7, 8], [9], [10, 11, 12])[: len(expected)]:
        write(cache, piece)
        found.append(rows(cache))

    assert expected == found


def test_a_long_concat_counts_its_overshoot_in_bytes() -> None:
    assert 48 == ring(4, 1, 2, 3, 4, 5, 6).nbytes


def test_a_trimmed_ring_goes_on_in_place() -> None:
    cache = ring(4, 1, 2, 3)

    assert 2 == cache.trim(2)
    assert ((1, 1), [1, 2, 3]) == ((cache.offset, cache.idx), rows(cache))
    assert [[1, 9]] == write(cache, [9])
    assert [1, 9, 3] == rows(cache)


def test_a_trimmed_ring_goes_on_behind() -> None:
    cache = ring(4, 1, 2, 3)
    cache.trim(2)
    write(cache, [8, 9])

    assert ([1, 8, 9], 3) == (rows(cache), cache.offset)


def test_a_full_ring_is_not_trimmed_unless_asked_directly_and_then_it_is_corrupt() -> None:
    cache = ring(4, 1, 2, 3, 4, 5, 6, step=1)

    assert 0 == trim_prompt_cache([cache], 2)
    assert 6 == cache.offset
    assert 2 == cache.trim(2)
    assert (4, 0, [5, 6, 3, 4]) == (cache.offset, cache.idx, rows(cache))


def test_exactly_the_window_is_already_frozen() -> None:
    assert [True, False] == [ring(4, *range(count)).is_trimmable() for count in (3, 4)]


def test_a_ring_grows_no_further_than_its_window() -> None:
    cache = ring(300)
    singly(cache, [1])
    first = len(rows(cache))
    singly(cache, [1] * 256)

    assert (256, 300) == (first, len(rows(cache)))


def test_layers_that_trim_different_amounts_report_the_first() -> None:
    one, two = kv(1, 2, 3, 4, 5), ring(4, 1, 2, 3)

    assert 4 == trim_prompt_cache([one, two], 4)
    assert (1, 0) == (one.offset, two.offset)


def chunked(release: str) -> ChunkedKVCache:
    cache = ChunkedKVCache(FAMILY.release(release).rules.caches, 4)
    write(cache, [1, 2, 3, 4, 5, 6])
    cache.maybe_trim_front()
    return cache


def test_a_chunk_drops_its_oldest_rows() -> None:
    cache = chunked("0.32.2")

    assert (2, [3, 4, 5, 6]) == (cache.start_position, rows(cache))
    assert [[3, 4, 5, 6, 7]] == write(cache, [7])
    assert 5 == cache.trim(100)
    assert 2 == cache.offset


@pytest.mark.parametrize("release", RELEASES[:-1])
def test_before_1673_a_chunk_took_allocated_rows_for_tokens_and_lost_everything(
    release: str,
) -> None:
    cache = chunked(release)
    start, visible = cache.start_position, used(cache)
    write(cache, [7])

    assert (252, [[]]) == (start, visible)
    assert -245 == cache.trim(100)
    with pytest.raises(UpstreamValueError):
        write(chunked(release), [7, 8])


def test_recurrent_slots_are_never_trimmed_and_hold_their_list_back() -> None:
    states, beside = ArraysCache(RULES, 2), kv(1, 2, 3)

    assert (True, 0, 0, False) == (
        states.empty(),
        states.nbytes,
        states.size(),
        can_trim_prompt_cache([states, beside]),
    )
    assert 0 == trim_prompt_cache([states, beside], 2)
    assert 3 == beside.offset
    with pytest.raises(UpstreamAttributeError):
        states.trim(1)


def test_a_copy_is_independent() -> None:
    cache = kv(1, 2, 3)
    copy = cache.copy()
    copy.trim(1)
    write(copy, [9])

    assert [[1, 2, 3]] == used(cache)
    assert [[1, 2, 9]] == used(copy)


def test_a_copy_of_a_list_shares_no_state_and_no_buffer_with_it() -> None:
    states, inside = ArraysCache(RULES, 2), kv(1, 2, 3)
    states[0] = np.array([[7]])
    cache = CacheList(RULES, states, inside)
    copy = cache.copy()
    for layer in copy.caches:
        if isinstance(layer, ArraysCache):
            layer.cache[0][...] = 8
            layer.cache[1] = np.array([[9]])
    write(copy[1], [4])

    assert ([[7]], None) == (states.cache[0].tolist(), states.cache[1])
    assert [[1, 2, 3]] == used(inside)


def test_an_empty_list_can_be_trimmed_and_trims_nothing() -> None:
    assert can_trim_prompt_cache([])
    assert 0 == trim_prompt_cache([], 3)


def test_the_oldest_release_has_no_bytes() -> None:
    with pytest.raises(UpstreamAttributeError):
        _ = KVCache(FAMILY.release("0.30.7").rules.caches).nbytes


def test_rings_cannot_be_quantised() -> None:
    with pytest.raises(UpstreamNotImplementedError):
        RotatingKVCache(RULES, 4).to_quantized()


def test_a_corrupted_ring_loses_what_is_written_before_its_first_row() -> None:
    cache = ring(4, 1, 2, 3, 4, 5, step=1)
    cache.trim(2)
    before = rows(cache)
    write(cache, [9])

    assert (before, 4, 0) == (rows(cache), cache.offset, cache.idx)
