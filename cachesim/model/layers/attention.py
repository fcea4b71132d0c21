"""Attention over a Lanes: blocks of 64 keys, added up one after the other.

Keys lie in blocks aligned to positions, whoever brings them. For each query a block yields the sum
of its weighted values and the sum of its weights; blocks are added in order, so a query meets
the same partial sums whether it came alone or in a crowd. A key that it may not see weighs an
exact zero, and so does a block in which it sees nothing.

    H   query heads             K   key heads         G   H / K, query heads per key head
    q   queries taken at once   t   tiles of rows     h   height of a tile; t h >= q G
    n   keys of the lane        b   n / 64, blocks
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from cachesim.model.layers.norm import rms_norm, sigmoid
from cachesim.model.layers.rope import halves_order, rotate
from cachesim.model.layers.run import InAndOut, Run
from cachesim.model.layers.tiles import Ladder, Matrix, packed, product
from cachesim.model.spec import ModelSpec
from cachesim.model.store import BLOCK, Lane
from cachesim.model.weights import Weights
from cachesim.units import Array

Hidden: TypeAlias = tuple[tuple[slice, Array], ...]

FEW_SCORES: Final = 2048
"""Up to so many, a call of NumPy takes longer than what it does."""


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
        """The layer's summand for rows x (R, d)."""
        spec, count, size, heads = self.spec, run.count, self.spec.head_size, self.spec.heads
        turning = (heads + spec.kv_heads) * size
        valued = turning + spec.kv_heads * size
        mixed = product(rms_norm(x, spec.norm_epsilon), self.entry, run.ladder)
        turned = mixed[:count, :turning].reshape(count, -1, size)
        if self.head_norms is not None:
            turned = rms_norm(turned, spec.norm_epsilon)
            turned *= self.head_norms
        if run.turns is not None and spec.turns(self.layer):
            turned = rotate(turned, run.turns)
        values = mixed[:count, turning:valued].reshape(count, -1, size)
        seen = np.zeros((run.height, heads * size))
        queries = run.rows(turned[:, :heads])
        for lane in run.store.attend(self.layer, turned[:, heads:], values):
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
    """Write what the lane's rows of queries (T, H, size) see into out (R, H, size)."""
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
    """The number of tiles for these rows, and their height: the lowest, if one takes all."""
    height = next((height for height in ladder if height >= rows), ladder[-1])
    return -(-rows // height), height


def hide(scores: Array, hidden: Hidden, count: int, group: int) -> None:
    """Set to minus infinity what a row may not see; most blocks are seen by all or are short."""
    kv_heads, blocks = scores.shape[:2]
    rows = scores.reshape(kv_heads, blocks, -1, BLOCK)[:, :, : count * group]
    rows = rows.reshape(kv_heads, blocks, count, group, BLOCK)
    for where, mask in hidden:
        np.copyto(rows[:, where], -np.inf, where=mask)


def largest(scores: Array) -> Array:
    """The largest score of each row (K, 1, t, h, 1); one call is quicker than two where few lie."""
    if scores.size > FEW_SCORES:
        scores = np.maximum.reduce(scores, axis=1, keepdims=True)
    found: Array = np.maximum.reduce(scores, axis=(1, -1), keepdims=True)
    return found


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
