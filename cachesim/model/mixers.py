"""Attention over a lane: blocks of 64 keys, summed in order.

Keys are in blocks aligned to positions, in every memory. For each query a block yields the sum of
its weighted values and the sum of its weights; blocks are added in order, so the partial sums of a
query do not depend on the batch. A masked key weighs an exact zero, and so does a block without
visible keys.

    H   query heads             K   key heads         G   H / K, query heads per key head
    q   queries taken at once   t   tiles of rows     h   height of a tile; t h >= q G
    n   keys of the lane        b   n / 64, blocks
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

import numpy as np

from cachesim.errors import ContractError
from cachesim.model.parts import (
    halves_order,
    l2_norm,
    rms_norm,
    rotate,
    sigmoid,
    silu,
    softplus,
    tile_norm,
)
from cachesim.model.spec import ModelSpec
from cachesim.model.store import BLOCK, Ending, Lane, Padding
from cachesim.model.tiles import InAndOut, Ladder, Matrix, Run, packed, product
from cachesim.model.weights import Weights
from cachesim.units import Array, Integers

Hidden: TypeAlias = tuple[tuple[slice, Array], ...]

FEW_SCORES: Final = 2048
"""Number of scores up to which a NumPy call costs more than the arithmetic."""


@dataclass(frozen=True, slots=True)
class Attention(InAndOut):
    """The attention of a layer; the norm before it is folded into its first matrix."""

    spec: ModelSpec
    layer: int
    entry: Matrix  # (d, queries + keys + values + gate)
    exit: Matrix  # (queries, d)
    head_norms: Array | None  # (H + K, head size): norms of queries and keys
    post_norm: Array | None

    @classmethod
    def read(cls, spec: ModelSpec, weights: Weights, layer: int) -> "Attention":
        """Prepare the tensors of one layer: queries carry the scale 1 / sqrt(head size)."""
        p, size = f"blk.{layer}.", spec.head_size
        order = halves_order(spec)
        norm = weights[p + "attn_norm.weight"].astype(np.float64)

        def by_head(name: str, heads: int) -> Array:
            return (weights[p + name] * norm).reshape(heads, -1, spec.width)

        queries = by_head("attn_q.weight", spec.heads)  # each head's rows, then those of its gate
        queries, gate = queries[:, :size], queries[:, size:]
        keys = by_head("attn_k.weight", spec.kv_heads)
        if not spec.qk_norm:
            queries = queries / math.sqrt(size)
        parts = [queries[:, order], keys[:, order], by_head("attn_v.weight", spec.kv_heads), gate]
        post = weights[p + "post_attention_norm.weight"] if spec.post_norms else None
        return cls(
            spec,
            layer,
            packed(*(part.reshape(-1, spec.width) for part in parts)),
            packed(weights[p + "attn_output.weight"]),
            head_norms(spec, weights, layer) if spec.qk_norm else None,
            None if post is None else post.astype(np.float64),
        )

    def __call__(self, x: Array, run: Run) -> Array:
        spec, count, size, heads = self.spec, run.count, self.spec.head_size, self.spec.heads
        turning = (heads + spec.kv_heads) * size
        valued = turning + spec.kv_heads * size
        mixed = product(tile_norm(x, run.count, spec.norm_epsilon), self.entry, run.ladder)
        turned = mixed[:count, :turning].reshape(count, -1, size)
        if self.head_norms is not None:
            turned = rms_norm(turned, spec.norm_epsilon)
            turned *= self.head_norms
        if run.turns is not None and spec.turns(self.layer):
            turned = rotate(turned, run.turns)
        values = mixed[:count, turning:valued].reshape(count, -1, size)
        seen = np.zeros((run.height, heads * size))
        queries = run.rows(turned[:, :heads])
        lanes = run.store.attend(self.layer, turned[:, heads:], values)
        if not run.n_outputs:
            return seen
        for lane in lanes:
            attend(queries, run.lane(lane), seen.reshape(-1, heads, size), run)
        if spec.attention_gate:
            seen *= sigmoid(run.tiled(mixed[:, valued : valued + heads * size]))
        result = product(seen, self.exit, run.ladder)[:, : spec.width]
        if self.post_norm is not None:
            result = rms_norm(result, spec.norm_epsilon)
            result *= self.post_norm
        return result


def head_norms(spec: ModelSpec, weights: Weights, layer: int) -> Array:
    """Norm weights (H + K, size) of queries, which carry the scale, and of keys."""
    query, key = (
        weights[f"blk.{layer}.attn_{which}_norm.weight"].astype(np.float64)[halves_order(spec)]
        for which in "qk"
    )
    return np.stack([query / math.sqrt(spec.head_size)] * spec.heads + [key] * spec.kv_heads)


def attend(queries: Array, lane: Lane, out: Array, run: Run) -> None:
    """Write the attention of the lane's queries (T, H, size) into out (R, H, size)."""
    group = queries.shape[1] // lane.keys.shape[1]
    keys = lane.keys.reshape(-1, BLOCK, *lane.keys.shape[1:])
    values = lane.values.reshape(-1, BLOCK, *lane.values.shape[1:])
    for mask in run.masks.of(lane, group):
        rows = lane.rows[mask.rows]
        scores = score(queries[rows], keys[mask.blocks], run.attention_ladder)
        hide(scores, mask.hidden, len(rows), group)
        out[rows] = gather(scores, values[mask.blocks], len(rows), group)


