"""Worked examples for recurrent rows and for hybrids, in both releases."""

import pytest

from cachesim.engines.llamacpp.memory.rules import B9509, B11434, MemoryRules
from cachesim.errors import UpstreamAbort
from tests.engines.llamacpp.memory.bench import BOTH, NAMES, Bench

both = pytest.mark.parametrize("rules", BOTH, ids=NAMES)


@both
def test_recurrent_rows_are_removed_whole_or_not_at_all(rules: MemoryRules) -> None:
    b = two_in_one_ubatch(rules)
    assert b.pos(0) == b.pos(1) == [3, 3]
    assert ([1, 1], 2) == (b.pos(2), b.recurrent.cells.tail[2])

    assert (False, True, True) == (b.rm(0, 2, -1), b.rm(0, 0, 2), b.rm(0, 4, -1))
    assert b.pos(0) == [3, 3]
    assert b.rm(0, 0, 4)
    assert ([-1, -1], 2, 0) == (b.pos(0), b.recurrent.cells.used, b.recurrent.cells.head)

    b.decode(8, "0:0+1")
    assert 1 == b.state(0)


def two_in_one_ubatch(rules: MemoryRules) -> Bench:
    """Two sequences in one ubatch, a third one after them."""
    b = Bench(rules, "recurrent", n_seq_max=3)
    b.decode(8, "0:0+4 1:0+4")
    assert b.sets() == [(2, 4)]
    b.decode(8, "2:0+2")
    return b


def after_a_copy(rules: MemoryRules) -> Bench:
    """Three sequences played through, then a copy."""
    b = two_in_one_ubatch(rules)
    b.rm(0, 0, 4)
    b.decode(8, "0:0+1")
    b.context.seq_cp(1, 0, -1, -1)
    return b


@both
def test_a_shared_state_is_copied_when_it_is_written(rules: MemoryRules) -> None:
    b = after_a_copy(rules)
    cells = b.recurrent.cells
    assert ([set(), {0, 1}, {2}], 2) == (cells.seqs, cells.used)
    assert b.pos(0) == b.pos(1) == [3, 3]

    b.decode(8, "0:4+1")
    assert (0, (1,)) == (cells.tail[0], b.sources())
    assert (5, 4) == (b.planes(0)[0], b.planes(1)[0])
    assert ([4, 4], [3, 3]) == (b.pos(0), b.pos(1))

    b.context.seq_keep(1)
    assert ([set(), {1}, set()], 1) == (cells.seqs, cells.used)


def test_removing_all_sequences_is_refused_by_the_later_release() -> None:
    b = after_a_copy(B11434)
    b.decode(8, "0:4+1")

    assert not b.rm(-1, -1, -1)
    assert ([4, 4], 3) == (b.pos(0), b.recurrent.cells.used)


def test_removing_all_sequences_leaves_stale_tails_in_the_earlier_release() -> None:
    b = after_a_copy(B9509)
    b.decode(8, "0:4+1")

    assert b.rm(-1, -1, -1)
    assert ([-1, -1], 0) == (b.pos(0), b.recurrent.cells.used)
    with pytest.raises(UpstreamAbort, match="has_seq_id"):
        b.decode(8, "0:0+1")


def six_tokens(rules: MemoryRules, n_seq_max: int = 1) -> Bench:
    b = Bench(rules, "recurrent", n_seq_max=n_seq_max, n_rs_seq=3)
    b.decode(16, "0:0+6")
    return b


def test_the_later_release_rolls_back_once() -> None:
    b = six_tokens(B11434)
    assert ([5, 5], [6, 5, 4, 3]) == (b.pos(0), b.planes(0))
    assert (True, [4, 4], [1]) == (b.rm(0, 5, -1), b.pos(0), b.recurrent.rs_idx)
    assert (False, [4, 4]) == (b.rm(0, 4, -1), b.pos(0))
    assert (True, [4, 4]) == (b.rm(0, 5, -1), b.pos(0))

    assert b.decode(16, "0:5+1") == 0
    assert ((1,), 6) == (b.sources(), b.state(0))


def test_the_earlier_release_stacks_rollbacks_wrongly() -> None:
    b = six_tokens(B9509)
    assert (True, [4, 4], [1]) == (b.rm(0, 5, -1), b.pos(0), b.recurrent.rs_idx)
    assert (True, [3, 3], [1]) == (b.rm(0, 4, -1), b.pos(0), b.recurrent.rs_idx)
    assert b.rm(0, 5, -1)
    assert b.decode(16, "0:5+1") == -1


@both
def test_depth_is_bounded_by_the_planes(rules: MemoryRules) -> None:
    b = six_tokens(rules)
    assert (False, True, [2, 2]) == (b.rm(0, 2, -1), b.rm(0, 3, -1), b.pos(0))


STALE = [("0:6+1", [7, 5, 4, 3], 5, 4, 5), ("0:6+2", [8, 7, 4, 3], 6, 4, 5)]


