"""Attention for one query."""

import numpy as np

from cachesim.model.layers.attention import Attention, gather, score
from cachesim.model.layers.norm import rms_norm, sigmoid
from cachesim.model.layers.run import Turns
from cachesim.model.layers.sight import Sights
from cachesim.model.layers.tiles import Ladder
from cachesim.model.one.tile import Tile, normed
from cachesim.model.store import BLOCK, Lane, Store
from cachesim.units import Array


class AttentionStep:
    """As `Attention`."""

    def __init__(self, layer: Attention, height: int, ladder: Ladder) -> None:
        spec = layer.spec
        self._layer, self._spec, self._ladder = layer, spec, ladder
        self._epsilon = spec.norm_epsilon
        self._turns = spec.turns(layer.layer)
        self._entry = Tile(layer.entry, height, spec.norm_epsilon)
        self._exit = Tile(layer.exit, height)
        mixed, width = self._entry.result, spec.heads * spec.head_size
        turning = width + spec.kv_heads * spec.head_size
        valued = turning + spec.kv_heads * spec.head_size
        self._mixed = mixed[:turning].reshape(-1, spec.head_size)
        self._values = mixed[turning:valued].reshape(1, spec.kv_heads, spec.head_size)
        self._gate = mixed[valued : valued + width] if spec.attention_gate else None
        self._straight = self._mixed if layer.head_norms is None else np.empty_like(self._mixed)
        if self._turns:
            self._halves = self._straight.reshape(len(self._mixed), 2, -1)
            self._swapped = self._halves[:, ::-1]
            self._other = np.empty_like(self._halves)
        self._seen = self._exit.row.reshape(1, spec.heads, spec.head_size)
        self._result = self._exit.result[: spec.width]

    def __call__(self, x: Array, store: Store, sights: Sights, turns: Turns | None) -> Array:
        """What attention adds to the row x (d,)."""
        layer, heads = self._layer, self._spec.heads
        self._entry.normed(x)
        if layer.head_norms is not None:
            scaled = rms_norm(self._mixed, self._epsilon)
            np.multiply(scaled, layer.head_norms, self._straight)
        turned = self._turned(turns)
        for lane in store.attend(layer.layer, turned[:, heads:], self._values.copy()):
            self._look(turned[:, :heads], lane, sights)
        if self._gate is not None:
            self._exit.row *= sigmoid(self._gate)
        self._exit()
        return normed(self._result, layer.post_norm, self._epsilon)

    def _turned(self, turns: Turns | None) -> Array:
        """Queries and keys (1, H + K, size) at their position, in an array that stores may keep."""
        if turns is None or not self._turns:
            return self._straight[None].copy()
        cosines, sines = turns
        turned: Array = np.multiply(self._halves, cosines)
        turned += np.multiply(self._swapped, sines, self._other)
        return turned.reshape(1, *self._straight.shape)

    def _look(self, query: Array, lane: Lane, sights: Sights) -> None:
        """Write what the query (1, H, size) sees in a lane to the row that leaves."""
        _, kv_heads, size = lane.keys.shape
        keys = lane.keys.reshape(-1, BLOCK, kv_heads, size)
        values = lane.values.reshape(-1, BLOCK, kv_heads, size)
        scores = score(query, keys, self._ladder)
        # in all rows of the tile, of which some may be zeros
        np.copyto(scores, -np.inf, where=sights.mask(lane, BLOCK))
        np.copyto(self._seen, gather(scores, values, 1, self._spec.heads // kv_heads))
