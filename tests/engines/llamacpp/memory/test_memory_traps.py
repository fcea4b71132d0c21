"""Oddities of the real memory layer that stay as they are; each has a test that names it."""

import pytest

from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.memory.create import SeqRm, can_seq_rm, seq_rm_type
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.rules import B9094, B9509, B11434, MemoryRules
from cachesim.errors import UpstreamAbort
from tests.engines.llamacpp.memory.bench import BOTH, NAMES, Bench
from tests.engines.llamacpp.memory.lab import Lab

both = pytest.mark.parametrize("rules", BOTH, ids=NAMES)


@both
def test_a_position_can_be_saved_and_up_for_reuse_at_once(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", cells=9, n_swa=4, swa_type="standard")
    b.decode(16, "0:0+9")
    assert b.save(0).size == 8 + 4 * 12 + rules.attention_header + 2 * (12 + 4 * 4)

    assert b.decode(16, "0:9+6") == 0  # positions 0 to 5 went, 5 was among the four saved
    assert b.pos(0) == [6, 14]


def test_before_windows_were_filtered_a_state_held_every_cell() -> None:
    b = Bench(B9094, "kv", cells=16, n_swa=4, swa_type="standard")
    b.decode(16, "0:0+9")

    assert 8 + 9 * 12 + 8 + 2 * (12 + 9 * 4) == b.save(0).size


@pytest.mark.parametrize(("rules", "left"), [(B9509, [0, 3]), (B11434, [-1, -1])], ids=NAMES)
def test_copying_twice_onto_one_sequence_leaves_phantoms_in_the_earlier_release(
    rules: MemoryRules, left: list[int]
) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=8)
    b.decode(8, "0:0+4")
    b.context.seq_cp(0, 1, -1, -1)
    b.context.seq_cp(0, 1, -1, -1)
    b.rm(1, -1, -1)

    assert (left, "0{0} 1{0} 2{0} 3{0}") == (b.pos(1), b.dump())
    assert ((-1, 0) if left[0] == 0 else (0, -1)) == (b.decode(8, "1:0+1"), b.decode(8, "1:4+1"))
    b.context.clear(data=False)
    assert b.pos(1) == [-1, -1]


@both
def test_a_copy_across_streams_ignores_its_range_or_aborts(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=8, unified=False)
    b.decode(8, "0:0+4 1:0+2")
    with pytest.raises(UpstreamAbort, match="a copy across streams must be full"):
        b.context.seq_cp(0, 1, 1, -1)
    with pytest.raises(UpstreamAbort, match="a copy across streams must be full"):
        b.context.seq_cp(0, 1, 0, 3)

    b.context.seq_cp(0, 1, 7, 7)  # as good as full: both ends reach the last cell
    assert "0{1} 1{1} 2{1} 3{1}" == b.dump(stream=1)


@both
@pytest.mark.parametrize("seq", [-2, 256])
def test_an_attention_cache_aborts_on_foreign_ids(rules: MemoryRules, seq: int) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=8)
    for call in (
        lambda: b.context.seq_rm(seq, 0, 1),
        lambda: b.context.seq_cp(0, seq, 0, 1),
        lambda: b.context.seq_keep(seq),
        lambda: b.context.seq_add(seq, 0, 1, 0),
        lambda: b.context.seq_div(seq, 0, 1, 1),
        lambda: b.context.seq_pos_min(seq),
        lambda: b.context.seq_pos_max(seq),
    ):
        with pytest.raises(UpstreamAbort, match="out of range"):
            call()


@both
def test_ids_beyond_the_sequences_are_held_but_cannot_be_restored(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=8)
    b.decode(8, "0:0+3")
    b.context.seq_cp(0, 200, -1, -1)
    assert b.dump() == "0{0,200} 1{0,200} 2{0,200}"

    saved = b.save(200)
    assert 8 + 3 * 8 + rules.attention_header + 2 * (12 + 3 * 4) == saved.size
    assert (False, [-1, -1]) == (b.load(saved, 200), b.pos(200))


