"""The worked rows B-1 to B-16: several sequences side by side."""

import numpy as np
import pytest

from cachesim.engines.mlx_lm.caches.prompt_cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)
from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamAttributeError,
    UpstreamRuntimeError,
    UpstreamTypeError,
    UpstreamValueError,
)
from cachesim.engines.mlx_lm.family import FAMILY
from tests.engines.mlx_lm.cache_kit import (
    BEFORE_0_31_2,
    RULES,
    SINCE_0_31_2,
    kv,
    ring,
    rows,
    singly,
    tokens,
    used,
    write,
)


def merged(*caches: KVCache) -> BatchKVCache:
    batch = KVCache.merge(caches)
    assert isinstance(batch, BatchKVCache)
    return batch


def merged_rings(*caches: RotatingKVCache) -> BatchRotatingKVCache:
    batch = RotatingKVCache.merge(caches)
    assert isinstance(batch, BatchRotatingKVCache)
    return batch


def states(*values: int | None, release: str = "0.32.2") -> ArraysCache:
    cache = ArraysCache(FAMILY.release(release).rules.caches, 1)
    if values:
        cache[0] = np.array([[each] for each in values])
    return cache


def three() -> BatchKVCache:
    return merged(kv(1, 2, 3), kv(4, 5, 6, 7, 8), kv())


def test_merged_rows_end_together() -> None:
    batch = three()

    assert [[0, 0, 1, 2, 3], [4, 5, 6, 7, 8], [0] * 5] == used(batch)
    assert (5, [3, 5, 0], [2, 0, 5]) == (
        batch.idx,
        batch.offset.tolist(),
        batch.left_padding.tolist(),
    )
    assert [3, 5, 0] == [len(rows(batch.extract(row))) for row in range(3)]


def test_filtering_drops_padding_that_all_rows_share() -> None:
    batch = three()
    write(batch, [9], [10], [11])
    batch.filter([0, 2])

    assert [[1, 2, 3, 9], [0, 0, 0, 11]] == used(batch)
    assert (4, [4, 1], [0, 3]) == (batch.idx, batch.offset.tolist(), batch.left_padding.tolist())

    batch.filter([1])

    assert [[11]] == used(batch)
    assert (1, [0]) == (batch.idx, batch.left_padding.tolist())


def test_right_padding_becomes_left_padding() -> None:
    batch = merged(kv(1, 2, 3), kv(4))
    batch.prepare(lengths=[1, 3], right_padding=[2, 0])
    write(batch, [7, 0, 0], [5, 6, 8])
    before = (used(batch), batch.offset.tolist(), batch.left_padding.tolist())
    batch.finalize()

    assert ([[1, 2, 3, 7, 0, 0], [0, 0, 4, 5, 6, 8]], [6, 4], [0, 2]) == before
    assert [[0, 0, 1, 2, 3, 7], [0, 0, 4, 5, 6, 8]] == used(batch)
    assert ([4, 4], [2, 2]) == (batch.offset.tolist(), batch.left_padding.tolist())


def test_offsets_of_padded_rows_begin_and_may_end_below_zero() -> None:
    batch = BatchKVCache(RULES, [1, 3, 0])
    found = [batch.offset.tolist()]
    write(batch, [0, 1, 3, 5], [0, 0, 0, 7], [2, 6, 8, 9])
    found.append(batch.offset.tolist())
    batch.trim(2)
    found.append(batch.offset.tolist())

    assert [[-1, -3, 0], [3, 1, 4], [1, -1, 2]] == found
    assert 2 == batch.idx


@pytest.mark.parametrize(("release", "count"), [("0.31.2", 2), ("0.31.3", 3), ("0.32.2", 3)])
def test_an_empty_side_joins_with_its_own_batch_size_since_1141(release: str, count: int) -> None:
    batch = merged(kv(1, 2, 3, release=release))
    batch.extend(merged(kv(release=release), kv(release=release)))

    assert [[1, 2, 3], *[[0, 0, 0]] * (count - 1)] == used(batch)
    assert ([3, 0, 0], [0, 3, 3]) == (batch.offset.tolist(), batch.left_padding.tolist())


@pytest.mark.parametrize("release", BEFORE_0_31_2)
def test_until_0_31_1_an_empty_side_cannot_join(release: str) -> None:
    empty = BatchKVCache(FAMILY.release(release).rules.caches, [0])

    with pytest.raises(UpstreamAttributeError):
        merged(kv(1, release=release)).extend(empty)
    with pytest.raises(UpstreamAttributeError):
        empty.extend(BatchKVCache(FAMILY.release(release).rules.caches, [0]))


