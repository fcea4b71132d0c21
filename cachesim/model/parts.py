"""RMSNorm and the activations, in one elementwise order.

An exponential of a large number may overflow on its way to a limit that is right (x / infinity);
the network silences the warning once for all layers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Protocol

import numpy as np

from cachesim.errors import ContractError
from cachesim.model.spec import Activation, ModelSpec
from cachesim.model.store import Ubatch
from cachesim.model.tiles import InAndOut, Ladder, Matrix, Run, packed, padded, product
from cachesim.model.weights import Weights, mlp_norm_name, output_norm_name
from cachesim.units import Array, Integers

ZERO: Final = np.array(0.0)
ONE: Final = np.array(1.0)
"""Zero-dimensional arrays: NumPy converts them twice as fast as Python's 0.0 and 1.0."""

TABLE_ENDS: Final = 10.0
"""Range of ggml's GELU table: x above it, 0 below."""


def squares(rows: Array) -> Array:
    """Sum of squares along the last axis, kept as an axis of one."""
    sums: Array = np.matmul(rows[..., None, :], rows[..., :, None])[..., 0]
    return sums


def rms_norm(rows: Array, epsilon: float) -> Array:
    """Rows (..., d) normalised to a root mean square of one; the caller applies the weight."""
    size = rows.shape[-1]
    scale = squares(rows)
    scale *= 1.0 / size
    scale += epsilon
    np.sqrt(scale, out=scale)
    return np.divide(rows, scale)


def tile_norm(rows: Array, count: int, epsilon: float) -> Array:
    """`rms_norm` of rows of which the first `count` are no zeros: a single one in plain numbers."""
    if count != 1:
        return rms_norm(rows, epsilon)
    row = rows[0]
    scale = math.sqrt(float(row.dot(row)) * (1.0 / len(row)) + epsilon)
    return np.divide(rows, scale)


def l2_norm(rows: Array, epsilon: float) -> Array:
    """Rows (..., d) normalised to length one; lengths below epsilon are divided by it (as ggml
    does).
    """
    length = squares(rows)
    np.sqrt(length, out=length)
    np.maximum(length, epsilon, out=length)
    return np.divide(rows, length)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    result: Array = np.negative(x)
    np.exp(result, result)
    np.add(result, ONE, result)
    np.divide(ONE, result, result)
    return result


def silu(x: Array) -> Array:
    """X times its sigmoid."""
    result: Array = np.negative(x)
    np.exp(result, result)
    np.add(result, ONE, result)
    np.divide(x, result, result)
    return result


def gelu(x: Array) -> Array:
    """The tanh form, as ggml computes it."""
    inner = x * x
    inner *= 0.044715
    inner += 1.0
    inner *= x
    inner *= -2.0 * math.sqrt(2.0 / math.pi)  # 0.5 (1 + tanh u) is the sigmoid of 2 u
    np.exp(inner, out=inner)
    inner += 1.0
    np.divide(x, inner, out=inner)
    return inner


def gelu_table(x: Array) -> Array:
    """GELU as ggml_vec_geglu_f32 looks it up: half-precision numbers on both sides."""
    within = np.clip(x, -TABLE_ENDS, TABLE_ENDS)
    halves = within.astype(np.float32).astype(np.float16)
    result = _table()[halves.view(np.uint16)]
    np.copyto(result, 0.0, where=x <= -TABLE_ENDS)
    np.copyto(result, x, where=x >= TABLE_ENDS)
    return result


@cache
def _table() -> Array:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return gelu(every).astype(np.float16).astype(np.float64)


ACTIVATIONS: Final[Mapping[Activation, Callable[[Array], Array]]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu-table": gelu_table,
}


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow."""
    result: Array = np.logaddexp(ZERO, x)
    return result


# RoPE, with one layout for both pairings.
#
# Llama turns neighbours (2i, 2i + 1), most others turn (i, i + half). A key meets a query only in
# their dot product, so the rows of a pairs model's projections are put in halves order once, when
# the network is built (`halves_order`), and one rotation serves both.

PAGE: Final = 1024
"""Positions of a page of angles."""

MOST_PAGES: Final = 256
"""Most pages kept before the cache is emptied."""


def halves_order(spec: ModelSpec) -> Integers:
    """The order of a head's rows in which rotated pairs become halves."""
    order = np.arange(spec.head_size)
    if spec.rope != "pairs":
        return order
    return np.concatenate([order[0::2], order[1::2]])