@both
def test_a_rolled_back_destination_reads_its_own_plane_of_the_sources_row(
    rules: MemoryRules,
) -> None:
    b = Bench(rules, "recurrent", n_seq_max=2, n_rs_seq=3)
    b.decode(16, "0:0+6")
    b.decode(16, "1:0+6")
    b.rm(1, 4, -1)
    b.context.seq_cp(0, 1, -1, -1)
    assert ([0, 2], [5, 5]) == (b.recurrent.rs_idx, b.pos(1))

    b.context.seq_rm(0, -1, -1)
    b.decode(16, "1:6+1")
    assert b.state(1) == 5  # 4 + 1, although the copy stood at position 5


@both
def test_a_recurrent_decode_does_not_mind_positions_that_do_not_follow(rules: MemoryRules) -> None:
    b = Bench(rules, "recurrent")
    b.decode(8, "0:0+3")
    b.context.seq_add(0, 0, -1, -9)

    assert (0, [40, 40], 4) == (b.decode(8, "0:40+1"), b.pos(0), b.state(0))


@pytest.mark.parametrize(("rules", "primary"), [(B9509, 0), (B11434, 1)], ids=NAMES)
def test_the_last_id_listed_is_the_primary_one_in_the_later_release(
    rules: MemoryRules, primary: int
) -> None:
    b = Bench(rules, "hybrid", n_seq_max=2, cells=32)
    b.decode(8, "0:0+2")
    b.decode(8, "1:0+2")
    before = list(b.recurrent.cells.tail)
    assert b.decode(8, "0,1:2+1") == 0

    assert b.sources() == (before[primary],)
    assert b.context.reached[0][0].seqs[0][0] == primary


@both
def test_coupled_sequences_must_hold_the_same_positions(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=32)
    b.decode(8, "0:0+2 1:1+1")

    assert (-1, "have diverged") == (b.decode(8, "0,1:2+1"), b.context.refusal[-13:])


@both
def test_sets_that_only_overlap_in_part_are_accepted(rules: MemoryRules) -> None:
    assert Bench(rules, "kv", n_seq_max=3, cells=32).decode(8, "0,1:0+1 1,2:1+1") == 0


@both
def test_partial_saves_everything_of_a_plain_cache_and_of_recurrent_rows(
    rules: MemoryRules,
) -> None:
    for kind in ("kv", "recurrent"):
        b = Bench(rules, kind, cells=32)
        b.decode(8, "0:0+5")
        assert b.save(0).size == b.save(0, partial=True).size


@both
def test_an_empty_state_clears_the_recurrent_half_of_a_hybrid_only(rules: MemoryRules) -> None:
    b = Bench(rules, "hybrid", n_seq_max=2, cells=16)
    empty = b.save(1)
    b.decode(8, "0:0+3")

    assert b.load(empty, 0)
    assert (3, -1, [0, -1]) == (b.used(), b.recurrent.cells.tail[0], b.pos(0))


def test_a_hybrid_takes_attention_back_when_its_recurrent_half_fails() -> None:
    def restored(rules: MemoryRules) -> tuple[bool, int]:
        b = Bench(rules, "hybrid", n_seq_max=2, cells=16)
        b.decode(8, "0:0+3")
        blob = b.save(0)
        return b.load(blob.cut(blob.size - 3), 1), b.used()

    assert ((False, 6), (False, 3)) == (restored(B9509), restored(B11434))


@both
def test_a_hybrid_with_a_window_takes_nothing_back(rules: MemoryRules) -> None:
    b = Bench(
        rules, "hybrid-iswa", n_seq_max=2, cells=16, swa_cells=16, n_swa=4, swa_type="standard"
    )
    b.decode(8, "0:0+3")
    blob = b.save(0)

    assert not b.load(blob.cut(blob.size - 3), 1)
    assert (6, 6) == (b.used("kv"), b.used("swa"))


