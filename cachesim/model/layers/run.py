"""What all layers of one pass share."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cachesim.model.layers.sight import Sights
from cachesim.model.layers.tiles import Ladder, Matrix
from cachesim.model.store import Store
from cachesim.units import Array

Turns: TypeAlias = tuple[Array, Array]
"""Cosines and sines that turn rows to their positions."""


@dataclass(frozen=True, slots=True)
class Run:
    """One ubatch on its way through the layers.

    Rows `[0, count)` of x are real, `[count, R)` fill the last tile with zeros and stay zero.
    """

    count: int
    sets: int
    ladder: Ladder  # heights of tiles for products with weights
    attention_ladder: Ladder  # and with blocks of keys and values
    sights: Sights
    turns: Turns | None
    store: Store


class Layer(Protocol):
    """One summand of the residual stream."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """What rows are multiplied with."""
        ...

    def __call__(self, x: Array, run: Run) -> Array:
        """What the layer adds to rows x (R, d)."""
        ...
