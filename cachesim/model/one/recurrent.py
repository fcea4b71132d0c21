"""One token folded into the state of a recurrent layer.

carried   [ k - 1 rows | the token's ]      what the convolution sees, and hands on without the
oldest row
"""

import numpy as np

from cachesim.model.layers.conv import ShortConv
from cachesim.model.layers.delta import Delta
from cachesim.model.layers.norm import ZERO, l2_norm, sigmoid, silu, softplus
from cachesim.model.layers.run import Turns
from cachesim.model.layers.sight import Sights
from cachesim.model.layers.ssm import Ssm
from cachesim.model.one.tile import Norms, Tile
from cachesim.model.store import Store
from cachesim.units import Array


class Convolution:
    """The rows that a convolution sees: `newest` is written first."""

    def __init__(self, taps: Array) -> None:
        self._taps = taps
        self._rows, self._tapped = np.empty(taps.shape), np.empty(taps.shape)
        self._oldest, self._next, *self._others = self._tapped
        self._former, self._later = self._rows[:-1].reshape(-1), self._rows[1:].reshape(-1)
        self.size = self._former.size  # of what is carried
        self.newest: Array = self._rows[-1]

    def __call__(self, before: Array, after: Array, out: Array) -> None:
        """Each channel by its taps into out (C,); from one state (row,) into the next."""
        np.copyto(self._former, before[: self.size])
        np.copyto(after[: self.size], self._later)
        np.multiply(self._rows, self._taps, self._tapped)
        np.add(self._oldest, self._next, out)
        for each in self._others:
            np.add(out, each, out)