@pytest.mark.parametrize("release", SINCE_0_31_2)
def test_merging_nothing_gives_an_empty_batch(release: str) -> None:
    batch = merged(kv(release=release), kv(release=release))

    assert batch.empty()
    assert ([0, 0], [0, 0]) == (batch.offset.tolist(), batch.left_padding.tolist())


@pytest.mark.parametrize("release", BEFORE_0_31_2)
def test_until_0_31_1_merging_nothing_raises(release: str) -> None:
    with pytest.raises(UpstreamValueError):
        merged(kv(release=release), kv(release=release))


def three_rings(release: str = "0.32.2") -> BatchRotatingKVCache:
    return merged_rings(
        ring(4, 1, 2, 3, release=release),
        ring(4, 4, 5, 6, 7, 8, 9, release=release),
        ring(4, release=release),
    )


def test_merged_rings_give_their_last_rows() -> None:
    batch = three_rings()

    assert [[0, 1, 2, 3], [6, 7, 8, 9], [0] * 4] == used(batch)
    assert ([3, 6, 0], [1, 0, 4]) == (batch.offset.tolist(), batch.left_padding.tolist())


@pytest.mark.parametrize("release", BEFORE_0_31_2)
def test_until_0_31_1_an_overlong_ring_cannot_be_merged(release: str) -> None:
    with pytest.raises(UpstreamValueError):
        three_rings(release)


def test_left_padding_of_turning_rings_goes_below_zero() -> None:
    batch = three_rings()
    write(batch, [11], [12], [13])
    write(batch, [14], [15], [16])
    single = [batch.extract(row) for row in range(3)]

    assert [[2, 3, 11, 14], [8, 9, 12, 15], [13, 16]] == [rows(each) for each in single]
    assert [5, 8, 2] == [each.offset for each in single]
    assert ([-1, -2, 2], True) == (batch.left_padding.tolist(), batch.rotated)


def right_padded_rings(*pieces: int) -> BatchRotatingKVCache:
    batch = BatchRotatingKVCache(RULES, 4, [0, 0])
    batch.prepare(lengths=[2, 6], right_padding=[4, 0])
    first, columns = 0, ([1, 2, 0, 0, 0, 0], [3, 4, 5, 6, 7, 8])
    for count in pieces:
        write(batch, *(row[first : first + count] for row in columns))
        first += count
    return batch


def test_right_padding_cannot_push_tokens_out_of_a_ring() -> None:
    batch = right_padded_rings(6)
    batch.finalize()
    rolled = (tokens(batch.keys), batch.offset.tolist(), batch.left_padding.tolist())
    extracted = [rows(batch.extract(row)) for row in range(2)]
    write(batch, [21], [22])
    write(batch, [23], [24])
    later = [batch.extract(row) for row in range(2)]

    assert ([[0, 0, 0, 0, 1, 2], [3, 4, 5, 6, 7, 8]], [2, 6], [4, 0]) == rolled
    assert [[1, 2], [3, 4, 5, 6, 7, 8]] == extracted
    assert [([1, 2, 21, 23], 4), ([7, 8, 22, 24], 8)] == [(rows(e), e.offset) for e in later]


def test_right_padding_in_two_pieces_is_rolled_twice() -> None:
    batch = right_padded_rings(3, 3)
    between = (tokens(batch.keys), batch.offset.tolist(), batch.left_padding.tolist())
    batch.finalize()

    assert ([[0, 1, 2, 0, 0, 0], [3, 4, 5, 6, 7, 8]], [5, 6], [1, 0]) == between
    assert [[0, 0, 0, 0, 1, 2], [3, 4, 5, 6, 7, 8]] == tokens(batch.keys)


def test_single_columns_wait_for_the_end_of_right_padding() -> None:
    batch = right_padded_rings(3)

    with pytest.raises(UpstreamRuntimeError):
        write(batch, [1], [2])


@pytest.mark.parametrize(
    ("release", "first", "second"),
    [
        ("0.32.2", ["TTFF", "TTTT"], ["FF", "TT"]),
        ("0.31.3", ["TTTT", "TTTT"], ["TT", "TT"]),
        ("0.31.2", ["TTFF", "TTTT"], ["FF", "TT"]),
    ],
)
def test_in_0_31_3_zero_left_padding_hides_the_lengths_of_a_fresh_recurrent_batch(
    release: str, first: list[str], second: list[str]
) -> None:
    batch = ArraysCache.merge([states(release=release), states(release=release)])
    batch.prepare(lengths=[2, 4], right_padding=[2, 0])
    found = [batch.make_mask(4)]
    batch.advance(2)
    found.append(batch.make_mask(2))

    shown = [["".join("FT"[int(bit)] for bit in row) for row in mask] for mask in found]
    assert [first, second] == shown


