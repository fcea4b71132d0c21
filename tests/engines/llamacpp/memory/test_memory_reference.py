"""Worked examples for the memory layer's cells, in both releases."""

import pytest

from cachesim.engines.llamacpp.memory.rules import MemoryRules
from tests.engines.llamacpp.memory.bench import BOTH, NAMES, Bench

both = pytest.mark.parametrize("rules", BOTH, ids=NAMES)


@both
def test_a_unified_cache_of_8_cells(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=4, cells=8)
    assert (0, 0) == (b.decode(512, "0:0+3"), b.decode(512, "1:0+3"))
    assert (6, "0{0} 1{0} 2{0} 0{1} 1{1} 2{1}") == (b.head(), b.dump())

    assert b.rm(0, -1, -1)
    assert (0, ". . . 0{1} 1{1} 2{1}") == (b.head(), b.dump())

    assert b.decode(512, "2:0+4") == 0
    assert (7, "0{2} 1{2} 2{2} 0{1} 1{1} 2{1} 3{2}") == (b.head(), b.dump())
    assert ([-1, -1], [0, 2], [0, 3]) == (b.pos(0), b.pos(1), b.pos(2))

    assert b.rm(1, 1, 2)
    assert (4, [0, 2]) == (b.head(), b.pos(1))

    assert b.decode(512, "1:3+2") == 0
    full = "0{2} 1{2} 2{2} 0{1} 3{1} 2{1} 3{2} 4{1}"
    assert (8, full) == (b.head(), b.dump())
    assert (-1, 1, full) == (b.decode(512, "1:3+1"), b.decode(512, "1:5+1"), b.dump())


@both
def test_the_head_goes_down_when_cells_are_freed_and_to_0_by_a_shift(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=16)
    b.decode(512, "0:0+8")
    b.decode(512, "1:0+4")
    b.rm(0, -1, -1)
    assert (0, 4) == (b.head(), b.used())
    b.rm(1, 3, -1)
    assert (0, 3) == (b.head(), b.used())

    b.decode(512, "1:3+1")
    assert (1, "3{1} . . . . . . . 0{1} 1{1} 2{1}") == (b.head(), b.dump())

    b.context.seq_add(1, 100, 200, 5)
    assert b.head() == 0


@both
def test_a_shift_moves_shared_cells_for_everybody(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=8)
    b.decode(512, "0:0+6")
    b.context.seq_cp(0, 1, 0, 3)
    assert b.dump() == "0{0,1} 1{0,1} 2{0,1} 3{0} 4{0} 5{0}"
    assert ([0, 5], [0, 2]) == (b.pos(0), b.pos(1))

    b.context.seq_add(0, 2, -1, -3)
    assert (2, "0{0,1} 1{0,1} . 0{0}~-3 1{0}~-3 2{0}~-3") == (b.head(), b.dump())
    assert ([0, 2], [0, 1]) == (b.pos(0), b.pos(1))

    b.context.memory.update()
    assert b.rm(0, 0, 1)
    assert (2, "0{1} 1{0,1} . . 1{0} 2{0}") == (b.head(), b.dump())
    assert ([1, 2], [0, 1]) == (b.pos(0), b.pos(1))


