"""The gated delta rule of Qwen 3.5: a state that is corrected towards what it should recall.

H   value heads (key head h % key heads serves value head h)     N   state size
M   state (H, N, N), by key and value
M' = g M + k (x) beta (v - (g M)^T k)          o = M'^T q
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from cachesim.model.layers.conv import convolve, extended, states_after
from cachesim.model.layers.norm import l2_norm, rms_norm, sigmoid, silu, softplus
from cachesim.model.layers.padded import fold_tokens, kept_rows, masked
from cachesim.model.layers.run import InAndOut, Run
from cachesim.model.layers.tiles import Matrix, packed, product
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Padding
from cachesim.model.weights import Weights
from cachesim.units import Array, Integers

STRETCH: Final = 16
"""Tokens whose states are held at once: few enough for the cache."""


@dataclass(frozen=True, slots=True)
class Delta(InAndOut):
    """A layer of the gated delta rule; the norm before it is folded into its first matrix."""

    spec: ModelSpec
    layer: int
    entry: Matrix  # (d, q + k + v + z + beta + alpha)
    taps: Array  # (k, C)
    step_bias: Array  # (H,)
    rate: Array  # (H,), negative
    exit: Matrix  # (inner, d)

    @classmethod
    def read(cls, spec: ModelSpec, weights: Weights, layer: int) -> "Delta":
        """Prepare the tensors of one layer."""
        p = f"blk.{layer}."
        wide = {name: weights[p + name].astype(np.float64) for name in _NAMES}
        entry = (wide[name] * wide["attn_norm.weight"] for name in _ENTRY)
        norm = np.tile(wide["ssm_norm.weight"], spec.state_heads)
        return cls(
            spec,
            layer,
            packed(*entry),
            np.ascontiguousarray(wide["ssm_conv1d.weight"].T),
            wide["ssm_dt.bias"],
            wide["ssm_a"],
            packed(wide["ssm_out.weight"] * norm),
        )

    def __call__(self, x: Array, run: Run) -> Array:
        """The layer's summand for rows x (R, d)."""
        spec, inner, count, sets = self.spec, self.spec.inner, run.count, run.sets
        channels, heads = spec.conv_channels, spec.state_heads
        mixed = product(rms_norm(x, spec.norm_epsilon), self.entry, run.ladder)
        fresh = mixed[:count, :channels].reshape(sets, -1, channels)
        gates = mixed[:count, channels + inner : channels + inner + 2 * heads]
        beta = sigmoid(gates[:, :heads]).reshape(sets, -1, heads)
        decay = np.exp(softplus(gates[:, heads:] + self.step_bias) * self.rate)

        before = run.store.states(self.layer)
        conv_row = (len(self.taps) - 1) * channels
        joined = extended(before[:, :conv_row], masked(fresh, run.padding))
        convolved = silu(convolve(joined, self.taps))
        decay, state = decay.reshape(sets, -1, heads), before[:, conv_row:]
        if run.padding is None:
            after = states_after(joined, len(self.taps), run.store.planes, before.shape[1])
            out = self.scan(convolved, decay, beta, state, after[:, :, conv_row:])
        else:
            out, states = self.scan_padded(convolved, decay, beta, state, run.padding)
            after = np.concatenate((kept_rows(joined, len(self.taps), run.padding), states), axis=2)
        run.store.keep_states(self.layer, after)
        gate = silu(run.rows(mixed[:count, channels : channels + inner]))
        hidden = np.zeros((run.height, inner))
        normed = run.rows(rms_norm(out, spec.norm_epsilon).reshape(count, inner))
        np.multiply(normed, gate, out=hidden[: len(gate)])
        return product(hidden, self.exit, run.ladder)[:, : spec.width]

    def scan(
        self, convolved: Array, decay: Array, beta: Array, state: Array, after: Array
    ) -> Array:
        """Fold (S, L, C) into the state (S, H * N * N), token by token: (S, L, H, N).

        The states after the last tokens go to `after` (S, planes, H * N * N), last one first.
        """
        spec = self.spec
        sets, length, _ = convolved.shape
        heads, size, groups = spec.state_heads, spec.state_size, spec.groups
        first = convolved.swapaxes(0, 1)  # token first: (L, S, ...)
        side = groups * size
        pair = first[:, :, : 2 * side].reshape(length, sets, 2, groups, size)
        pair = l2_norm(pair, spec.norm_epsilon)
        tiled = np.tile(pair, (1, 1, 1, heads // groups, 1))
        query, key = tiled[:, :, 0] * size**-0.5, tiled[:, :, 1]
        beta, decay = beta.swapaxes(0, 1)[..., None], decay.swapaxes(0, 1)[..., None]
        value = first[:, :, 2 * side :].reshape(length, sets, heads, size) * beta
        probe = (key * (beta * decay))[:, :, :, None]
        column, fade = key[..., None], decay[..., None]

        out = np.empty((length, sets, heads, 1, size))
        planes = after.shape[1]
        last = state.reshape(sets, heads, size, size).copy()
        states = np.empty((min(STRETCH, length), *last.shape))  # written again and again
        fades = np.empty_like(states)
        for start in range(0, length, STRETCH):
            some = slice(start, min(start + STRETCH, length))
            after_each, fading = states[: some.stop - start], fades[: some.stop - start]
            np.copyto(fading, fade[some])  # a full operand is twice as quick
            _fold(
                last, zip(after_each, probe[some], value[some], column[some], fading, strict=True)
            )
            np.matmul(query[some, :, :, None], after_each, out=out[some])
            np.copyto(last, after_each[-1])
            for back in range(length - some.stop, min(planes, length - start)):
                after[:, back] = after_each[length - back - start - 1].reshape(sets, -1)
        return out[:, :, :, 0].swapaxes(0, 1)

    def scan_padded(
        self, convolved: Array, decay: Array, beta: Array, state: Array, padding: Padding
    ) -> tuple[Array, Array]:
        """`scan` where some rows are padding: (S, L, H, N), and states (S, 1, H * N * N)."""
        spec = self.spec
        sets, length, _ = convolved.shape
        out = np.zeros((sets, length, spec.state_heads, spec.state_size))
        after = np.empty((sets, 1, state.shape[1]))
        for one in range(sets):

            def scan(rows: Integers, state: Array, one: int = one) -> tuple[Array, Array]:
                kept = np.empty((1, 1, state.shape[1]))
                some = slice(one, one + 1)
                columns = (convolved[some, rows], decay[some, rows], beta[some, rows])
                return self.scan(*columns, state, kept)[0], kept[:, 0]

            after[one] = fold_tokens(out[one], padding.real[one], state[one : one + 1], scan)
        return out, after


def _fold(before: Array, steps: Iterable[tuple[Array, ...]]) -> None:
    """Write the state after each token, one token after the other.

    A step holds (state to be written, probe, value, key, decay); probe and value carry beta.
    """
    recalled = np.empty((*before.shape[:2], 1, before.shape[3]))
    missing = recalled[:, :, 0]
    change = np.empty_like(before)
    for state, probe, value, key, decay in steps:
        np.matmul(probe, before, out=recalled)
        np.subtract(value, missing, out=missing)
        np.multiply(key, recalled, out=change)
        np.multiply(before, decay, out=state)
        np.add(state, change, out=state)
        before = state


_ENTRY: Final = ("attn_qkv.weight", "attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight")
_NAMES: Final = (
    *_ENTRY,
    "attn_norm.weight",
    "ssm_conv1d.weight",
    "ssm_dt.bias",
    "ssm_a",
    "ssm_norm.weight",
    "ssm_out.weight",
)