@pytest.mark.parametrize("release", ["0.30.7", "0.31.3", "0.32.2"])
@pytest.mark.parametrize("left", [None, [0, 0], [-3, -1], [0, 2], [0]])
@pytest.mark.parametrize("lengths", [None, [3, 3], [4, 9], [2, 3], [3]])
def test_a_mask_that_need_not_be_asked_for_shows_every_column_of_every_row(
    release: str, left: list[int] | None, lengths: list[int] | None
) -> None:
    cache = states(1, 2, release=release)
    cache.left_padding = None if left is None else np.array(left)
    cache.lengths = None if lengths is None else np.array(lengths)

    if not cache.may_pad(batch=2, columns=3):
        mask = cache.make_mask(3)
        assert mask is None or [[True] * 3] * 2 == mask.tolist()
        assert lengths is None or min(lengths) >= 3


def test_columns_before_and_behind_the_tokens_are_padding() -> None:
    cache = states(1, 2)

    assert not cache.may_pad(batch=2, columns=3)
    cache.left_padding = np.array([0, -2])
    assert not cache.may_pad(batch=2, columns=3)
    cache.lengths = np.array([3, 4])
    assert not cache.may_pad(batch=2, columns=3)
    assert cache.may_pad(batch=2, columns=4)
    assert cache.may_pad(batch=3, columns=3)
    cache.left_padding = np.array([1, 0])
    assert cache.may_pad(batch=2, columns=3)


@pytest.mark.parametrize(("release", "values"), [("0.31.2", [1]), ("0.31.3", [1, 0, 0])])
def test_empty_recurrent_rows_join_as_zeros_since_1169(release: str, values: list[int]) -> None:
    batch = ArraysCache.merge([states(1, release=release)])
    batch.extend(ArraysCache.merge([states(release=release), states(release=release)]))

    assert batch[0] is not None
    assert values == batch[0][:, 0].tolist()


@pytest.mark.parametrize("release", BEFORE_0_31_2)
def test_until_0_31_1_an_empty_recurrent_side_cannot_join(release: str) -> None:
    with pytest.raises(UpstreamTypeError):
        states(1, release=release).extend(states(release=release))


def test_in_0_31_2_a_row_gets_its_neighbours_state_when_the_batch_axis_is_too_short() -> None:
    batch = ArraysCache.merge([states(release="0.31.2"), states(release="0.31.2")])
    batch.extend(ArraysCache.merge([states(7, release="0.31.2")]))

    assert batch[0] is not None
    assert [7] == batch[0][:, 0].tolist()  # row 2's state, where row 0's is looked for


def wrapped_batch(release: str) -> BatchRotatingKVCache:
    batch = merged_rings(ring(4, 1, 2, 3, release=release))
    singly(batch, [4, 5])
    return batch


@pytest.mark.parametrize("release", SINCE_0_31_2)
def test_a_wrapped_ring_is_extracted_whole(release: str) -> None:
    single = wrapped_batch(release).extract(0)

    assert ([2, 3, 4, 5], 5) == (rows(single), single.offset)


@pytest.mark.parametrize("release", BEFORE_0_31_2)
def test_until_0_31_1_negative_left_padding_loses_the_window(release: str) -> None:
    single = wrapped_batch(release).extract(0)
    again = merged_rings(single)

    assert ([5], 5) == (rows(single), single.offset)
    assert ([[5, 0, 0, 0]], [0]) == (tokens(again.keys), again.left_padding.tolist())
    with pytest.raises(UpstreamValueError):
        write(single, [6])


def test_batching_loses_what_was_kept() -> None:
    single = merged_rings(ring(4, 1, 2, 3, 4, 5, 6, keep=1, step=1)).extract(0)

    assert ([1, 4, 5, 6], 0) == (rows(single), single.keep)


def test_a_held_out_token_stays_out_of_a_ring_since_lengths_are_own_length_less_one() -> None:
    found = {}
    for name, lengths in {"own": [2, 4], "less one": [1, 3]}.items():
        batch = BatchRotatingKVCache(RULES, 8, [0, 0])
        batch.prepare(lengths=lengths, right_padding=[2, 0])
        write(batch, [11, 12, 0], [21, 22, 23])
        batch.finalize()
        found[name] = (batch.offset.tolist(), rows(batch.extract(0)))

    assert {"own": ([2, 3], [11, 12]), "less one": ([1, 3], [11])} == found


