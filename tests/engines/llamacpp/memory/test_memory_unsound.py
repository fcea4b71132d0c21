"""The oracle detects errors of upstream's memory by its own rules."""

import numpy as np
import pytest

from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.context import PlannedFailure
from cachesim.engines.llamacpp.memory.hybrid import WindowPair
from cachesim.engines.llamacpp.memory.rules import B9509, B11434, MemoryRules
from cachesim.typed import of_kind
from cachesim.units import as_tokens
from cachesim.verify.oracle import cold_logits
from tests.engines.llamacpp.memory.bench import BOTH, NAMES
from tests.engines.llamacpp.memory.lab import Lab, tokens_of

both = pytest.mark.parametrize("rules", BOTH, ids=NAMES)


def begun(preset: str, rules: MemoryRules, n: int, **options: object) -> Lab:
    """A lab whose sequence 0 has said `n` tokens in one ubatch."""
    lab = Lab(preset, rules, n_ubatch=16, **options)  # type: ignore[arg-type]
    assert lab.go_on(0, n)
    return lab


@both
def test_a_rollback_behind_a_short_ubatch_reads_a_stale_plane_or_something_undefined(
    rules: MemoryRules,
) -> None:
    lab = begun("hybrid-delta", rules, 6, n_rs_seq=3)
    assert lab.go_on(0, 1)
    assert lab.cut(0, 5)
    assert not lab.go_on(0)


def test_rolling_back_the_whole_last_ubatch_is_right_only_by_luck() -> None:
    unlucky = begun("hybrid-delta", B11434, 6, n_rs_seq=3)
    assert unlucky.go_on(0, 2)
    assert unlucky.cut(0, 6)
    assert not unlucky.go_on(0)

    lucky = begun("hybrid-delta", B11434, 6, n_rs_seq=3)
    assert lucky.cut(0, 5)
    assert lucky.go_on(0, 1)
    assert lucky.cut(0, 5)
    assert lucky.go_on(0)


def test_the_earlier_release_stacks_rollbacks_and_forgets_the_first() -> None:
    lab = begun("hybrid-delta", B9509, 6, n_rs_seq=3)
    assert lab.cut(0, 5)
    assert lab.cut(0, 4)
    assert not lab.go_on(0)


def test_the_later_release_refuses_the_second_rollback_and_stays_right() -> None:
    lab = begun("hybrid-delta", B11434, 6, n_rs_seq=3)
    assert lab.cut(0, 5)
    assert not lab.cut(0, 4)
    assert lab.go_on(0)


@both
def test_a_pending_rollback_survives_a_removal_up_to_a_position(rules: MemoryRules) -> None:
    lab = begun("hybrid-delta", rules, 6, n_rs_seq=3)
    assert lab.cut(0, 3)
    assert lab.context.seq_rm(0, 0, 3)
    lab.said[0] = []
    assert not lab.go_on(0, 2)


@both
def test_a_pending_rollback_survives_keeping_another_sequence(rules: MemoryRules) -> None:
    lab = begun("hybrid-delta", rules, 6, n_rs_seq=3)
    assert lab.go_on(1, 2)
    assert lab.cut(0, 3)
    lab.context.seq_keep(1)
    lab.said[0] = []
    assert not lab.go_on(0, 2)


@both
def test_a_copy_of_a_rolled_back_sequence_reads_the_live_row(rules: MemoryRules) -> None:
    lab = begun("hybrid-delta", rules, 6, n_rs_seq=3)
    assert lab.cut(0, 4)
    lab.copy(0, 1)
    assert not lab.go_on(1)


@both
def test_rolling_back_one_of_two_that_share_a_cell_moves_the_other_wrongly(
    rules: MemoryRules,
) -> None:
    lab = begun("hybrid-delta", rules, 6, n_rs_seq=3)
    lab.copy(0, 1)
    assert lab.cut(0, 4)
    lab.context.seq_rm(1, 4, -1)
    del lab.said[1][4:]
    assert not lab.go_on(1)


def test_planes_do_not_follow_a_cell_that_is_swapped() -> None:
    lab = Lab("hybrid-delta", B11434, n_seq_max=4, n_ubatch=8, n_rs_seq=2)
    assert lab.go_on(3, 4)
    assert lab.say({0: tokens_of(5), 1: tokens_of(5, of=1)})
    assert lab.say({2: tokens_of(1, of=2), 3: [300]})
    assert lab.cut(0, 3)
    assert not lab.go_on(0)


@both
def test_a_rollback_right_after_a_restore_reads_what_was_there_before(rules: MemoryRules) -> None:
    lab = begun("hybrid-delta", rules, 6, n_rs_seq=3)
    blob = lab.context.state_seq_get_data(0)
    lab.said[1] = list(lab.said[0])
    assert lab.context.state_seq_set_data(blob, 1)
    assert lab.cut(1, 5)
    assert not lab.go_on(1)


