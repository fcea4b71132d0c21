"""Worked examples of batches and of rollbacks, in both releases."""

import pytest

from cachesim.engines.llamacpp.memory.rules import B9509, B11434, MemoryRules
from tests.engines.llamacpp.memory.bench import BOTH, NAMES, Bench

both = pytest.mark.parametrize("rules", BOTH, ids=NAMES)


@both
def test_batches_must_continue_where_memory_ends(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=4, cells=32)
    assert (0, [5, 7]) == (b.decode(8, "0:5+3"), b.pos(0))
    assert (-1, -1, -1) == (b.decode(8, "0:9+1"), b.decode(8, "0:7+1"), b.decode(8, "0:8+2 0:11+1"))

    assert b.decode(8, "0:8+2 0:9+1") == 0
    assert ("5 6 7 8 9 9", [5, 9]) == (b.dump(ids=False), b.pos(0))


@pytest.mark.parametrize(("rules", "ret"), [(B9509, 0), (B11434, -1)], ids=NAMES)
def test_ids_beyond_the_sequences_depend_on_the_release(rules: MemoryRules, ret: int) -> None:
    assert ret == Bench(rules, "kv", n_seq_max=4, cells=32).decode(8, "5:0+1")


@pytest.mark.parametrize(("rules", "ret"), [(B9509, 0), (B11434, -1)], ids=NAMES)
def test_decreasing_positions_depend_on_the_release(rules: MemoryRules, ret: int) -> None:
    assert ret == Bench(rules, "kv", n_seq_max=4, cells=32).decode(8, "1:1+1 1:0+1")


@both
def test_a_window_pair_keeps_base_when_its_window_fails(rules: MemoryRules) -> None:
    b = Bench(rules, "iswa", n_seq_max=2, cells=32, swa_cells=16, n_swa=4, swa_type="standard")
    b.decode(8, "0:0+5")
    saved = b.save(0)
    base = b.save(0).size - b.save(0, partial=True).size

    assert not b.load(saved.cut(base + 4 + 4 + 13), 1)
    cells = b.kv.streams.cells[0]
    assert (5, 0) == (cells.members(1).sum(), b.swa.streams.cells[0].members(1).sum())
    assert b.pos(1) == [-1, -1]


@both
def test_a_state_saved_while_a_rollback_is_pending_is_right(rules: MemoryRules) -> None:
    b = Bench(rules, "recurrent", n_seq_max=2, n_rs_seq=3)
    b.decode(16, "0:0+6")
    assert b.rm(0, 4, -1)
    saved = b.save(0)

    assert b.load(saved, 1)
    assert ([3, 3], 4, [2, 0]) == (b.pos(1), b.planes(1)[0], b.recurrent.rs_idx)
    b.decode(16, "1:4+1")
    assert b.state(1) == 5

    assert b.load(saved, 0)
    assert ([0, 0], [4, 5, 4, 3]) == (b.recurrent.rs_idx, b.planes(b.recurrent.cells.tail[0]))


@both
def test_a_shared_cell_rolls_back_for_both_but_only_one_knows(rules: MemoryRules) -> None:
    b = Bench(rules, "recurrent", n_seq_max=2, n_rs_seq=3)
    b.decode(16, "0:0+6")
    b.context.seq_cp(0, 1, -1, -1)
    assert b.rm(0, 4, -1)
    assert ([3, 3], [3, 3], [2, 0]) == (b.pos(0), b.pos(1), b.recurrent.rs_idx)

    b.decode(16, "1:4+1")
    assert b.state(1) == 7
    b.decode(16, "0:4+1")
    assert b.state(0) == 5
