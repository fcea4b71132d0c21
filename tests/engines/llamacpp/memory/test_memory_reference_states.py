"""Worked examples for batches, saved states and masks, in both releases."""

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


@pytest.mark.parametrize("release", [0, 1], ids=NAMES)
def test_sizes_are_the_real_ones(release: int) -> None:
    rules = BOTH[release]
    kv = Bench(rules, "kv", cells=32, layers={"kv": 4})
    assert kv.save(0).size == 8
    kv.decode(8, "0:0+5")
    assert (332, 340)[release] == kv.save(0).size
    streams = Bench(rules, "kv", n_seq_max=2, unified=False, cells=32, layers={"kv": 4})
    assert streams.save(0).size == 12

    hybrid = Bench(rules, "hybrid", cells=32, layers={"kv": 2, "recurrent": 2})
    hybrid.decode(8, "0:0+4")
    assert ((260, 268)[release], 84) == (hybrid.save(0).size, hybrid.save(0, partial=True).size)

    window = {"cells": 32, "swa_cells": 16, "n_swa": 4, "swa_type": "standard"}
    pair = Bench(rules, "iswa", **window, layers={"kv": 3, "swa": 1})
    pair.decode(12, "0:0+12")
    sizes = (pair.save(0).size, pair.save(0, partial=True).size)
    assert ((640, 120), (656, 128))[release] == sizes

    both_kinds = Bench(rules, "hybrid-iswa", **window, layers={"kv": 1, "swa": 1, "recurrent": 2})
    both_kinds.decode(10, "0:0+10")
    sizes = (both_kinds.save(0).size, both_kinds.save(0, partial=True).size)
    assert ((444, 204), (460, 212))[release] == sizes


@both
def test_a_chunked_window_saves_its_chunk(rules: MemoryRules) -> None:
    b = Bench(rules, "iswa", cells=32, swa_cells=12, n_swa=4, swa_type="chunked")
    b.decode(4, "0:0+4")
    b.decode(4, "0:4+4")
    b.decode(1, "0:8+1")
    assert b.pos(0) == [0, 8]

    saved = b.save(0, partial=True)
    assert b.load(saved, 0, partial=True)
    assert ([8, 8], 1) == (b.pos(0), b.used("swa"))


@both
def test_a_symmetric_window_saves_in_cell_order(rules: MemoryRules) -> None:
    b = Bench(rules, "iswa", cells=32, swa_cells=8, n_swa=4, swa_type="symmetric")
    b.decode(8, "0:0+8")
    b.decode(1, "0:8+1")
    assert b.pos(0) == [1, 8]

    assert b.load(b.save(0, partial=True), 0, partial=True)
    assert b.dump("swa", ids=False) == "8 6 7"


@both
def test_a_standard_window_masks(rules: MemoryRules) -> None:
    b = twenty_four(rules)
    assert b.dump("swa") == "5{0} 6{0} 2{0} 3{0} 0{1} 1{1} 4{0} 2{1}"

    assert ["1.11..1."] == b.mask("swa", "0:5+1")
    assert ["11.1..1."] == b.mask("swa", "0:6+1")
    assert ["1111..1."] == b.mask("swa", "0:5+1", causal=False)


@both
def test_a_chunked_window_masks(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", cells=10, n_swa=4, swa_type="chunked")
    b.decode(10, "0:0+10")

    assert ["....1111.."] == b.mask("kv", "0:7+1")
    assert ["........1."] == b.mask("kv", "0:8+1")


@both
def test_a_symmetric_window_masks(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", cells=6, n_swa=4, swa_type="symmetric")
    b.decode(6, "0:0+6")

    assert ["..111."] == b.mask("kv", "0:4+1")
    assert ["11111."] == b.mask("kv", "0:2+1", causal=False)


def twenty_four(rules: MemoryRules) -> Bench:
    b = Bench(rules, "iswa", n_seq_max=2, cells=32, swa_cells=8, n_swa=4, swa_type="standard")
    b.decode(8, "0:0+4")
    b.decode(8, "1:0+2")
    assert b.decode(8, "0:4+3 1:2+1") == 0
    return b


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