class Rotary:
    """Cosines and sines by position, computed page by page."""

    def __init__(self, spec: ModelSpec) -> None:
        half = spec.head_size // 2
        exponents = np.arange(half) * (-2.0 / spec.head_size)
        self.frequencies = np.power(spec.rope_base, exponents)
        self.still = spec.rope == "none" or not {"attention", "window"}.intersection(spec.layers)
        self._pages: dict[int, Array] = {}

    def page(self, number: int) -> Array:
        """Angles of positions [number * PAGE, (number + 1) * PAGE): (PAGE, 2, 2, half)."""
        kept = self._pages.get(number)
        if kept is None:
            if len(self._pages) >= MOST_PAGES:
                self._pages.clear()
            positions = np.arange(number * PAGE, (number + 1) * PAGE, dtype=np.float64)
            angles = positions[:, None] * self.frequencies
            cosines, sines = np.cos(angles), np.sin(angles)
            kept = np.stack([cosines, cosines, -sines, sines], axis=1)
            kept = self._pages[number] = kept.reshape(PAGE, 2, 2, -1)
        return kept

    def turns(self, positions: Integers) -> tuple[Array, Array] | None:
        """Cosines and sines of rows at these positions: two (T, 1, 2, half); None: no rotation."""
        if self.still:
            return None
        if len(positions) == 1:
            first = last = positions.item() // PAGE
        else:
            first = int(np.minimum.reduce(positions)) // PAGE
            last = int(np.maximum.reduce(positions)) // PAGE
        if first == last:
            table = self.page(first)[positions - first * PAGE]
        else:
            table = np.empty((len(positions), 2, 2, len(self.frequencies)))
            numbers = positions // PAGE
            for number in np.unique(numbers):
                here = numbers == number
                table[here] = self.page(int(number))[positions[here] - number * PAGE]
        return table[:, None, 0], table[:, None, 1]


def rotate(rows: Array, turns: tuple[Array, Array]) -> Array:
    """Rows (T, heads, head size) turned to their positions."""
    cosines, sines = turns
    halves = rows.reshape(*rows.shape[:-1], 2, -1)
    result = halves * cosines
    result += halves[..., ::-1, :] * sines
    return result.reshape(rows.shape)


# The gated MLP: down(act(gate(x)) * up(x)).


@dataclass(frozen=True, slots=True)
class Mlp(InAndOut):
    """The MLP of a layer; the norm before it is folded into its first matrix."""

    spec: ModelSpec
    entry: Matrix  # (d, 2 * mlp width): gate and up side by side
    exit: Matrix  # (mlp width, d)
    post_norm: Array | None

    @classmethod
    def read(cls, spec: ModelSpec, weights: Weights, layer: int) -> "Mlp":
        """Prepare the tensors of one layer."""
        p = f"blk.{layer}."
        norm = weights[mlp_norm_name(spec, layer)].astype(np.float64)
        gate, up = (weights[p + f"ffn_{half}.weight"] * norm for half in ("gate", "up"))
        post = weights[p + "post_ffw_norm.weight"] if spec.post_norms else None
        return cls(
            spec,
            packed(gate, up),
            packed(weights[p + "ffn_down.weight"]),
            None if post is None else post.astype(np.float64),
        )

    def __call__(self, x: Array, run: Run) -> Array:
        spec, width, count = self.spec, self.spec.mlp_width, run.n_outputs
        both = product(tile_norm(x, count, spec.norm_epsilon), self.entry, run.ladder)
        hidden = np.zeros((len(x), width))
        active = ACTIVATIONS[spec.activation](both[:count, :width])
        np.multiply(active, both[:count, width : 2 * width], out=hidden[:count])
        result = product(hidden, self.exit, run.ladder)[:, : spec.width]
        if self.post_norm is not None:
            result = rms_norm(result, spec.norm_epsilon)
            result *= self.post_norm
        return result


# The two ends of a network: what rows start as, and what the head makes of them.