def score(queries: Array, keys: Array, ladder: Ladder) -> Array:
    """Scores (K, b, t, h, 64) of queries (q, H, size) and keys (b, 64, K, size)."""
    count, heads, size = queries.shape
    kv_heads = keys.shape[2]
    rows = count * heads // kv_heads
    tiles, height = tiling(rows, ladder)
    if count > 1:
        queries = queries.reshape(count, kv_heads, -1, size).transpose(1, 0, 2, 3)
    stacked = queries.reshape(kv_heads, rows, size)
    if tiles * height > rows:
        filled = np.zeros((kv_heads, tiles * height, size))
        filled[:, :rows] = stacked
        stacked = filled
    stacked = stacked.reshape(kv_heads, 1, tiles, height, size)
    scores: Array = np.matmul(stacked, keys.transpose(2, 0, 3, 1)[:, :, None])
    return scores


@lru_cache(maxsize=4096)
def tiling(rows: int, ladder: Ladder) -> tuple[int, int]:
    """The number of tiles for these rows, and their height: the lowest if one tile suffices."""
    height = next((height for height in ladder if height >= rows), ladder[-1])
    return -(-rows // height), height


def hide(scores: Array, hidden: Hidden, count: int, group: int) -> None:
    """Mask keys with minus infinity; most blocks are fully visible or short."""
    kv_heads, blocks = scores.shape[:2]
    if not blocks:
        raise ContractError("a query saw no key: the memory shows it no cell at all")
    rows = scores.reshape(kv_heads, blocks, -1, BLOCK)[:, :, : count * group]
    rows = rows.reshape(kv_heads, blocks, count, group, BLOCK)
    for where, mask in hidden:
        np.copyto(rows[:, where], -np.inf, where=mask)


def largest(scores: Array) -> Array:
    """The largest score of each row (K, 1, t, h, 1); one NumPy call for small arrays, else two."""
    if scores.size > FEW_SCORES:
        scores = np.maximum.reduce(scores, axis=1, keepdims=True)
    highest: Array = np.maximum.reduce(scores, axis=(1, -1), keepdims=True)
    return highest


def gather(scores: Array, values: Array, count: int, group: int) -> Array:
    """Softmax of scores (K, b, t, h, 64) over values (b, 64, K, size): (count, H, size).

    Two passes: the largest score first, which has no order, then the sums, which have one.
    """
    kv_heads, size = values.shape[2:]
    one_block = scores.shape[1] == 1
    np.subtract(scores, largest(scores), scores)
    np.exp(scores, out=scores)
    totals = np.add.reduce(scores, axis=-1)
    parts = np.matmul(scores, values.transpose(2, 0, 1, 3)[:, :, None])
    total = totals[:, 0] if one_block else np.add.reduce(totals, axis=1)
    seen: Array = parts[:, 0] if one_block else np.add.reduce(parts, axis=1)
    seen /= total[..., None]
    rows = seen.reshape(kv_heads, -1, size)[:, : count * group]
    if count > 1:
        rows = rows.reshape(kv_heads, count, group, size).transpose(1, 0, 2, 3)
    return rows.reshape(count, kv_heads * group, size)


# Recurrent layers over rows of which some are padding, as batches on a real server hold them.
#
# The fold of a set's tokens is the plain one, row for row and bit for bit, as if the padding were
# not there. The *kept* state follows upstream: the convolution's rows before the assumed end of the
# tokens, and of a chunked scan the state at `Padding.endings`.


class Scan(Protocol):
    """Rows of one set folded into a state (1, n): the outputs, and the state after them."""

    def __call__(self, rows: Integers, state: Array) -> tuple[Array, Array]:
        """Compute the outputs; rows must not be empty."""
        ...


def masked(rows: Array, padding: Padding | None) -> Array:
    """A convolution's new rows (S, L, C), zeros where they are padding."""
    return rows if padding is None else np.where(padding.real[..., None], rows, 0)


def kept_rows(joined: Array, taps: int, padding: Padding) -> Array:
    """The convolution's rows carried over, (S, 1, (k - 1) * C): those before `conv_ends`.

    [ carried: k - 1 | rows ]      an end of e keeps [e, e + k - 1) of both together
    """
    sets, count = joined.shape[0], joined.shape[1] - taps + 1
    ends = np.full(sets, count)
    if padding.conv_ends is not None:
        ends = np.clip(padding.conv_ends, 0, count)
    kept = [row[end : end + taps - 1] for row, end in zip(joined, ends, strict=True)]
    return np.stack(kept).reshape(sets, 1, -1)


def fold_tokens(y: Array, real: Array, state: Array, scan: Scan) -> Array:
    """The state (1, n) of a layer without chunks: only token rows are folded in."""
    edges = np.flatnonzero(np.diff(real)) + 1
    for rows in np.split(np.arange(len(real)), edges):
        if real[rows[0]]:
            y[rows], state = scan(rows, state)
        else:
            for row in rows:
                y[row], _ = scan(np.array([row]), state)
    return state


def fold_chunk(y: Array, ending: Ending, state: Array, scan: Scan, fades: Array) -> Array:
    """The state (1, n) kept after one chunk of a chunked scan; outputs go to `y`.

    kept = fold of `folded` from nothing + `undecayed` + former state, decayed by every row of them
    and of `fading`.   `fades` (L, n) is what each row multiplies the state by.
    """
    tokens = np.sort(np.concatenate((ending.folded, ending.undecayed, ending.lost)))
    plain, nothing = state, np.zeros_like(state)
    if len(tokens):
        y[tokens], plain = scan(tokens, state)
    if ending.keeps_former:
        return state
    if ending.plain(fresh=not state.any()):
        return plain
    kept = scan(ending.folded, nothing)[1] if len(ending.folded) else nothing
    for row in ending.undecayed:
        kept = kept + scan(np.array([row]), nothing)[1]
    decaying = np.concatenate((tokens, ending.fading))
    return np.asarray(kept + state * np.prod(fades[decaying], axis=0))


def read_former(ending: Ending, state: Array, fades: Array) -> list[tuple[int, Array]]:
    """The earlier state read by each padding row, decayed up to that row."""
    tokens = {int(row) for row in (*ending.folded, *ending.undecayed, *ending.lost)}
    fading = {int(row) for row in ending.fading}
    seen = []
    for row in map(int, ending.rows):
        if row in tokens or row in fading:
            state = state * fades[row]
        if row not in tokens:
            seen.append((row, state))
    return seen


# The causal convolution that recurrent layers carry across ubatches, and LFM2's layer of it.
#
# [ carried: k - 1 rows | the set's L rows ]      row t sees the k rows that end with it


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
    """The carried rows after the last row but `back`: (S, (k - 1) * C)."""
    stop = joined.shape[1] - back
    return joined[:, stop - taps + 1 : stop].reshape(joined.shape[0], -1)


def states_after(joined: Array, taps: int, planes: int, row: int) -> Array:
    """Rows (S, planes, row) to be stored, newest first: carried rows in front, the rest to be
    filled.

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
    """LFM2's layer: a convolution between two gates; its state is the carried rows."""

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
        spec, count, width = self.spec, run.count, self.spec.width
        mixed = product(tile_norm(x, run.count, spec.norm_epsilon), self.entry, run.ladder)
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


# Mamba-2: a causal convolution, then a scan that folds one token after the other into a state.
#
# C   inner + 2 G N, channels of the convolution: x, B and C side by side
# H   state heads     G   groups of heads     N   state size
# W   inner / G, channels of a group: those of its heads side by side
# h   state (G, N, W)     h' = exp(dt A) h + B (dt x)        y = C h' + D x

BLOCK_TOKENS: Final = 16
"""Tokens whose states are held at once, bounded by the processor's cache."""


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
        if run.count == 1 and run.outputs is None and run.padding is None:
            return self._one(x, run)
        spec, inner, count, sets = self.spec, self.spec.inner, run.count, run.sets
        channels, heads = spec.conv_channels, spec.state_heads
        mixed = product(tile_norm(x, run.count, spec.norm_epsilon), self.entry, run.ladder)
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
        mixed = product(tile_norm(x, run.count, spec.norm_epsilon), self.entry, run.ladder)[0]
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
        for start in range(0, length, BLOCK_TOKENS):
            stop = min(start + BLOCK_TOKENS, length)
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
                    y[one, row] = self.read_out(convolved[one, row], former)
                now = fold_chunk(y[one], ending, now, scan, fades)
            after[one] = now
        return y, after

    def read_out(self, convolved: Array, state: Array) -> Array:
        """The output (inner,) of a state (G * N * W) for a row (C,) that is not folded in."""
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
    "attn_norm.weight", "ssm_in.weight", "ssm_conv1d.weight", "ssm_conv1d.bias", "ssm_dt.bias",
    "ssm_a", "ssm_d", "ssm_norm.weight", "ssm_out.weight",
)  # fmt: skip


