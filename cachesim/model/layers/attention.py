"""Attention over a Window: blocks of 64 keys, added up one after the other.

Keys lie in blocks aligned to positions, whoever brings them. For each query a block yields the sum
of its weighted values and the sum of its weights; blocks are added in order, so a query meets
the same partial sums whether it came alone or in a crowd. A key that it may not see weighs an
exact zero, and so does a block in which it sees nothing.

    H   query heads        K   key heads        G   H / K, query heads per key head
    n   keys of the lane   b   n / 64, blocks   r   query rows of one key head, in full tiles
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from cachesim.model.layers.norm import rms_norm, sigmoid
from cachesim.model.layers.rope import halves_order, rotate
from cachesim.model.layers.tiles import LADDER, Cuts, cuts, packed, product
from cachesim.model.spec import ModelSpec
from cachesim.model.store import ABSENT, BLOCK, Lane, Store
from cachesim.model.weights import Weights
from cachesim.units import Array, Integers

QUERIES: Final = 64
"""Queries of a lane that are taken at once: their scores should fit the second cache."""

Turns = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention; the norm before it is folded into its first matrix."""

    spec: ModelSpec
    layer: int
    entry: Array  # (d, queries + keys + values + gate)
    exit: Array  # (queries, d)
    head_norms: Array | None  # (H + K, head size): norms of queries and keys
    post_norm: Array | None

    @classmethod
    def read(cls, spec: ModelSpec, weights: Weights, layer: int) -> "Attention":
        """Prepare the tensors of one layer: queries carry the scale 1 / sqrt(head size)."""
        p, size = f"blk.{layer}.", spec.head_size
        order, scale = halves_order(spec), 1 / math.sqrt(spec.head_size)
        norm = weights[p + "attn_norm.weight"].astype(np.float64)

        def by_head(name: str, heads: int) -> Array:
            return (weights[p + name] * norm).reshape(heads, -1, spec.width)

        queries = by_head("attn_q.weight", spec.heads)
        queries, gate = queries[:, :size], queries[:, size:]
        keys = by_head("attn_k.weight", spec.kv_heads)
        head_norms = None
        if spec.qk_norm:
            pair = (weights[p + f"attn_{w}_norm.weight"].astype(np.float64)[order] for w in "qk")
            query_norm, key_norm = pair
            head_norms = np.concatenate(
                [
                    np.tile(query_norm * scale, (spec.heads, 1)),
                    np.tile(key_norm, (spec.kv_heads, 1)),
                ]
            )
        else:
            queries = queries * scale
        parts = [queries[:, order], keys[:, order], by_head("attn_v.weight", spec.kv_heads), gate]
        post = weights[p + "post_attention_norm.weight"] if spec.post_norms else None
        return cls(
            spec,
            layer,
            packed(*(part.reshape(-1, spec.width) for part in parts)),
            packed(weights[p + "attn_output.weight"]),
            head_norms,
            None if post is None else post.astype(np.float64),
        )

    def __call__(
        self, x: Array, count: int, tiles: Cuts, turns: Turns | None, store: Store
    ) -> Array:
        """What attention adds to rows x (R, d), of which the first `count` are real."""
        spec, size = self.spec, self.spec.head_size
        heads, kv_heads = spec.heads, spec.kv_heads
        both = (heads + kv_heads) * size
        mixed = product(rms_norm(x, spec.norm_epsilon), self.entry, tiles)
        turned = mixed[:count, :both].reshape(count, heads + kv_heads, size)
        values = mixed[:count, both : both + kv_heads * size].reshape(count, kv_heads, size)
        if self.head_norms is not None:
            turned = rms_norm(turned, spec.norm_epsilon)
            turned *= self.head_norms
        if turns is not None:
            turned = rotate(turned, turns)
        window = store.attend(self.layer, turned[:, heads:], values)
        seen = np.zeros((x.shape[0], heads * size))
        for lane in window:
            attend(turned[:, :heads], lane, seen.reshape(-1, heads, size))
        if spec.attention_gate:
            gate = both + kv_heads * size
            seen *= sigmoid(mixed[:, gate : gate + heads * size])
        result = product(seen, self.exit, tiles)[:, : spec.width]
        if self.post_norm is not None:
            result = rms_norm(result, spec.norm_epsilon)
            result *= self.post_norm
        return result