@both
def test_a_state_of_another_number_of_streams_leaves_the_destination_alone(
    rules: MemoryRules,
) -> None:
    two = Bench(rules, "kv", n_seq_max=2, cells=8, unified=False)
    two.decode(8, "0:0+2")
    one = Bench(rules, "kv", n_seq_max=2, cells=8)
    one.decode(8, "0:0+4")

    assert (False, [0, 3]) == (one.load(two.save(0), 0), one.pos(0))


@both
def test_saving_all_aborts_where_a_shared_cell_rolls_back_differently(rules: MemoryRules) -> None:
    b = Bench(rules, "recurrent", n_seq_max=2, n_rs_seq=3)
    b.decode(16, "0:0+6")
    b.context.seq_cp(0, 1, -1, -1)
    b.rm(0, 4, -1)

    with pytest.raises(UpstreamAbort, match="roll back differently"):
        b.save(-1)


def test_a_memory_without_recurrent_layers_moves_back_as_far_as_asked() -> None:
    def cut(rules: MemoryRules) -> tuple[bool, int]:
        b = Bench(rules, "recurrent", n_rs_seq=1)
        memory = b.context.memory = RecurrentMemory(rules, (), {}, n_seq_max=1, n_rs_seq=1)
        b.context.network.shapes = ()  # type: ignore[misc]
        b.decode(16, "0:0+6")
        return memory.seq_rm(0, 2, -1), memory.seq_pos_max(0)

    assert ((False, 5), (True, 1)) == (cut(B9509), cut(B11434))


def test_device_rows_in_other_pieces_abort_the_earlier_release() -> None:
    def restored(rules: MemoryRules) -> int:
        lab = Lab("dense", rules)
        assert lab.go_on(0, 4)
        assert lab.go_on(1, 4)
        assert lab.go_on(0, 4)
        blob = lab.context.state_seq_get_data(0, on_device=True)
        lab.context.seq_rm(0, -1, -1)
        lab.context.seq_rm(1, -1, -1)
        return lab.context.state_seq_set_data(blob, 0)

    assert restored(B11434) > 0
    with pytest.raises(UpstreamAbort, match="2 pieces for 1 runs"):
        restored(B9509)


@both
def test_device_rows_that_are_not_there_abort(rules: MemoryRules) -> None:
    one, other = Lab("dense", rules), Lab("dense", rules)
    assert one.go_on(0, 4)
    blob = one.context.state_seq_get_data(0, on_device=True)
    assert one.context.state_seq_get_size(0, on_device=True) < one.context.state_seq_get_size(0)

    with pytest.raises(UpstreamAbort, match="no rows of sequence 0"):
        other.context.state_seq_set_data(blob, 0)


def probed(preset: str, rules: MemoryRules, **options: int) -> tuple[SeqRm, int]:
    """The answer, and the last position of a conversation that was there before."""
    context: Context = Lab(preset, rules, **options).context  # type: ignore[arg-type]
    context.decode(Batch.of((300, 301, 302), start=0))
    return can_seq_rm(context), context.seq_pos_max(0)


@pytest.mark.parametrize("rules", [B9094, B9509, B11434], ids=lambda rules: rules.name)
def test_what_can_be_removed_follows_from_the_kind_of_memory(rules: MemoryRules) -> None:
    assert (SeqRm.PART, -1) == probed("dense", rules)
    assert (SeqRm.PART, -1) == probed("swa", rules)
    assert (SeqRm.FULL, -1) == probed("recurrent", rules)
    assert (SeqRm.FULL, -1) == probed("hybrid", rules)
    assert (SeqRm.FULL, -1) == probed("hybrid-delta", rules)


def test_bounded_rollback_is_answered_without_clearing_in_the_later_release() -> None:
    assert (SeqRm.FULL, -1) == probed("hybrid-delta", B9094, n_rs_seq=2)
    assert (SeqRm.RS, -1) == probed("hybrid-delta", B9509, n_rs_seq=2)
    assert (SeqRm.RS, 2) == probed("hybrid-delta", B11434, n_rs_seq=2)
    assert (SeqRm.FULL, -1) == probed("hybrid", B11434, n_rs_seq=2)