class Intake(Protocol):
    """The input layer of the residual stream."""

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that rows are multiplied with, if any."""
        ...

    def __call__(self, ubatch: Ubatch, ladder: Ladder) -> Array:
        """The rows (R, d) that the first layer reads."""
        ...


def embedding_table(spec: ModelSpec, weights: Weights) -> Array:
    """The embeddings (vocabulary, d) as the stream takes them: Gemma scales them up."""
    table: Array = weights["token_embd.weight"] * np.float64(spec.embedding_scale)
    return table


@dataclass(frozen=True, slots=True)
class Embedding:
    """The usual input layer: one embedding row per token."""

    table: Array  # (vocabulary, d)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that rows are multiplied with."""
        return ()

    def __call__(self, ubatch: Ubatch, ladder: Ladder) -> Array:
        """Embeddings of the tokens, then rows of zeros."""
        x = np.zeros((padded(len(ubatch.tokens), ladder), self.table.shape[1]))
        x[: len(ubatch.tokens)] = self.table[ubatch.tokens]
        return x


@dataclass(frozen=True, slots=True)
class MtpIntake:
    """The input layer of an MTP head: each token beside the target's preceding hidden row."""

    spec: ModelSpec
    table: Array  # (vocabulary, d)
    join: Matrix  # (2 d, d): the norms of both halves are folded in

    @classmethod
    def read(cls, spec: ModelSpec, weights: Weights) -> "MtpIntake":
        """Prepare the tensors of the MTP layer's intake."""
        p = f"blk.{spec.mtp_layer}.nextn."
        norms = np.concatenate([weights[p + "enorm.weight"], weights[p + "hnorm.weight"]])
        join = packed(weights[p + "eh_proj.weight"] * norms.astype(np.float64))
        return cls(spec, embedding_table(spec, weights), join)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that rows are multiplied with."""
        return (self.join,)

    def __call__(self, ubatch: Ubatch, ladder: Ladder) -> Array:
        """The product of both normed halves, side by side, with one matrix."""
        count, width, epsilon = len(ubatch.tokens), self.spec.width, self.spec.norm_epsilon
        if ubatch.hidden is None or ubatch.hidden.shape != (count, width):
            msg = f"an MTP head reads a hidden row of width {width} with each of {count} tokens"
            raise ContractError(msg)
        both = np.zeros((padded(len(ubatch.tokens), ladder), 2 * width))
        both[:count, :width] = rms_norm(self.table[ubatch.tokens], epsilon)
        both[:count, width:] = rms_norm(np.ascontiguousarray(ubatch.hidden), epsilon)
        return product(both, self.join, ladder)[:, :width].copy()


@dataclass(frozen=True, slots=True)
class Head:
    """The last norm and the logits."""

    spec: ModelSpec
    norm: Array  # (d,)
    matrix: Matrix  # (d, vocabulary)

    @classmethod
    def read(cls, spec: ModelSpec, weights: Weights, *, mtp: bool) -> "Head":
        """Prepare the tensors after the last layer; an MTP head shares all but the norm."""
        norm = output_norm_name(spec)
        if mtp:
            norm = f"blk.{spec.mtp_layer}.nextn.shared_head_norm.weight"
        matrix = "token_embd.weight" if spec.tied_head else "output.weight"
        return cls(spec, weights[norm].astype(np.float64), packed(weights[matrix]))

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that rows are multiplied with."""
        return (self.matrix,)

    def hidden(self, x: Array) -> Array:
        """Hidden rows (T, d) after the last norm, the input of an MTP head."""
        rows = rms_norm(x, self.spec.norm_epsilon)
        rows *= self.norm
        if not math.isfinite(float(rows.sum())):
            msg = "a row of the network is not finite: a query saw no key, or a state was damaged"
            raise ContractError(msg)
        return rows

    def logits(self, hidden: Array, outputs: Integers | None, ladder: Ladder) -> Array:
        """Logits (requested rows, vocabulary) of hidden rows (T, d)."""
        wanted = hidden if outputs is None else hidden[outputs]
        rows = np.zeros((padded(len(wanted), ladder), self.spec.width))
        rows[: len(wanted)] = wanted
        return product(rows, self.matrix, ladder)[: len(wanted), : self.spec.vocabulary]
