"""A recurrent layer over many rows, piece after piece: what it works on stays near the processor.

A layer's rows are many times wider inside than outside, and a state is wider still. How a prompt
is cut changes no bit, so a layer may cut it once more for itself.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from cachesim.model.layers.run import Run
from cachesim.model.layers.tiles import padded
from cachesim.model.store import Lanes, Store
from cachesim.units import Array

PIECE: Final = 128
"""Rows of a piece: whole tiles of every height."""


class Relay:
    """The store that a piece sees: it begins where the one before ended.

    before ──► piece ──► piece ──► ...      `kept`: the last states of all pieces, newest first
    """

    def __init__(self, store: Store, layer: int) -> None:
        self.planes = store.planes
        self._store = store
        self._before = store.states(layer)
        self.kept: Array = np.empty((1, 0, self._before.shape[1]))

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """As the store that stands behind it."""
        return self._store.attend(layer, keys, values)

    def states(self, layer: int) -> Array:
        """What the last piece left."""
        del layer
        return self._before

    def keep_states(self, layer: int, states: Array) -> None:
        """Hand the newest on, and keep as many as the store behind it wants."""
        del layer
        self._before = states[:, 0]
        self.kept = np.concatenate((states, self.kept), axis=1)[:, : self.planes]


def is_long(run: Run) -> bool:
    """Whether these are rows of one sequence, and more than a piece."""
    return run.count > PIECE and run.sets == 1 and run.padding is None


def in_pieces(layer: Callable[[Array, Run], Array], number: int, x: Array, run: Run) -> Array:
    """What a recurrent layer of that number adds to rows x (R, d), as if they came in pieces."""
    relay = Relay(run.store, number)
    result = np.zeros((run.height, x.shape[1]))
    for start in range(0, run.count, PIECE):
        count = min(PIECE, run.count - start)
        piece = replace(run, count=count, store=relay)
        rows = x[start : start + padded(count, run.ladder)]
        if run.asked is None:
            result[start : start + len(rows)] = layer(rows, piece)
            continue
        (mine,) = np.nonzero((run.asked >= start) & (run.asked < start + count))
        result[mine] = layer(rows, replace(piece, asked=run.asked[mine] - start))[: len(mine)]
    run.store.keep_states(number, relay.kept)
    return result