def test_rings_of_different_windows_cannot_be_merged() -> None:
    with pytest.raises(UpstreamValueError):
        merged_rings(ring(4), ring(5))


def test_left_padding_comes_before_the_first_token() -> None:
    batch = merged(kv(1))

    with pytest.raises(UpstreamValueError):
        batch.prepare(left_padding=[1])


def test_pending_right_padding_is_not_filtered() -> None:
    batch = merged(kv(1, 2), kv(3, 4), kv(5))
    batch.prepare(lengths=[1, 2, 2], right_padding=[1, 0, 0])
    batch.filter([0, 2])

    with pytest.raises(UpstreamValueError):
        batch.finalize()


def test_one_row_that_is_left_is_rolled_by_the_padding_of_all_that_were_there() -> None:
    """As recorded from every release: the library repeats the row, and the batch has two again."""
    batch = merged(kv(0, 1, 2), kv(4, 5, 6))
    batch.prepare(lengths=[2, 3], right_padding=[1, 0])
    batch.filter([1])
    batch.finalize()

    assert ([2, 3], [1, 0]) == (batch.offset.tolist(), batch.left_padding.tolist())
    assert [[6, 4, 5], [4, 5, 6]] == [row.tolist() for row in batch.keys[:, 0, :3, 0].astype(int)]


def test_a_ring_of_one_row_is_repeated_before_the_write_that_it_refuses() -> None:
    batch = merged_rings(ring(4, 1, 2, 3), ring(4, 4, 5, 6))
    batch.prepare(lengths=[2, 3], right_padding=[1, 0])
    batch.filter([1])
    with pytest.raises(UpstreamValueError):
        batch.update_and_fetch(np.zeros((1, 1, 3, 1)), np.zeros((1, 1, 3, 2)))

    assert (2, [3, 3]) == (len(batch.keys), batch.offset.tolist())


def test_a_restored_batch_lacks_the_field_for_pending_padding() -> None:
    batch = merged(kv(1, 2), kv(3))
    restored = BatchKVCache.from_state(batch.state, rules=RULES)

    with pytest.raises(UpstreamAttributeError):
        restored.finalize()


def test_an_empty_batch_filtered_into_its_padding_ends_below_zero() -> None:
    batch = BatchKVCache(RULES, [3, 2])
    batch.filter([0])

    assert (-3, [0]) == (batch.idx, batch.left_padding.tolist())


def test_a_recurrent_slot_that_nobody_has_cannot_be_extracted_or_merged() -> None:
    cache = ArraysCache(RULES, 2)
    cache[0] = np.array([[1]])

    with pytest.raises(UpstreamTypeError):
        cache.extract(0)
    with pytest.raises(StopIteration):
        ArraysCache.merge([cache])


def test_a_cache_list_turns_the_end_of_an_iteration_into_a_runtime_error() -> None:
    cache = ArraysCache(RULES, 2)
    cache[0] = np.array([[1]])

    with pytest.raises(UpstreamRuntimeError):
        CacheList.merge([CacheList(RULES, cache)])


def test_chunked_layers_have_no_batch_form() -> None:
    chunked = ChunkedKVCache(RULES, 4)

    assert not ChunkedKVCache.has_merge
    with pytest.raises(UpstreamAttributeError):
        CacheList.merge([CacheList(RULES, chunked)])


def test_a_row_that_was_all_padding_cannot_be_merged_again() -> None:
    batch = BatchRotatingKVCache(RULES, 4, [2])
    write(batch, [0])
    single = batch.extract(0)

    assert -1 == single.offset
    with pytest.raises(UpstreamValueError):
        merged_rings(single)


def test_vectors_of_different_sizes_do_not_add_up() -> None:
    with pytest.raises(UpstreamValueError):
        BatchKVCache(RULES, [1, 2, 3]).prepare(left_padding=[1, 2])
    with pytest.raises(UpstreamTypeError):
        BatchRotatingKVCache(RULES, 4, [0]).prepare(right_padding=[1])


def test_what_is_handed_back_lies_in_the_cache_itself() -> None:
    for cache in (kv(1), ring(4, 1), ring(4, 1, 2, 3), BatchKVCache(RULES, [0])):
        keys, _ = cache.update_and_fetch(np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1)))
        keys[..., -1, :] = 7
        assert 7 in tokens(cache.keys)[0]
