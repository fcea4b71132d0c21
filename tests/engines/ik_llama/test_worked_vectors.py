"""Worked examples: matches, cached and processed counts, checkpoints."""

import pytest

from cachesim.errors import OptionError
from tests.engines.ik_llama.worked_kit import Played, run_of

a = run_of(19000, 1400)


def test_a_slot_too_small_to_shift_is_refused() -> None:
    """A shift would keep -2 of 2 tokens: the token list grew by half with each token."""
    with pytest.raises(OptionError, match="4 keeps a negative number of tokens"):
        Played("dense", ctx_size=7, parallel=2)
    slots = Played("dense", ctx_size=8, parallel=2).server.slots

    assert [4, 4] == [slot.n_ctx for slot in slots]
