"""Entries of the RAM prompt cache and companions' refusals, by hand from upstream's rules."""

import pytest

from cachesim.engines.ik_llama.speculative import StrictTailCompanion, WindowCompanion
from cachesim.units import Pos, Token

# -- companions ------------------------------------------------------------------------------------


def test_a_companion_of_one_position_refuses_whatever_leaves_a_part() -> None:
    """False iff 0 < p0 <= t or 0 < p1 <= t; what reaches the start leaves nothing."""
    for tail in (-1, 0, 5):
        for p0 in range(-1, 8):
            for p1 in range(-1, 8):
                companion = StrictTailCompanion()
                assert -1 == companion.tail
                companion.tail = tail
                start = max(p0, 0)
                refused = 0 < start <= tail or 0 < p1 <= tail
                assert refused != companion.seq_rm(p0, p1)
                gone = not refused and start <= tail
                assert (-1 if gone else tail) == companion.tail


def test_a_companion_of_one_position_is_moved_with_its_range() -> None:
    moved = {}
    for p0, p1 in ((0, -1), (5, -1), (6, -1), (0, 5), (0, 6), (5, 6)):
        companion = StrictTailCompanion()
        companion.tail = 5
        companion.seq_add(p0, p1, -2)
        moved[p0, p1] = companion.tail

    assert {(0, -1): 3, (5, -1): 3, (6, -1): 5, (0, 5): 5, (0, 6): 3, (5, 6): 3} == moved


def fed(companion: WindowCompanion, first: int, count: int) -> bool:
    return companion.decode([Token(0)] * count, Pos(first), []).taken


def test_a_window_rolls_as_in_the_example_of_three_thousand_tokens() -> None:
    """Window 128, ubatches of 512: rows for 768. 2,048 tokens leave base 1408; 3,000 base 2432."""
    companion = WindowCompanion(window=128, n_ubatch=512)

    assert 768 == companion.capacity
    assert fed(companion, 0, 2048)
    assert (1408, 640, 2047) == (companion.base, companion.live, companion.tail)
    assert fed(companion, 2048, 952)
    assert (2432, 568, 2999) == (companion.base, companion.live, companion.tail)
    assert not companion.seq_rm(2048, -1)
    assert not companion.seq_rm(2559, -1)
    assert companion.seq_rm(2560, -1)
    assert (2432, 128, 2559) == (companion.base, companion.live, companion.tail)
    assert not fed(companion, 2561, 1)
    assert companion.seq_rm(2560, -1)
    assert companion.seq_rm(0, -1)
    assert (0, 0, -1) == (companion.base, companion.live, companion.tail)


@pytest.mark.parametrize(
    ("window", "n_ubatch", "capacity"),
    [(128, 512, 768), (256, 256, 512), (257, 256, 768), (10, 64, 512), (128, 128, 512)],
)
def test_rows_of_a_window_come_in_multiples_of_256(
    window: int, n_ubatch: int, capacity: int
) -> None:
    assert capacity == WindowCompanion(window=window, n_ubatch=n_ubatch).capacity


def test_a_window_rolls_when_it_is_full_and_no_token_earlier() -> None:
    companion = WindowCompanion(window=256, n_ubatch=256)
    assert fed(companion, 0, 512)
    assert (0, 512) == (companion.base, companion.live)
    assert companion.seq_rm(100, -1)
    assert (0, 100) == (companion.base, companion.live)
    assert fed(companion, 100, 412)
    assert fed(companion, 512, 1)
    assert (256, 257) == (companion.base, companion.live)
    assert not companion.seq_rm(300, 400)
    assert companion.seq_rm(0, 256)
    assert not companion.seq_rm(0, 257)
    assert companion.seq_rm(513, -1)
    assert (256, 257) == (companion.base, companion.live)
