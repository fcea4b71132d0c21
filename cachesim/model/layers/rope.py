"""RoPE, with one layout for both pairings.

Llama turns neighbours (2i, 2i + 1), most others turn (i, i + half). A key meets a query only in
their dot product, so the rows of a pairs model's projections are put in halves order once, when
the network is built (`halves_order`), and one rotation serves both.
"""

from typing import Final

import numpy as np

from cachesim.model.spec import ModelSpec
from cachesim.units import Array, Integers

PAGE: Final = 1024
"""Positions whose angles are computed together, and kept."""

MOST_PAGES: Final = 256
"""Pages kept before the book is emptied."""


def halves_order(spec: ModelSpec) -> Integers:
    """The order in which one head's rows are read, so that pairs become halves."""
    order = np.arange(spec.head_size)
    if spec.rope != "pairs":
        return order
    return np.concatenate([order[0::2], order[1::2]])


class Rotary:
    """Cosines and sines by position: computed page by page, so each has one history."""

    def __init__(self, spec: ModelSpec) -> None:
        half = spec.head_size // 2
        exponents = np.arange(half) * (-2.0 / spec.head_size)
        self.frequencies = np.power(spec.rope_base, exponents)
        self.still = spec.rope == "none" or not {"attention", "window"}.intersection(spec.layers)
        self._pages: dict[int, Array] = {}

    def page(self, number: int) -> Array:
        """Angles of positions [number * PAGE, (number + 1) * PAGE): (PAGE, 2, 2, half)."""
        kept = self._pages.get(number)
        if kept is None:
            if len(self._pages) >= MOST_PAGES:
                self._pages.clear()
            positions = np.arange(number * PAGE, (number + 1) * PAGE, dtype=np.float64)
            angles = positions[:, None] * self.frequencies
            cosines, sines = np.cos(angles), np.sin(angles)
            kept = np.stack([cosines, cosines, -sines, sines], axis=1)
            kept = self._pages[number] = kept.reshape(PAGE, 2, 2, -1)
        return kept

    def turns(self, positions: Integers) -> tuple[Array, Array] | None:
        """Cosines and sines of rows at these positions: two (T, 1, 2, half); None: no rotation."""
        if self.still:
            return None
        first, last = (int(most.reduce(positions)) // PAGE for most in (np.minimum, np.maximum))
        if first == last:
            table = self.page(first)[positions - first * PAGE]
        else:
            table = np.empty((len(positions), 2, 2, len(self.frequencies)))
            numbers = positions // PAGE
            for number in np.unique(numbers):
                here = numbers == number
                table[here] = self.page(int(number))[positions[here] - number * PAGE]
        return table[:, None, 0], table[:, None, 1]


def rotate(rows: Array, turns: tuple[Array, Array]) -> Array:
    """Rows (T, heads, head size) turned to their positions."""
    cosines, sines = turns
    halves = rows.reshape(*rows.shape[:-1], 2, -1)
    result = halves * cosines
    result += halves[..., ::-1, :] * sines
    return result.reshape(rows.shape)
