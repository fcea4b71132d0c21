"""Proposed patches, each by what it changes; the mends of wrong answers stand in their own file."""

from contextlib import nullcontext

import pytest

from cachesim.engines.base import Request
from cachesim.engines.llamacpp.checkpoint_events import (
    CheckpointCut,
    CheckpointErased,
    CheckpointKept,
)
from cachesim.engines.llamacpp.events import ChunkReused
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.profile import Profile
from cachesim.engines.release import Patch
from cachesim.errors import UpstreamAbort
from cachesim.units import as_tokens
from tests.engines.llamacpp.play import Play, run

MAY, JUNE, OCTOBER = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"


@pytest.mark.parametrize("patch", FAMILY.patches, ids=lambda patch: patch.name)
def test_every_patch_changes_the_rules_of_each_release_it_fits(patch: Patch[ServerRules]) -> None:
    for release in patch.fits:
        plain = FAMILY.release(release).rules
        assert FAMILY.rules(Profile("llama.cpp", release, (patch.name,))) != plain
        assert FAMILY.rules(Profile("llama.cpp", release)) == plain


def test_patches_are_laid_in_order() -> None:
    both = FAMILY.rules(Profile.parse(OCTOBER + "+24143+erase-equal"))
    assert not both.cache.load_consumes
    assert both.reuse.erasure == "equal"


def test_22384_makes_and_accepts_checkpoints_of_short_prompts() -> None:
    for profile, cached in ((MAY, 0), (MAY + "+22384", 6)):
        play = Play(profile, "hybrid")
        play.ask(run(range(10)), 8)
        assert play.ask(run(range(10)))[0] == cached


def test_22384_admits_a_state_of_one_token_too_many_and_the_cut_is_refused() -> None:
    """`pos_max <= pos_next` lets a state through that saw the token after the common prefix."""
    play = Play(MAY + "+22384", "recurrent")
    play.ask(run(range(10)), 8)
    reply = play.reply(run(range(5), range(500, 510)))
    assert reply.losses[1].detail["n_tokens"] == 6
    assert [(loss.rule, loss.after) for loss in reply.losses] == [
        ("memory-depth", 0),
        ("checkpoint-restored", 5),
        ("seq-rm-refused", 0),
    ]


def test_20428_goes_back_to_a_checkpoint_where_a_cut_is_refused() -> None:
    for profile, counts in ((MAY, (0, 10)), (MAY + "+20428", (6, 4))):
        play = Play(profile, "hybrid")
        play.ask(run(range(10)))
        assert play.ask(run(range(10))) == counts
    assert play.last is not None
    assert [(loss.rule, loss.before, loss.after) for loss in play.last.losses] == [
        ("last-token", 10, 9),
        ("checkpoint-fallback", 9, 6),
    ]


def test_24035_uses_a_checkpoint_that_leaves_one_token_and_none_that_leaves_nothing() -> None:
    """A prompt of 12 tokens leaves a checkpoint of 8: 9 of its tokens go on there, 8 do not."""
    for count, cached in ((9, 8), (8, 0)):
        play = Play(OCTOBER + "+24035", "recurrent")
        play.ask(run(range(12)))
        assert play.ask(run(range(count)))[0] == cached


def test_a_moved_chunk_is_an_event() -> None:
    play = Play(OCTOBER)
    play.ask(run(range(100)))
    play.reply(run(range(20), range(50, 100)), options={"n_cache_reuse": 16})
    moved = [each for each in play.engine.events if isinstance(each, ChunkReused)]
    assert [(each.size, each.source, each.target) for each in moved] == [(50, 50, 20)]


def test_a_slot_holds_the_tokens_that_were_moved() -> None:
    play = Play(OCTOBER)
    play.ask(run(range(100)))
    play.ask(run(range(20), range(50, 100)), options={"n_cache_reuse": 16})
    assert play.snapshot["slots"][0]["tokens"] == run(range(20), range(50, 100))


def test_a_checkpoint_that_is_erased_is_an_event() -> None:
    play = Play(OCTOBER, "recurrent")
    play.ask(run(range(20)))
    play.ask(run(range(500, 520)))
    erased = [each for each in play.engine.events if isinstance(each, CheckpointErased)]
    assert [(each.n_tokens, each.numbers) for each in erased] == [(16, "15 > 0")]


