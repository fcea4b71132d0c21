"""Bounds that conversations seldom meet exactly, worked out from upstream's own expressions."""

import pytest

from cachesim.engines.llamacpp.checkpoints import BEFORE_21510, THRESHOLD, accept_tests
from cachesim.engines.llamacpp.events import ContextShifted
from cachesim.engines.llamacpp.family import FAMILY
from tests.engines.llamacpp.play import Play, run

BOTH = pytest.mark.parametrize("profile", ["llama.cpp@b9093", "llama.cpp@b11549"])


@BOTH
@pytest.mark.parametrize(
    ("wanted", "kept", "discarded"), [(0, 0, 127), (100, 100, 77), (500, 252, 1), (-1, 200, 27)]
)
def test_a_shift_keeps_all_but_four_tokens_at_most(
    profile: str, wanted: int, kept: int, discarded: int
) -> None:
    """At 255 of 256 tokens: half of those behind `n_keep` go, which is at most n_ctx - 4."""
    play = Play(profile, ctx_size=256, context_shift=True)
    play.ask(run(range(200)), 60, options={"n_keep": wanted})
    shift = next(each for each in play.engine.events if isinstance(each, ContextShifted))

    assert (kept, 255 - kept, discarded) == (shift.n_keep, shift.n_left, shift.n_discard)


@BOTH
def test_chunks_are_looked_for_behind_the_last_one_only(profile: str) -> None:
    """The second chunk lies before the first in the slot, and is not looked for there."""
    play = Play(profile, cache_reuse=16)
    play.ask(run(range(20), range(100, 140), range(200, 220), range(300, 310)))

    again = run(range(20), range(200, 220), range(120, 140), range(400, 405))
    assert (40, 25) == play.ask(again)


@BOTH
def test_a_cut_before_what_was_moved_leaves_nothing_approximate(profile: str) -> None:
    """The shift moved what lies behind the first 20 tokens; the next prompt keeps these alone."""
    play = Play(profile, ctx_size=256, context_shift=True)
    shifted = play.reply(run(range(200)), 60, options={"n_keep": 20})
    cut = play.reply(run(range(20), range(400, 430)), 1)

    assert ("context-shift", None) == (shifted.approximated, cut.approximated)
    assert 20 == cut.cached


def test_before_21510_a_checkpoint_from_position_0_passes_no_threshold_of_0() -> None:
    found = {
        release: {THRESHOLD, BEFORE_21510}
        & {*accept_tests(FAMILY.release(release).rules.reuse, exact=False)}
        for release in ("b8672", "b9093", "b11549")
    }

    assert {"b8672": {BEFORE_21510}, "b9093": {THRESHOLD}, "b11549": {THRESHOLD}} == found


@BOTH
def test_an_empty_slot_is_saved_and_read_back(profile: str) -> None:
    play = Play(profile)
    play.act("slot-save", 0, "empty")
    play.ask(run(range(50)), 3)
    restored = play.act("slot-restore", 0, "empty")

    assert (None, 0) == (restored.error, play.tokens())