class SsmStep:
    """As `Ssm`."""

    def __init__(self, layer: Ssm, height: int) -> None:
        spec = layer.spec
        self._layer = layer
        self._entry = Tile(layer.entry, height, spec.norm_epsilon)
        self._exit = Tile(layer.exit, height)
        self._result = self._exit.result[: spec.width]
        inner, channels, side = spec.inner, spec.conv_channels, spec.groups * spec.state_size
        mixed = self._entry.result
        self._open = mixed[: inner + channels]  # z, x, B and C before they are activated
        self._fresh = mixed[inner : inner + channels]
        self._steps = mixed[inner + channels : inner + channels + spec.state_heads]
        self._biased = mixed[inner : inner + channels + spec.state_heads]  # both side by side
        self._biases = np.concatenate((layer.bias, layer.step_bias))
        self._convolution = Convolution(layer.taps)
        self._active = active = np.empty(inner + channels)
        self._z, self._x = active[:inner], active[inner : 2 * inner]
        self._b = active[2 * inner : 2 * inner + side].reshape(spec.groups, -1, 1)
        self._c = active[2 * inner + side :].reshape(spec.groups, 1, -1)
        by_group = (spec.groups, 1, inner // spec.groups)
        self._state = (spec.groups, spec.state_size, inner // spec.groups)
        self._faded = np.empty(self._state)
        self._read, self._skipped = np.empty(by_group), np.empty(inner)
        self._read_row = self._read.reshape(-1)
        left = self._exit.row.reshape(spec.groups, -1)
        self._norms = Norms(self._read.reshape(spec.groups, -1), spec.norm_epsilon, left)
        self._heads = np.empty((2, spec.state_heads, 1))  # steps and decays, by head
        self._step, self._decay = self._heads[:, :, 0]
        self._wide = np.empty((2, spec.state_heads, inner // spec.state_heads))  # by channel
        self._stepped = self._wide[0].reshape(-1)
        self._stepped_groups, self._decay_groups = self._wide.reshape(2, *by_group)

    def __call__(self, x: Array, store: Store, sights: Sights, turns: Turns | None) -> Array:
        """What the layer adds to the row x (d,)."""
        del sights, turns
        layer, convolution, read = self._layer, self._convolution, self._read_row
        self._entry.normed(x)
        before = store.states(layer.layer)[0]
        after = np.empty(len(before))
        np.copyto(convolution.newest, self._fresh)
        convolution(before, after, self._fresh)
        np.add(self._biased, self._biases, self._biased)
        np.logaddexp(ZERO, self._steps, self._step)  # softplus
        silu(self._open, self._active)
        state = after[convolution.size :].reshape(self._state)
        self._fold(before[convolution.size :].reshape(self._state), state)
        store.keep_states(layer.layer, after[None, None])
        np.matmul(self._c, state, self._read)
        np.add(read, np.multiply(self._x, layer.skip, self._skipped), read)
        np.multiply(read, self._z, read)
        self._norms()
        self._exit()
        return self._result

    def _fold(self, before: Array, after: Array) -> None:
        decay, wide, faded = self._decay, self._wide, self._faded
        np.multiply(self._step, self._layer.rate, decay)
        np.exp(decay, decay)
        np.copyto(wide, self._heads)
        np.multiply(self._x, self._stepped, self._stepped)
        np.copyto(faded, self._decay_groups)  # a full operand is twice as quick
        np.multiply(before, faded, faded)
        np.multiply(self._b, self._stepped_groups, after)
        np.add(after, faded, after)


class DeltaStep:
    """As `Delta`."""

    def __init__(self, layer: Delta, height: int) -> None:
        spec = layer.spec
        self._layer, self._epsilon = layer, spec.norm_epsilon
        self._entry = Tile(layer.entry, height, spec.norm_epsilon)
        self._exit = Tile(layer.exit, height)
        self._result = self._exit.result[: spec.width]
        inner, channels, heads = spec.inner, spec.conv_channels, spec.state_heads
        size, groups = spec.state_size, spec.groups
        mixed = self._entry.result
        self._open = mixed[: channels + inner]  # q, k, v and z before they are activated
        self._fresh = mixed[:channels]
        self._beta = mixed[channels + inner : channels + inner + heads]
        self._alpha = mixed[channels + inner + heads : channels + inner + 2 * heads]
        self._convolution = Convolution(layer.taps)
        self._active = active = np.empty(channels + inner)
        self._pair = active[: 2 * groups * size].reshape(2, groups, size)
        self._value = active[2 * groups * size : channels].reshape(heads, size)
        self._z = active[channels:]
        self._tiled = np.empty((2, heads // groups, groups, size))
        self._query, self._key = self._tiled.reshape(2, heads, size)
        self._scale = size**-0.5
        self._state = (heads, size, size)
        self._recalled, self._seen = np.empty((heads, 1, size)), np.empty((heads, 1, size))
        self._missing = self._recalled[:, 0]
        self._change = np.empty(self._state)
        self._norms = Norms(self._seen[:, 0], self._epsilon, self._exit.row.reshape(heads, size))

    def __call__(self, x: Array, store: Store, sights: Sights, turns: Turns | None) -> Array:
        """What the layer adds to the row x (d,)."""
        del sights, turns
        layer, size = self._layer, self._convolution.size
        self._entry.normed(x)
        beta = sigmoid(self._beta)
        decay = np.exp(softplus(self._alpha + layer.step_bias) * layer.rate)
        before = store.states(layer.layer)[0]
        after = np.empty(len(before))
        np.copyto(self._convolution.newest, self._fresh)
        self._convolution(before, after, self._fresh)
        silu(self._open, self._active)
        state = after[size:].reshape(self._state)
        self._fold(beta, decay, before[size:].reshape(self._state), state)
        store.keep_states(layer.layer, after[None, None])
        self._norms()
        np.multiply(self._exit.row, self._z, self._exit.row)
        self._exit()
        return self._result

    def _fold(self, beta: Array, decay: Array, before: Array, state: Array) -> None:
        """The state (H, N, N) after the token, and what the token reads of it."""
        np.copyto(self._tiled, l2_norm(self._pair, self._epsilon)[:, None])
        self._query *= self._scale
        probe = self._key * (beta * decay)[:, None]
        np.matmul(probe[:, None], before, self._recalled)
        np.subtract(self._value * beta[:, None], self._missing, self._missing)
        np.multiply(self._key[..., None], self._recalled, self._change)
        np.multiply(before, decay[:, None, None], state)
        np.add(state, self._change, state)
        np.matmul(self._query[:, None], state, self._seen)


class ShortConvStep:
    """As `ShortConv`."""

    def __init__(self, layer: ShortConv, height: int) -> None:
        spec, width = layer.spec, layer.spec.width
        self._layer = layer
        self._entry = Tile(layer.entry, height, spec.norm_epsilon)
        self._exit = Tile(layer.exit, height)
        self._b, self._c, self._x = self._entry.result[: 3 * width].reshape(3, width)
        self._convolution = Convolution(layer.taps)
        self._result = self._exit.result[:width]

    def __call__(self, x: Array, store: Store, sights: Sights, turns: Turns | None) -> Array:
        """What the layer adds to the row x (d,)."""
        del sights, turns
        self._entry.normed(x)
        np.multiply(self._b, self._x, self._convolution.newest)
        before = store.states(self._layer.layer)[0]
        after = np.empty(len(before))
        self._convolution(before, after, self._exit.row)
        store.keep_states(self._layer.layer, after[None, None])
        np.multiply(self._exit.row, self._c, self._exit.row)
        self._exit()
        return self._result