def test_a_checkpoint_that_stays_though_its_tokens_do_not_match_is_an_event() -> None:
    play = Play(OCTOBER, "recurrent")
    play.ask(run(range(5)))
    play.ask(run(range(500, 540)))
    kept = [each for each in play.engine.events if isinstance(each, CheckpointKept)]
    assert [(each.n_tokens, each.shared, each.numbers) for each in kept] == [(1, 0, "0 > 0")]


def test_24035_keeps_checkpoints_by_where_they_end() -> None:
    for profile, held in ((OCTOBER, [96, 101]), (OCTOBER + "+24035", [96])):
        play = Play(profile, "recurrent", ubatch_size=64)
        play.ask(run(range(100)))
        play.ask(run(range(100), range(200, 205)))
        play.ask(run(range(100), range(300, 500)))
        survivors = [each for each in play.checkpoints() if each in (96, 101)]
        assert survivors == held


@pytest.mark.parametrize("profile", [JUNE, OCTOBER])
def test_24035_in_its_later_form_lets_no_short_slot_block_an_entry(profile: str) -> None:
    plain, patched = Play(profile, "hybrid"), Play(profile + "+24035-lcp", "hybrid")
    for play in (plain, patched):
        play.ask(run(range(100), range(5000, 5005)))
        play.ask(run(range(900), range(6000, 6200)))
        play.ask(run(range(8000, 8100)))
    assert plain.reply(run(range(1000))).losses[0].rule == "cache-not-better"
    assert patched.reply(run(range(1000))).losses[0].rule == "memory-depth"


def test_25592_saves_the_end_of_a_prompt_however_close() -> None:
    for profile, held in ((JUNE, [32]), (JUNE + "+25592", [32, 96])):
        play = Play(profile, "hybrid", batch_size=256, ubatch_size=64)
        play.ask(run(range(100)))
        assert play.checkpoints() == held


def test_24891_keeps_what_lies_within_the_prompts_length() -> None:
    for profile, held in ((OCTOBER, []), (OCTOBER + "+24891", [96])):
        play = Play(profile, "recurrent", ctx_checkpoints=4)
        play.ask(run(range(100)))
        play.ask(run(range(50), range(500, 560)))
        assert [each for each in play.checkpoints() if each == 96] == held


def test_16983_taken_back_refuses_whoever_comes_to_a_full_slot() -> None:
    for profile, error in (("llama.cpp@b8672", None), ("llama.cpp@b8672-16983", "server_error")):
        play = Play(profile, ctx_size=256)
        play.ask(run(range(200)), 100)
        assert play.reply(run(range(500, 520))).error == error


def test_18391_taken_back_ends_the_process_where_a_cut_is_refused() -> None:
    play = Play("llama.cpp@b8672-18391", "hybrid")
    play.ask(run(range(100)), 1)
    with pytest.raises(UpstreamAbort, match="!is_processing"):
        play.ask(run(range(100)), 1)


def test_26893_parks_no_slot_that_was_used_for_infill() -> None:
    for profile, parked in ((OCTOBER, 1), (OCTOBER + "+26893", 0)):
        play = Play(profile, parallel=2, slot_prompt_similarity=0.0)
        play.ask(run(range(100)), options={"endpoint": "infill"})
        play.ask(run(range(500, 600)), options={"endpoint": "infill"})
        assert len(play.snapshot["prompt_cache"]) == parked


def test_infill_looks_up_no_parked_prompt() -> None:
    for endpoint, cached in (("completion", 99), ("infill", 0)):
        play = Play(OCTOBER, parallel=1)
        play.ask(run(range(100)))
        play.ask(run(range(500, 600)))
        assert play.ask(run(range(100)), options={"endpoint": endpoint})[0] == cached