def attend(queries: Array, lane: Lane, out: Array) -> None:
    """Write what each of the lane's rows of queries (T, H, size) sees into out (R, H, size)."""
    rows = lane.rows
    for start in range(0, len(rows), QUERIES):
        some = slice(start, start + QUERIES)
        low, high = lane.low[some], lane.high[some]
        keys, values, hidden = _in_sight(lane, low, high)
        out[rows[some]] = _weigh(queries[rows[some]], keys, values, hidden)


def _in_sight(lane: Lane, low: Integers, high: Integers) -> tuple[Array, Array, Array | None]:
    """The lane's blocks of which somebody sees something, and what each row does not see."""
    positions = lane.positions
    if len(positions) > BLOCK and len(low) > 1:
        blocks = positions.reshape(-1, BLOCK)
        seen = (blocks.min(axis=1) <= high.max()) & (
            np.where(blocks == ABSENT, -1, blocks).max(axis=1) >= low.min()
        )
        first, last = int(seen.argmax()), len(seen) - int(seen[::-1].argmax())
        cut = slice(first * BLOCK, last * BLOCK)
        positions = positions[cut]
        keys, values = lane.keys[cut], lane.values[cut]
    else:
        keys, values = lane.keys, lane.values
    hidden = positions > high[:, None]
    hidden |= positions < low[:, None]
    return keys, values, hidden


def _weigh(queries: Array, keys: Array, values: Array, hidden: Array | None) -> Array:
    """Softmax-weighted values for queries (q, H, size) over keys and values (n, K, size).

    Two passes: the largest score first, which has no order, then the sums, which have one.
    """
    count, heads, size = queries.shape
    length, kv_heads = keys.shape[0], keys.shape[1]
    group = heads // kv_heads
    rows = count * group
    tiles = cuts(rows, LADDER)
    padded = tiles[-1].stop
    stacked = np.zeros((kv_heads, padded, size))
    stacked[:, :rows] = (
        queries.reshape(count, kv_heads, group, size)
        .transpose(1, 0, 2, 3)
        .reshape(kv_heads, rows, size)
    )
    scores = np.empty((kv_heads, padded, length))
    for tile in tiles:
        np.matmul(stacked[:, tile], keys.transpose(1, 2, 0), out=scores[:, tile])
    if hidden is not None:
        real = scores[:, :rows].reshape(kv_heads, count, group, length)
        np.copyto(real, -np.inf, where=hidden[:, None, :])
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    blocked = scores.reshape(kv_heads, padded, -1, BLOCK)
    weights = np.add.accumulate(np.add.reduce(blocked, axis=-1), axis=-1)[:, :, -1]
    total = _sum_blocks(blocked, values, tiles)
    total = total[:, :rows] / weights[:, :rows, None]
    return (
        total.reshape(kv_heads, count, group, size)
        .transpose(1, 0, 2, 3)
        .reshape(count, heads, size)
    )


def _sum_blocks(blocked: Array, values: Array, tiles: Cuts) -> Array:
    """Weights (K, r, b, 64) times values (n, K, size), block after block: (K, r, size)."""
    kv_heads, padded, blocks, _ = blocked.shape
    by_block = values.reshape(blocks, BLOCK, kv_heads, -1).transpose(0, 2, 1, 3)
    parts = np.empty((blocks, kv_heads, padded, by_block.shape[-1]))
    for tile in tiles:
        np.matmul(blocked[:, tile].transpose(2, 0, 1, 3), by_block, out=parts[:, :, tile])
    return np.add.reduce(parts, axis=0)
