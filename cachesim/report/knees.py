"""Where a curve bends: the size after which more of it brings much less.

    share
    37 %             o-----o        the knee: a doubling up to it brought 9 points,
    28 %         *                  the next one none
    19 %     *
           1,000 2,000 4,000 8,000

What a doubling of the size brings is compared on both sides of each size that was played. A curve
with stairs has a knee at each of them; one that rises evenly has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Final

LEAST: Final = 0.01
"""A doubling up to a knee brings one point at least."""

DROP: Final = 2
"""And so many times what a doubling brings after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """A size, the share there, and what a doubling brings on both sides of it."""

    at: float
    share: float
    before: float
    after: float

    @property
    def sentence(self) -> str:
        """The share at the knee, and the gain of a doubling on both sides."""
        return (
            f"{100 * self.share:.1f} % at {self.at:,g}: a doubling up to it gains "
            f"{100 * self.before:.1f} points, beyond it {100 * self.after:.1f}"
        )


def knees(points: Sequence[tuple[float, float]]) -> list[Knee]:
    """The knees of a share over a size, the smallest size first."""
    sizes = sorted(point for point in points if point[0] > 0)
    gains = [
        (high - low) / log2(large / small) if large > small else 0.0
        for (small, low), (large, high) in pairwise(sizes)
    ]
    return [
        Knee(at=at, share=share, before=before, after=after)
        for (at, share), (before, after) in zip(sizes[1:], pairwise(gains), strict=False)
        if before >= LEAST and before >= DROP * after
    ]
