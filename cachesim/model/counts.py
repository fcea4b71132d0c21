"""`counts`: a network without arithmetic, for workloads whose answers are not verified.

The memory is the real one: the same cells, rows, ubatches and bytes. Only nothing is computed:
keys, values and states have no numbers in them, so that the engine takes the same decisions and a
reply carries no logits that mean anything. Replies should be forced; a token that is sampled all
the same is a placeholder that depends on its own token and position alone.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from cachesim.model.arithmetic import LayerShape, Network, Output
from cachesim.model.ring import RingNetwork, WordNetwork, mix
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Lanes, Store, Ubatch
from cachesim.units import Array, Integers


class CountsNetwork(WordNetwork):
    """The layers of a spec without weights."""

    def __init__(self, spec: ModelSpec, *, mtp: bool = False) -> None:
        self._spec = spec
        self._mtp = mtp
        self._shapes = tuple(_emptied(shape) for shape in RingNetwork(spec, mtp=mtp).shapes)

    def __deepcopy__(self, memo: object) -> "CountsNetwork":
        return self

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Store the ubatch's tokens; no arithmetic."""
        count = len(ubatch.tokens)
        rows = np.zeros((count, 0), np.uint64)
        planes = min(count // ubatch.sets, store.planes)
        for shape in self._shapes:
            if shape.place == "recurrent":
                store.states(shape.layer)
                store.keep_states(shape.layer, np.zeros((ubatch.sets, planes, 0), np.uint64))
            else:
                store.attend(shape.layer, rows, rows)
        words = mix(_unsigned(ubatch.tokens) << np.uint64(32) | _unsigned(ubatch.positions))
        wanted = words if ubatch.outputs is None else words[ubatch.outputs]
        hidden = np.zeros((count, 1), np.uint64) if self._spec.mtp_depth else None
        return Output(logits=wanted[:, None], hidden=hidden)

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        """Keys unchanged."""
        return keys

    def difference(self, one: Array, other: Array) -> float:
        """0.0: no logits were computed."""
        return 0.0

    def companion(self) -> Network | None:
        """The MTP head, without arithmetic too."""
        if self._mtp or not self._spec.mtp_depth:
            return None
        return CountsNetwork(self._spec, mtp=True)


def _emptied(shape: LayerShape) -> LayerShape:
    if shape.place == "recurrent":
        return replace(shape, row=0, conv=0)
    return replace(shape, key=(0,), value=(0,))


def _unsigned(positions: Integers) -> Array:
    return positions.astype(np.uint64) & np.uint64(0xFFFFFFFF)


class _NullStore:
    """The memory of a network without arithmetic."""

    planes = 1

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """No lanes: no keys are stored."""
        return ()

    def states(self, layer: int) -> Array:
        """A row without numbers."""
        return np.zeros((1, 0), np.uint64)

    def keep_states(self, layer: int, states: Array) -> None:
        """Do nothing: no states are stored."""


NOWHERE: Final = _NullStore()

NO_ROW: Final = np.zeros(1, np.uint64)
"""The logits of a known token that was computed with others at once: there are none."""