@both
def test_a_division_counts_its_shift_with_the_opposite_sign(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", cells=8)
    b.decode(512, "0:0+6")
    b.context.seq_div(0, 2, -1, 2)
    assert (6, "0 1 1~1 1~2 2~2 2~3") == (b.head(), b.dump(ids=False))
    assert b.pos(0) == [0, 2]

    assert b.decode(512, "0:3+1") == 0
    assert ("0 1 1 1 2 2 3", [0, 3]) == (b.dump(ids=False), b.pos(0))


@both
def test_a_window_loses_what_a_cut_needs_and_a_partial_state_brings_it_back(
    rules: MemoryRules,
) -> None:
    b = Bench(rules, "iswa", cells=32, swa_cells=8, n_swa=4, swa_type="standard")
    b.decode(4, "0:0+4")
    b.decode(4, "0:4+4")
    assert ("0 1 2 3 4 5 6 7", [0, 7]) == (b.dump("swa", ids=False), b.pos(0))
    b.decode(4, "0:8+1")
    assert [1, 8] == b.pos(0)
    b.decode(4, "0:9+1")
    assert [2, 9] == b.pos(0)
    b.decode(4, "0:10+4")
    assert (6, "8 9 10 11 12 13 6 7") == (b.head("swa"), b.dump("swa", ids=False))
    assert b.pos(0) == [6, 13]

    assert b.rm(0, 12, -1)
    assert (4, "8 9 10 11 . . 6 7") == (b.head("swa"), b.dump("swa", ids=False))
    assert b.pos(0) == [6, 11]
    saved = b.save(0, partial=True)

    b.decode(4, "0:12+6")
    assert ("16 17 10 11 12 13 14 15", [10, 17]) == (b.dump("swa", ids=False), b.pos(0))
    assert b.used() == 18

    assert b.load(saved, 0, partial=True)
    assert (4, "8 9 10 11", [8, 11]) == (b.head("swa"), b.dump("swa", ids=False), b.pos(0))
    assert b.used() == 18
    assert b.rm(0, 12, -1)
    assert (12, [8, 11]) == (b.used(), b.pos(0))


@both
def test_a_full_size_window_cache_reclaims_while_cells_are_empty(rules: MemoryRules) -> None:
    b = Bench(rules, "iswa", n_seq_max=2, cells=64, swa_cells=64, n_swa=4, swa_type="standard")
    b.decode(32, "1:0+5")
    b.decode(32, "0:0+10")
    b.rm(1, -1, -1)
    b.decode(32, "0:10+8")

    assert "10 11 12 13 14 15 16 17 3 4 5 6 7 8 9" == b.dump("swa", ids=False)
    assert "10 11 12 13 14 0 1 2 3 4 5 6 7 8 9 15 16 17" == b.dump(ids=False)
    assert (8, [3, 17], 15) == (b.head("swa"), b.pos(0), b.used("swa"))


@both
def test_shared_cells_are_not_reclaimed_until_they_become_exclusive(rules: MemoryRules) -> None:
    b = Bench(rules, "iswa", n_seq_max=3, cells=64, swa_cells=12, n_swa=4, swa_type="standard")
    b.decode(8, "0:0+6")
    b.context.seq_cp(0, 1, -1, -1)
    b.decode(8, "0:6+6")
    assert ([0, 11], [0, 5]) == (b.pos(0), b.pos(1))

    b.decode(8, "0:12+2")
    one = "0{1} 1{1} 2{1} 3{1} 4{1} 5{1} 12{0} 13{0} 8{0} 9{0} 10{0} 11{0}"
    assert (one, [8, 13]) == (b.dump("swa"), b.pos(0))

    b.decode(8, "1:6+1")
    assert ([9, 13], [0, 6]) == (b.pos(0), b.pos(1))
    assert b.dump("swa").split()[8] == "6{1}"
    b.context.seq_cp(0, 2, 10, -1)
    assert b.pos(2) == [10, 13]


@both
def test_a_failed_decode_loses_positions_of_an_idle_sequence(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=12, n_swa=4, swa_type="standard")
    b.decode(512, "1:0+10")
    b.rm(1, 3, 4)

    assert b.decode(8, "0:0+16") == 1
    assert ("0 1 . . 4 5 6 7 8 9", [0, 9]) == (b.dump(ids=False), b.pos(1))
    assert (3, [-1, -1]) == (b.head(), b.pos(0))


@both
def test_streams_are_copied_whole_and_kept_apart(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=3, cells=8, unified=False)
    b.decode(512, "0:0+5")
    b.decode(512, "1:0+3")
    b.context.seq_cp(0, 1, -1, -1)
    assert ("0 1 2 3 4", 5) == (b.dump(stream=1, ids=False), b.head(stream=1))
    assert ([0, 4], [0, 4], [-1, -1]) == (b.pos(0), b.pos(1), b.pos(2))

    b.context.seq_keep(0)
    assert b.dump(stream=1) == "0{1} 1{1} 2{1} 3{1} 4{1}"
    assert b.rm(-1, 2, 4)
    for stream in (0, 1):
        assert ("0 1 . . 4", 2) == (b.dump(stream=stream, ids=False), b.head(stream=stream))
    assert ([0, 4], [0, 4]) == (b.pos(0), b.pos(1))


@both
def test_a_failed_decode_gives_a_stream_the_head_of_another(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=8, unified=False)
    b.decode(512, "0:0+5")
    b.decode(512, "1:0+3")
    b.rm(1, 1, 2)
    assert b.head(stream=1) == 1

    assert b.decode(4, "1:3+8") == 1
    assert b.head(stream=1) == 5


@both
def test_a_failed_compute_is_cut_off_a_plain_cache(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", cells=16)
    b.decode(8, "0:0+4")

    assert b.decode(2, "0:4+4", fail=(1, 2)) == 2
    assert b.pos(0) == [0, 5]