# The gated delta rule of Qwen 3.5: a state that is corrected towards what it should recall.
#
# H   value heads (key head h % key heads serves value head h)     N   state size
# M   state (H, N, N), by key and value
# M' = g M + k (x) beta (v - (g M)^T k)          o = M'^T q


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
        wide = {name: weights[p + name].astype(np.float64) for name in _DELTA_NAMES}
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
        spec, inner, count, sets = self.spec, self.spec.inner, run.count, run.sets
        channels, heads = spec.conv_channels, spec.state_heads
        mixed = product(tile_norm(x, run.count, spec.norm_epsilon), self.entry, run.ladder)
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
        states = np.empty((min(BLOCK_TOKENS, length), *last.shape))  # written again and again
        fades = np.empty_like(states)
        for start in range(0, length, BLOCK_TOKENS):
            some = slice(start, min(start + BLOCK_TOKENS, length))
            after_each, fading = states[: some.stop - start], fades[: some.stop - start]
            np.copyto(fading, fade[some])  # a full operand is twice as quick
            _correct(
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


def _correct(before: Array, steps: Iterable[tuple[Array, ...]]) -> None:
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
_DELTA_NAMES: Final = (
    *_ENTRY,
    "attn_norm.weight",
    "ssm_conv1d.weight",
    "ssm_dt.bias",
    "ssm_a",
    "ssm_norm.weight",
    "ssm_out.weight",
)
