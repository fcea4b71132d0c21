"""The gated MLP for one row."""

import numpy as np

from cachesim.model.layers.mlp import Mlp
from cachesim.model.layers.norm import ACTIVATIONS
from cachesim.model.layers.run import Turns
from cachesim.model.layers.sight import Sights
from cachesim.model.one.tile import Tile, normed
from cachesim.model.store import Store
from cachesim.units import Array


class MlpStep:
    """As `Mlp`."""

    def __init__(self, layer: Mlp, height: int) -> None:
        spec = layer.spec
        self._epsilon = spec.norm_epsilon
        self._activate = ACTIVATIONS[spec.activation]
        self._post_norm = layer.post_norm
        self._entry = Tile(layer.entry, height, spec.norm_epsilon)
        self._exit = Tile(layer.exit, height)
        self._gate = self._entry.result[: spec.mlp_width]
        self._up = self._entry.result[spec.mlp_width : 2 * spec.mlp_width]
        self._result = self._exit.result[: spec.width]

    def __call__(self, x: Array, store: Store, sights: Sights, turns: Turns | None) -> Array:
        """What the MLP adds to the row x (d,)."""
        del store, sights, turns
        self._entry.normed(x)
        np.multiply(self._activate(self._gate), self._up, self._exit.row)
        self._exit()
        return normed(self._result, self._post_norm, self._epsilon)