def test_a_split_by_sequence_can_leave_too_few_tokens_for_the_planes() -> None:
    def cut_after_17(rules: MemoryRules) -> bool:
        lab = Lab("hybrid-delta", rules, n_ubatch=8, n_rs_seq=2)
        assert lab.go_on(0, 17)
        assert lab.cut(0, 15)
        return lab.go_on(0)

    assert (False, True) == (cut_after_17(B9509), cut_after_17(B11434))


@both
def test_a_hybrid_grants_the_removal_of_a_middle_that_its_state_has_folded_in(
    rules: MemoryRules,
) -> None:
    lab = begun("hybrid", rules, 8)
    assert lab.context.seq_rm(0, 2, 4)
    assert not lab.go_on(0)


@both
def test_a_partial_restore_without_a_cut_doubles_positions(rules: MemoryRules) -> None:
    lab = begun("hybrid", rules, 4)
    blob = lab.context.state_seq_get_data(0, partial=True)
    assert lab.go_on(0, 3)
    assert lab.context.state_seq_set_data(blob, 0, partial=True)
    del lab.said[0][4:]
    assert not lab.say({0: [301, 302]})


@both
def test_a_failed_compute_leaves_positions_without_a_state(rules: MemoryRules) -> None:
    lab = begun("hybrid", rules, 4)
    lab.context.n_ubatch = 2
    new = tokens_of(8, of=7)[4:]
    assert lab.context.decode(lab.batch({0: new}), fail=PlannedFailure(ubatch=1, code=2)) == 2
    lab.said[0] += new
    assert lab.context.seq_pos_max(0) == 7
    assert not lab.go_on(0)


@both
def test_a_negative_position_lets_a_state_start_anywhere_without_a_reset(
    rules: MemoryRules,
) -> None:
    lab = begun("recurrent", rules, 4)
    lab.context.seq_add(0, 0, -1, -9)
    assert (-6, -1) == (lab.context.seq_pos_min(0), lab.context.seq_pos_max(0))
    lab.said[0] = []
    assert not lab.go_on(0, 2)


@both
def test_a_window_that_was_cut_back_lacks_keys_and_says_nothing(rules: MemoryRules) -> None:
    lab = Lab("swa", rules, n_seq_max=1, n_ubatch=4, swa_cells=8)
    for n in (4, 4, 1, 1, 4):
        assert lab.go_on(0, n)
    assert lab.cut(0, 12)
    assert lab.window_is_whole
    assert lab.cut(0, 8)
    assert (6, False) == (lab.context.seq_pos_min(0), lab.window_is_whole)
    assert not lab.go_on(0)


@both
def test_a_busy_sequence_reclaims_an_idle_ones_window_even_at_full_size(rules: MemoryRules) -> None:
    lab = Lab("swa", rules, n_seq_max=2, n_ubatch=32, swa_cells=64)
    assert lab.go_on(0, 30)
    assert lab.go_on(1, 20)
    assert lab.cut(0, 0)
    assert lab.go_on(0, 32)
    pair = of_kind(WindowPair, lab.context.memory)
    assert (2, 64 - 14) == (pair.swa.seq_pos_min(1), pair.swa.streams.cells[0].used)

    assert lab.cut(1, 3)
    assert not lab.go_on(1)


def test_a_dry_run_purges_what_an_earlier_ubatch_still_needs() -> None:
    """Cells are found for the whole batch first; what that purges is not put back.

    The third ubatch takes over cells of the first one, whose sequence is purged below them: of
    positions 0 and 1, which the first ubatch, computed only now, should have seen.
    """
    lab = Lab("hybrid-swa", B11434, swa_cells=18, n_ubatch=6, n_rs_seq=1)
    assert lab.say({1: tokens_of(2, of=2), 0: tokens_of(2, of=1), 2: tokens_of(4, of=3)})
    assert lab.say({2: tokens_of(5, of=4)})

    news = {0: tokens_of(7, of=3), 1: tokens_of(6, of=4)}
    alone = Lab("hybrid-swa", B11434, swa_cells=64, n_ubatch=16)
    assert alone.say({1: tokens_of(2, of=2), 0: tokens_of(2, of=1), 2: tokens_of(4, of=3)})
    assert (True, False) == (alone.say(news), lab.say(news))


@both
def test_a_full_size_window_cache_still_reclaims(rules: MemoryRules) -> None:
    lab = Lab("swa", rules, n_seq_max=2, n_ubatch=32, swa_cells=64)
    assert lab.go_on(1, 5)
    assert lab.go_on(0, 10)
    lab.cut(1, 0)
    assert lab.go_on(0, 8)
    assert [3, 17] == [lab.context.seq_pos_min(0), lab.context.seq_pos_max(0)]
    assert lab.cut(0, 3)
    assert not lab.go_on(0)


