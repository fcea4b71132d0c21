"""The causal convolution that recurrent layers carry across ubatches, and LFM2's layer of it.

[ carried: k - 1 rows | the set's L rows ]      row t sees the k rows that end with it
"""

from dataclasses import dataclass

import numpy as np

from cachesim.model.layers.norm import rms_norm
from cachesim.model.layers.padded import kept_rows, masked
from cachesim.model.layers.run import InAndOut, Run
from cachesim.model.layers.tiles import Matrix, packed, product
from cachesim.model.spec import ModelSpec
from cachesim.model.weights import Weights
from cachesim.units import Array


def extended(carried: Array, rows: Array) -> Array:
    """Carried rows (S, (k - 1) * C) in front of new ones (S, L, C)."""
    return np.concatenate((carried.reshape(len(rows), -1, rows.shape[2]), rows), axis=1)


def convolve(joined: Array, taps: Array) -> Array:
    """Each channel by its taps (k, C), oldest first: (S, k - 1 + L, C) to (S, L, C)."""
    length = joined.shape[1] - len(taps) + 1
    if length == 1:  # all taps at once; they are added oldest first all the same
        return np.asarray(np.add.reduce(joined * taps, axis=1, keepdims=True))
    result: Array = joined[:, :length] * taps[0]
    tapped = np.empty_like(result)
    for age, tap in enumerate(taps[1:], start=1):
        np.multiply(joined[:, age : age + length], tap, out=tapped)
        result += tapped
    return result


def carry(joined: Array, taps: int, back: int) -> Array:
    """The carried rows as they are after the last row but `back`: (S, (k - 1) * C)."""
    stop = joined.shape[1] - back
    return joined[:, stop - taps + 1 : stop].reshape(joined.shape[0], -1)


def states_after(joined: Array, taps: int, planes: int, row: int) -> Array:
    """Rows (S, planes, row) to be kept, newest first: carried rows in front, the rest to be filled.

    Plane `j` is for the state after the last token but `j`; no set has more planes than tokens.
    """
    sets, length = joined.shape[0], joined.shape[1] - taps + 1
    after = np.empty((sets, min(planes, length), row))
    for back in range(after.shape[1]):
        carried = carry(joined, taps, back)
        after[:, back, : carried.shape[1]] = carried
    return after


@dataclass(frozen=True, slots=True)
class ShortConv(InAndOut):
    """LFM2's layer: a convolution between two gates; its state is the carried rows alone."""

    spec: ModelSpec
    layer: int
    entry: Matrix  # (d, 3 d): b, c and x
    taps: Array  # (k, d)
    exit: Matrix  # (d, d)

    @classmethod
    def read(cls, spec: ModelSpec, weights: Weights, layer: int) -> "ShortConv":
        """Prepare the tensors of one layer."""
        p = f"blk.{layer}.shortconv."
        norm = weights[f"blk.{layer}.attn_norm.weight"].astype(np.float64)
        taps = np.ascontiguousarray(weights[p + "conv.weight"].T.astype(np.float64))
        entry = packed(weights[p + "in_proj.weight"] * norm)
        return cls(spec, layer, entry, taps, packed(weights[p + "out_proj.weight"]))

    def __call__(self, x: Array, run: Run) -> Array:
        """The layer's summand for rows x (R, d)."""
        spec, count, width = self.spec, run.count, self.spec.width
        mixed = product(rms_norm(x, spec.norm_epsilon), self.entry, run.ladder)
        gated = mixed[:count, :width] * mixed[:count, 2 * width : 3 * width]
        fresh = masked(gated.reshape(run.sets, -1, width), run.padding)
        joined = extended(run.store.states(self.layer), fresh)
        gate = run.rows(mixed[:count, width : 2 * width])
        hidden = np.zeros((run.height, width))
        convolved = run.rows(convolve(joined, self.taps).reshape(count, width))
        np.multiply(convolved, gate, out=hidden[: len(gate)])
        if run.padding is None:
            row = spec.conv_row(self.layer)
            after = states_after(joined, len(self.taps), run.store.planes, row)
        else:
            after = kept_rows(joined, len(self.taps), run.padding)
        run.store.keep_states(self.layer, after)
        return product(hidden, self.exit, run.ladder)[:, :width]