@both
def test_a_batch_longer_than_n_batch_aborts(rules: MemoryRules) -> None:
    lab = Lab("dense", rules, cells=64)
    with pytest.raises(UpstreamAbort, match="65 tokens > n_batch"):
        lab.context.decode(Batch.of((300,) * 65, start=0))


@both
def test_an_empty_batch_and_a_foreign_token_are_invalid(rules: MemoryRules) -> None:
    lab = Lab("dense", rules)
    vocabulary = lab.network.spec.vocabulary

    assert -1 == lab.context.decode(Batch(tokens=()))
    assert -1 == lab.context.decode(Batch.of((vocabulary,), start=0))
    assert f"invalid token {vocabulary}" == lab.context.refusal


@both
def test_pending_shifts_are_applied_even_if_the_decode_finds_no_place(rules: MemoryRules) -> None:
    b = Bench(rules, "kv", n_seq_max=2, cells=8)
    b.decode(8, "0:0+6")
    b.context.seq_add(0, 0, -1, 5)
    assert b.kv.streams.cells[0].has_shift
    assert -1 == b.decode(8, "0:3+1")
    assert b.kv.streams.cells[0].has_shift

    assert 1 == b.decode(8, "1:0+4")
    assert not b.kv.streams.cells[0].has_shift


def test_a_cache_that_cannot_shift_aborts_at_the_next_decode() -> None:
    b = Bench(B11434, "kv", cells=8)
    b.kv.can_shift = False
    b.decode(8, "0:0+3")
    b.context.seq_add(0, 0, -1, 1)

    with pytest.raises(UpstreamAbort, match="cannot be shifted"):
        b.decode(8, "0:4+1")


@both
def test_a_window_pair_can_shift_only_with_equal_sizes(rules: MemoryRules) -> None:
    sizes = {"n_swa": 4, "swa_type": "standard"}
    assert not Bench(rules, "iswa", cells=32, swa_cells=16, **sizes).context.can_shift
    assert Bench(rules, "iswa", cells=32, swa_cells=32, **sizes).context.can_shift


@both
def test_positions_of_several_sections_may_leave_gaps_but_cannot_be_moved(
    rules: MemoryRules,
) -> None:
    lab = Lab("hybrid-delta", rules)
    assert lab.go_on(0, 3)
    assert not lab.context.can_shift
    for move in (lab.context.seq_add, lab.context.seq_div):
        with pytest.raises(UpstreamAbort, match="several sections"):
            move(0, 0, -1, 1)

    assert 0 == lab.context.decode(Batch.of((300,), start=7))
    assert -1 == lab.context.decode(Batch.of((300,), start=7))
    assert "is not ahead of it" in lab.context.refusal
    assert -1 == Lab("dense", rules).context.decode(
        Batch(tokens=(300, 301), positions=(0, 2), seqs=((0,), (0,)))
    )


@both
def test_a_shift_of_a_window_pair_whose_base_has_no_layers_aborts(rules: MemoryRules) -> None:
    lab = Lab("hybrid-swa", rules)
    assert lab.go_on(0, 3)
    lab.context.seq_add(0, 0, -1, 1)

    with pytest.raises(UpstreamAbort, match="no layer gave the shifts a buffer"):
        lab.context.decode(Batch.of((300,), start=4))


@pytest.mark.parametrize("rules", [B9094, B9509, B11434], ids=lambda rules: rules.name)
@pytest.mark.parametrize("preset", ["dense", "swa", "recurrent", "hybrid", "hybrid-delta"])
@pytest.mark.parametrize("n_rs_seq", [0, 3])
def test_the_kind_is_known_without_a_trial(rules: MemoryRules, preset: str, n_rs_seq: int) -> None:
    context = Lab(preset, rules, n_rs_seq=n_rs_seq).context
    assert can_seq_rm(context) == seq_rm_type(context)