@both
def test_two_cells_at_one_position_are_both_seen(rules: MemoryRules) -> None:
    lab = begun("dense", rules, 4)
    batch = Batch(
        tokens=(300, 301, 302), positions=(4, 4, 5), seqs=((0,),) * 3, outputs=(False, False, True)
    )
    assert lab.context.decode(batch) == 0
    cold = cold_logits(lab.network, as_tokens([*lab.said[0], 301, 302]), rows=[5])[0]
    assert lab.network.difference(lab.context.logits(2), cold) > 0


@both
def test_a_hole_is_not_noticed(rules: MemoryRules) -> None:
    lab = begun("dense", rules, 8)
    assert lab.context.seq_rm(0, 3, 5)
    assert [0, 7] == [lab.context.seq_pos_min(0), lab.context.seq_pos_max(0)]
    assert not lab.go_on(0)


def shifted(rules: MemoryRules, *, saved_before_update: bool) -> tuple[Lab, Batch]:
    """Drop the first 3 of 9 tokens and move the rest up; park and reload, early or late."""
    lab = begun("dense", rules, 9, arithmetic="float")
    lab.context.seq_rm(0, 0, 3)
    lab.context.seq_add(0, 3, -1, -3)
    if not saved_before_update:
        lab.context.memory.update()
    blob = lab.context.state_seq_get_data(0)
    lab.context.clear(data=True)
    assert lab.context.state_seq_set_data(blob, 0)
    return lab, Batch.of([300], start=6)


@both
def test_a_state_saved_between_a_shift_and_the_next_decode_never_turns_its_keys(
    rules: MemoryRules,
) -> None:
    late, batch = shifted(rules, saved_before_update=False)
    assert late.context.decode(batch) == 0
    early, _ = shifted(rules, saved_before_update=True)
    assert early.context.decode(batch) == 0

    straight = begun("dense", rules, 9, arithmetic="float")
    straight.context.seq_rm(0, 0, 3)
    straight.context.seq_add(0, 3, -1, -3)
    assert straight.context.decode(batch) == 0
    assert straight.network.difference(late.context.logits(0), straight.context.logits(0)) == 0
    assert straight.network.difference(early.context.logits(0), straight.context.logits(0)) > 1e-6


@both
def test_a_division_turns_the_keys_the_wrong_way(rules: MemoryRules) -> None:
    lab = begun("dense", rules, 6, arithmetic="float")
    cache = of_kind(AttentionCache, lab.context.memory)
    layer = cache.layers[-1]
    before = cache.rows[0].keys[layer][64 + 5].copy()

    lab.context.seq_div(0, 5, 6, 5)
    lab.context.memory.update()

    after = cache.rows[0].keys[layer][64 + 5]
    right = lab.network.rotate(layer, before[None], np.array([-4]))[0]
    wrong = lab.network.rotate(layer, before[None], np.array([4]))[0]
    assert lab.context.seq_pos_max(0) == 4
    assert (after == wrong).all()
    assert not (after == right).all()


@both
def test_a_stream_saved_before_its_copy_was_made_has_the_old_rows(rules: MemoryRules) -> None:
    lab = begun("dense", rules, 6, unified=False)
    assert lab.go_on(1, 6)
    lab.context.seq_cp(0, 1, -1, -1)
    lab.said[1] = list(lab.said[0])
    blob = lab.context.state_seq_get_data(1)
    assert lab.go_on(1)

    lab.said[2] = list(lab.said[0])
    assert lab.context.state_seq_set_data(blob, 2)
    assert not lab.go_on(2)


@both
def test_a_window_pair_restored_by_half_doubles_base_positions(rules: MemoryRules) -> None:
    lab = begun("swa", rules, 5, arithmetic="float")
    blob = lab.context.state_seq_get_data(0)
    partial = lab.context.state_seq_get_data(0, partial=True)
    base = blob.size - partial.size
    assert not lab.context.state_seq_set_data(blob.cut(base + 4 + 4 + 13), 1)
    assert lab.context.seq_pos_max(1) == -1

    assert not lab.go_on(1, 3)
    assert of_kind(WindowPair, lab.context.memory).base.streams.cells[0].members(1).sum() == 8


def test_a_truncated_state_leaves_cells_with_foreign_rows_in_the_earlier_release() -> None:
    lab = begun("dense", B9509, 6)
    blob = lab.context.state_seq_get_data(0)
    assert not lab.context.state_seq_set_data(blob.cut(blob.size - 10), 1)
    assert lab.context.seq_pos_max(1) == 5

    lab.said[1] = list(lab.said[0])
    assert not lab.go_on(1)


def test_device_buffers_of_one_sequence_overwrite_each_other() -> None:
    lab = begun("hybrid", B9509, 4)
    first = lab.context.state_seq_get_data(0, partial=True, on_device=True)
    assert lab.go_on(0, 3)
    lab.context.state_seq_get_data(0, partial=True, on_device=True)

    assert lab.context.state_seq_set_data(first, 0, partial=True) == first.size + 8
    assert lab.cut(0, 4)
    assert not lab.go_on(0)
