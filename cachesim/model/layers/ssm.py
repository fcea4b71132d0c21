"""Mamba-2: a causal convolution, then a scan that folds one token after the other into a state.

C   inner + 2 G N, channels of the convolution: x, B and C side by side
H   state heads     G   groups of heads     N   state size
W   inner / G, channels of a group: those of its heads side by side
h   state (G, N, W)     h' = exp(dt A) h + B (dt x)        y = C h' + D x
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from cachesim.model.layers.conv import convolve, extended, states_after
from cachesim.model.layers.norm import rms_norm, silu, softplus
from cachesim.model.layers.padded import fold_chunk, fold_tokens, kept_rows, masked, read_former
from cachesim.model.layers.run import InAndOut, Run
from cachesim.model.layers.tiles import Matrix, packed, product
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Padding
from cachesim.model.weights import Weights
from cachesim.units import Array, Integers

STRETCH: Final = 16
"""Tokens whose states are held at once: enough to read them together, few enough for the cache."""


@dataclass(frozen=True, slots=True)
class Ssm(InAndOut):
    """A Mamba-2 layer; the norms before and inside it are folded into its matrices."""

    spec: ModelSpec
    layer: int
    entry: Matrix  # (d, z + x + B + C + dt)
    taps: Array  # (k, C)
    bias: Array  # (C,)
    step_bias: Array  # (H,)
    rate: Array  # (H,), negative
    skip: Array  # (inner,)
    exit: Matrix  # (inner, d)

    @classmethod
    def read(cls, spec: ModelSpec, weights: Weights, layer: int) -> "Ssm":
        """Prepare the tensors of one layer."""
        p = f"blk.{layer}."
        wide = {name: weights[p + name].astype(np.float64) for name in _NAMES}
        return cls(
            spec,
            layer,
            packed(wide["ssm_in.weight"] * wide["attn_norm.weight"]),
            np.ascontiguousarray(wide["ssm_conv1d.weight"].T),
            wide["ssm_conv1d.bias"],
            wide["ssm_dt.bias"],
            wide["ssm_a"].reshape(-1),
            np.repeat(wide["ssm_d"].reshape(-1), spec.inner // spec.state_heads),
            packed(wide["ssm_out.weight"] * wide["ssm_norm.weight"].reshape(-1)),
        )

    def __call__(self, x: Array, run: Run) -> Array:
        """The layer's summand for rows x (R, d)."""
        if run.count == 1 and run.asked is None and run.padding is None:
            return self._one(x, run)
        spec, inner, count, sets = self.spec, self.spec.inner, run.count, run.sets
        channels, heads = spec.conv_channels, spec.state_heads
        mixed = product(rms_norm(x, spec.norm_epsilon), self.entry, run.ladder)
        fresh = mixed[:count, inner : inner + channels].reshape(sets, -1, channels)
        steps = mixed[:count, inner + channels : inner + channels + heads] + self.step_bias
        steps = softplus(steps).reshape(sets, -1, heads)

        before = run.store.states(self.layer)
        conv_row = (len(self.taps) - 1) * channels
        joined = extended(before[:, :conv_row], masked(fresh, run.padding))
        convolved = convolve(joined, self.taps)
        convolved += self.bias
        convolved = silu(convolved)
        if run.padding is None:
            after = states_after(joined, len(self.taps), run.store.planes, before.shape[1])
            y = self.scan(convolved, steps, before[:, conv_row:], after[:, :, conv_row:])
        else:
            y, states = self.scan_padded(convolved, steps, before[:, conv_row:], run.padding)
            after = np.concatenate((kept_rows(joined, len(self.taps), run.padding), states), axis=2)
        run.store.keep_states(self.layer, after)
        gate = silu(run.rows(mixed[:count, :inner]))
        gated = np.zeros((run.height, inner))
        np.multiply(run.rows(y.reshape(count, inner)), gate, out=gated[: len(gate)])
        grouped = gated.reshape(-1, spec.groups, inner // spec.groups)
        normed = rms_norm(grouped, spec.norm_epsilon).reshape(-1, inner)
        return product(normed, self.exit, run.ladder)[:, : spec.width]

    def _one(self, x: Array, run: Run) -> Array:
        spec, inner, groups = self.spec, self.spec.inner, self.spec.groups
        channels, size = spec.conv_channels, spec.groups * spec.state_size
        mixed = product(rms_norm(x, spec.norm_epsilon), self.entry, run.ladder)[0]
        fresh = mixed[inner : inner + channels]
        steps = mixed[inner + channels : inner + channels + spec.state_heads]
        before = run.store.states(self.layer)[0]
        conv_row = (len(self.taps) - 1) * channels
        joined = np.concatenate((before[:conv_row], fresh)).reshape(-1, channels)
        after = np.empty(len(before))
        after[:conv_row] = joined[1:].reshape(-1)
        np.add.reduce(joined * self.taps, axis=0, out=fresh)
        fresh += self.bias
        steps = softplus(steps + self.step_bias)
        active = silu(mixed[: inner + channels])
        z, entered = active[:inner], active[inner : 2 * inner]
        b = active[2 * inner : 2 * inner + size].reshape(groups, -1, 1)
        c = active[2 * inner + size :].reshape(groups, 1, -1)
        state = after[conv_row:].reshape(groups, spec.state_size, -1)
        by_head = (groups, spec.state_size, spec.state_heads // groups, -1)
        decay = np.exp(steps * self.rate).reshape(groups, 1, -1, 1)
        np.multiply(before[conv_row:].reshape(by_head), decay, out=state.reshape(by_head))
        state += b * (entered.reshape(len(steps), -1) * steps[:, None]).reshape(groups, 1, -1)
        run.store.keep_states(self.layer, after[None, None])
        gated = np.zeros((len(x), inner))
        read = np.matmul(c, state).reshape(-1)
        read += entered * self.skip
        np.multiply(read, z, out=gated[0])
        normed = rms_norm(gated.reshape(len(x), groups, -1), spec.norm_epsilon)
        return product(normed.reshape(-1, inner), self.exit, run.ladder)[:, : spec.width]

    def scan(self, convolved: Array, steps: Array, state: Array, after: Array) -> Array:
        """Fold (S, L, C) into the state (S, G * N * W), token by token: y (S, L, inner).

        The states after the last tokens go to `after` (S, planes, G * N * W), last one first.
        """
        spec = self.spec
        sets, length, _ = convolved.shape
        heads, size, groups = spec.state_heads, spec.state_size, spec.groups
        inner, by_group = spec.inner, (length, sets, groups, 1, spec.inner // groups)
        convolved, steps = convolved.swapaxes(0, 1), steps.swapaxes(0, 1)  # token first
        x = convolved[:, :, :inner]
        b = convolved[:, :, inner : inner + groups * size].reshape(length, sets, groups, size, 1)
        c = convolved[:, :, inner + groups * size :].reshape(length, sets, groups, 1, size)
        by_head = (length, sets, heads, inner // heads)
        stepped = (x.reshape(by_head) * steps[..., None]).reshape(by_group)
        decay = np.exp(steps * self.rate).reshape(length, sets, groups, 1, -1, 1)

        y = np.empty(by_group)
        planes = after.shape[1]
        last = state.reshape(sets, groups, size, -1)
        for start in range(0, length, STRETCH):
            stop = min(start + STRETCH, length)
            states = b[start:stop] * stepped[start:stop]
            fades = np.empty_like(states)  # a full operand is twice as quick
            np.copyto(fades.reshape(*fades.shape[:-1], heads // groups, -1), decay[start:stop])
            _fold(last, states, fades)
            np.matmul(c[start:stop], states, out=y[start:stop])
            last = states[-1]
            for back in range(max(length - stop, 0), min(planes, length - start)):
                after[:, back] = states[length - back - start - 1].reshape(sets, -1)
        read = y.reshape(length, sets, inner)
        read += x * self.skip
        return read.swapaxes(0, 1)

    def scan_padded(
        self, convolved: Array, steps: Array, state: Array, padding: Padding
    ) -> tuple[Array, Array]:
        """`scan` where some rows are padding: y (S, L, inner), states (S, 1, G * N * W)."""
        spec = self.spec
        sets, length, _ = convolved.shape
        shape = (length, spec.groups, 1, spec.inner // spec.groups)
        y, after = np.zeros((sets, length, spec.inner)), np.empty((sets, 1, state.shape[1]))
        for one in range(sets):

            def scan(rows: Integers, state: Array, one: int = one) -> tuple[Array, Array]:
                kept = np.empty((1, 1, state.shape[1]))
                some = slice(one, one + 1)
                read = self.scan(convolved[some, rows], steps[some, rows], state, kept)
                return read[0], kept[:, 0]

            now = state[one : one + 1]
            if not padding.chunked:
                after[one] = fold_tokens(y[one], padding.real[one], now, scan)
                continue
            fades = np.exp(steps[one] * self.rate).repeat(spec.inner // spec.state_heads, axis=1)
            fades = fades.reshape(shape).repeat(spec.state_size, axis=2).reshape(length, -1)
            for ending in padding.endings(one):
                for row, former in read_former(ending, now[0], fades):
                    y[one, row] = self.glance(convolved[one, row], former)
                now = fold_chunk(y[one], ending, now, scan, fades)
            after[one] = now
        return y, after

    def glance(self, convolved: Array, state: Array) -> Array:
        """The reading (inner,) of a state (G * N * W) by a row (C,) that does not go into it."""
        spec = self.spec
        c = convolved[spec.inner + spec.groups * spec.state_size :]
        c = c.reshape(spec.groups, 1, spec.state_size)
        seen = np.matmul(c, state.reshape(spec.groups, spec.state_size, -1))
        return np.asarray(seen.reshape(-1) + convolved[: spec.inner] * self.skip)


def _fold(before: Array, states: Array, decay: Array) -> None:
    faded = np.empty_like(before)
    for state, fade in zip(states, decay, strict=True):
        np.multiply(before, fade, out=faded)
        np.add(state, faded, out=state)
        before = state


_NAMES: Final = (
    "attn_norm.weight",
    "ssm_in.weight",
    "ssm_conv1d.weight",
    "ssm_conv1d.bias",
    "ssm_dt.bias",
    "ssm_a",
    "ssm_d",
    "ssm_norm.weight",
    "ssm_out.weight",
)