@pytest.mark.parametrize(("patch", "ends"), [("", False), ("+22673-early", True)])
def test_22673_before_its_merge_saves_no_state_with_a_rollback_pending(
    patch: str, ends: bool
) -> None:
    """A client goes away right after drafts were taken back, and the next one parks the slot."""
    play = Play("llama.cpp@b9294" + patch, "hybrid-mtp", spec_type="draft-mtp")
    wrong = (as_tokens([3, 4, 5]),) * 9
    gone = play.engine.submit(
        Request(prompt=as_tokens(run(range(300, 400))), predict=40, drafts=wrong)
    )
    for _ in range(5):
        play.engine.step()
    play.engine.cancel(gone)
    expected = pytest.raises(UpstreamAbort, match="partial rollback") if ends else nullcontext()
    with expected:
        play.ask(run(range(500, 560)))


def test_a_change_whose_pull_request_is_not_known_says_what_may_have_been_it() -> None:
    unknown = [each for each in FAMILY.patches if each.landed and not each.pull]

    assert {each.name: FAMILY.upstream_of(each) for each in unknown} == {
        "counts-checked": "no pull request confirmed",
        "empty-batches-turn": "no pull request confirmed (perhaps #24843)",
        "refusals-abort": "no pull request confirmed (perhaps #22838)",
        "mtp-f16": "no pull request confirmed",
        "outputs-reserved": "no pull request confirmed",
        "processed-reset": "no pull request confirmed",
        "rank-in-pieces": "no pull request confirmed",
        "sequence-header": "no pull request confirmed",
        "wider-positions": "no pull request confirmed",
        "unseen-before-b11549": "no pull request confirmed (perhaps #24843 or #26221)",
    }
    assert FAMILY.upstream_of(FAMILY.patch("erase-equal")) == ""


def test_5420_taken_back_leaves_the_last_token_in_two_cells() -> None:
    for profile, error in (("-5420", "server_error"), ("-5420-14177", None), ("", None)):
        play = Play("llama.cpp@b8672" + profile)
        first = play.reply(run(range(40)), 1)
        again = play.reply(run(range(40)), 1)
        assert again.error == error
        if error is None:
            assert (again.logits == first.logits).all() == (profile == "")


def test_12161_taken_back_loses_cells_and_nobody_means_that() -> None:
    """a b c d e becomes a c e: c's own cells go with d. Only a moved chunk is an approximation."""
    for profile, why in (("-12161-14177", None), ("", "chunk-reuse")):
        play = Play("llama.cpp@b8672" + profile, cache_reuse=1)
        play.ask(run(range(100)))
        after = play.reply([*run(range(20)), *run(range(40, 60)), *run(range(80, 100)), 7])
        assert (after.cached, after.approximated) == (60, why)


def test_16382_taken_back_gives_no_checkpoint_to_an_exact_state() -> None:
    for profile, held in (("b8672", [96]), ("b8672-16382", [])):
        play = Play(f"llama.cpp@{profile}", "hybrid")
        play.ask(run(range(100)))
        assert play.checkpoints() == held


def test_17009_taken_back_refuses_to_shift_a_recurrent_state() -> None:
    for profile, error in (("b8672", None), ("b8672-17009", "server_error")):
        play = Play(f"llama.cpp@{profile}", "hybrid", ctx_size=256, context_shift=True)
        assert play.reply(run(range(200)), 100).error == error


def test_19408_taken_back_makes_one_checkpoint_when_the_prompt_is_done() -> None:
    for profile, held in (("b8672", [84, 596]), ("b8672-19408", [600])):
        play = Play(f"llama.cpp@{profile}", "hybrid")
        play.ask(run(range(600)))
        assert play.checkpoints() == held


def test_24797_cuts_the_numbers_of_a_checkpoint_and_not_its_state() -> None:
    for profile, cached, held in (("b9713+24797", 480, [84, 480]), ("b9713", 84, [84, 496])):
        play = Play(f"llama.cpp@{profile}", "hybrid")
        play.ask(run(range(600)))
        assert play.ask([*run(range(480)), *run(range(700, 720))])[0] == cached
        assert play.checkpoints() == held


def test_24797_says_which_numbers_of_a_checkpoint_it_cuts() -> None:
    play = Play("llama.cpp@b9713+24797", "hybrid")
    play.ask(run(range(600)))
    play.ask([*run(range(480)), *run(range(700, 720))])
    said = [each.sentence for each in play.engine.events if isinstance(each, CheckpointCut)]
    expected = (
        "checkpoint 596[0..595] is relabelled 480[0..479]; the state that it saved is not cut"
    )
    assert [expected] == said