@pytest.mark.parametrize(("more", "planes", "cut", "read", "state"), STALE)
def test_planes_behind_a_short_ubatch_are_stale(
    more: str, planes: list[int], cut: int, read: int, state: int
) -> None:
    b = six_tokens(B11434)
    b.decode(16, more)
    assert planes == b.planes(0)

    assert b.rm(0, cut, -1)
    assert read == b.planes(0)[b.recurrent.rs_idx[0]]
    b.decode(16, f"0:{cut}+1")
    assert state == b.state(0)


@pytest.mark.parametrize(("more", "planes", "cut", "read", "state"), STALE)
def test_they_are_undefined_in_the_earlier_release_which_are_zeros_here(
    more: str, planes: list[int], cut: int, read: int, state: int
) -> None:
    b = six_tokens(B9509)
    b.decode(16, more)

    assert [n if n > 5 else 0 for n in planes] == b.planes(0)
    assert (True, 0) == (b.rm(0, cut, -1), b.planes(0)[b.recurrent.rs_idx[0]])
    b.decode(16, f"0:{cut}+1")
    assert (state, read) != (b.state(0), 0)


@both
def test_a_pending_rollback_survives_a_removal_up_to_a_position(rules: MemoryRules) -> None:
    b = six_tokens(rules)
    assert (True, [2, 2], [3]) == (b.rm(0, 3, -1), b.pos(0), b.recurrent.rs_idx)
    assert (True, [-1, -1], [3]) == (b.rm(0, 0, 3), b.pos(0), b.recurrent.rs_idx)

    b.decode(16, "0:0+1")
    assert ((3,), 4) == (b.sources(), b.state(0))


def test_planes_stay_behind_when_cells_are_swapped() -> None:
    b = fifteen(B11434)
    assert b.sources() == (3, 0, 2, 1)
    assert [{2}, {3}, {1}, {0}] == b.recurrent.cells.seqs
    assert 3 == b.recurrent.cells.rs_z

    assert (True, [2, 2]) == (b.rm(0, 3, -1), b.pos(0))
    b.decode(8, "0:3+1")
    assert ((11,), 1) == (b.sources(), b.state(0))


def test_the_earlier_release_splits_and_swaps_nothing() -> None:
    b = fifteen(B9509)
    assert (2, 1) == (len(b.context.reached), b.recurrent.cells.tail[0])

    b.rm(0, 3, -1)
    b.decode(8, "0:3+1")
    assert ((9,), 4) == (b.sources(), b.state(0))


def fifteen(rules: MemoryRules) -> Bench:
    b = Bench(rules, "recurrent", n_seq_max=4, n_rs_seq=2)
    b.decode(8, "3:0+4")
    b.decode(8, "0:0+5 1:0+5")
    assert b.sets() == [(1, 5), (1, 5)]
    b.decode(8, "2:0+1 3:4+1")
    return b


@both
def test_a_hybrid_refuses_a_tail_and_grants_a_middle(rules: MemoryRules) -> None:
    b = Bench(rules, "hybrid", cells=16)
    b.decode(8, "0:0+6")
    assert b.pos(0) == [5, 5]
    assert (False, 6) == (b.rm(0, 4, -1), b.used())

    assert b.rm(0, 2, 4)
    assert ("0 1 . . 4 5", [5, 5]) == (b.dump(ids=False), b.pos(0))


@both
def test_a_partial_restore_without_a_cut_leads_to_duplicate_positions(
    rules: MemoryRules,
) -> None:
    b = Bench(rules, "hybrid", cells=16)
    b.decode(8, "0:0+4")
    saved = b.save(0, partial=True)
    b.decode(8, "0:4+3")
    assert b.load(saved, 0, partial=True)
    assert ([3, 3], 7) == (b.pos(0), b.used())

    assert b.decode(8, "0:4+1") == 0
    assert ("0 1 2 3 4 5 6 4", [4, 4]) == (b.dump(ids=False), b.pos(0))
    assert b.rm(0, 5, -1)
    assert b.dump(ids=False) == "0 1 2 3 4 . . 4"


@both
def test_half_a_hybrid_reports_a_minimum_without_a_maximum(rules: MemoryRules) -> None:
    b = Bench(rules, "hybrid", n_seq_max=2, cells=16, layers={"kv": 1, "recurrent": 2})
    b.decode(8, "0:0+6")
    b.rm(0, 2, 4)
    partial, full = b.save(0, partial=True), b.save(0)
    assert partial.size == 84

    assert b.load(partial, 1, partial=True)
    assert b.pos(1) == [5, -1]
    assert b.rm(1, -1, -1)
    assert b.load(full, 1)
    assert b.pos(1) == [5, 5]


@both
def test_a_failed_compute_leaves_a_hybrid_advanced(rules: MemoryRules) -> None:
    b = Bench(rules, "hybrid", cells=16)
    b.decode(8, "0:0+4")
    assert b.decode(2, "0:4+4", fail=(1, 2)) == 2
    (call,) = b.context.cleanup
    assert (0, 6, -1, False) == (call.seq, call.p0, call.p1, call.removed)
    assert ([7, 7], "0 1 2 3 4 5 6 7") == (b.pos(0), b.dump(ids=False))

    fresh = Bench(rules, "hybrid", cells=16)
    assert fresh.decode(8, "0:0+4", fail=(0, 2)) == 2
    assert (True, [-1, -1]) == (fresh.context.cleanup[0].removed, fresh.pos(0))
