"""The two ends of a network: what rows start as, and what the head makes of them."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cachesim.errors import ContractError
from cachesim.model.layers.norm import rms_norm
from cachesim.model.layers.tiles import Ladder, Matrix, packed, padded, product
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Ubatch
from cachesim.model.weights import Weights, output_norm_name
from cachesim.units import Array, Integers


class Intake(Protocol):
    """The start of the residual stream."""

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
    """The usual intake: one row of the table per token."""

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
    """The intake of an MTP head: each token beside the target's last hidden row before it."""

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
        """Prepare the tensors behind the last layer; an MTP head shares all but the norm."""
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
        """The rows (T, d) after the last norm: what an MTP head reads."""
        rows = rms_norm(x, self.spec.norm_epsilon)
        rows *= self.norm
        if not math.isfinite(float(rows.sum())):
            msg = "a row of the network is not finite: a query saw no key, or a state was damaged"
            raise ContractError(msg)
        return rows

    def logits(self, hidden: Array, outputs: Integers | None, ladder: Ladder) -> Array:
        """Logits (rows asked for, vocabulary) of hidden rows (T, d)."""
        wanted = hidden if outputs is None else hidden[outputs]
        rows = np.zeros((padded(len(wanted), ladder), self.spec.width))
        rows[: len(wanted)] = wanted
        return product(rows, self.matrix, ladder)[: len(wanted), : self.spec.vocabulary]
