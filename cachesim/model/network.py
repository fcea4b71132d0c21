"""The float network: float64 arithmetic with the same bits for every split into ubatches.

    T   rows of the ubatch      R   T padded to full tiles      d   width

Every preset follows a family as llama.cpp builds it: Llama (`dense`), Gemma 3 (`swa`), Mamba-2
(`recurrent`), Granite 4 hybrid (`hybrid`), Qwen 3.5 (`hybrid-delta`, `hybrid-mtp`), LFM2
(`hybrid-swa`). Norm weights are folded into the matrix that follows them.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Final, TypeAlias

import numpy as np

from cachesim.errors import LimitError, PositionError, TokenError
from cachesim.model.arithmetic import LayerShape, Output, Place
from cachesim.model.mixers import Attention, Delta, ShortConv, Ssm
from cachesim.model.parts import (
    Embedding,
    Head,
    Intake,
    Mlp,
    MtpIntake,
    Rotary,
    embedding_table,
    rotate,
)
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.model.store import BLOCK, Store, Ubatch
from cachesim.model.tiles import KeyMasks, Layer, Run, attention_ladder_for, ladder_for
from cachesim.model.weights import Weights, draw
from cachesim.units import Array, Integers, Token

Reader: TypeAlias = Callable[[ModelSpec, Weights, int], Layer]

MOST_ROWS: Final = 1 << 20
"""Most rows of one ubatch."""

MOST_POSITION: Final = (1 << 31) - 1
"""Largest position: 32-bit on the real servers."""

LARGE: Final = 24 << 20
"""Allocation size in bytes below which glibc keeps freed memory."""


@cache
def keep_freed_memory() -> None:
    """Make the C library keep freed memory for the next array, as new pages are slow.

    glibc returns freed memory to the system page by page, and allocates it again soon after. Its
    threshold grows with the largest array ever freed, so one is freed here, untouched and without
    cost. No effect with other C libraries.
    """
    np.empty(LARGE, np.uint8)


class FloatNetwork:
    """A stateless network in float64 that runs ubatches against a Store.

    With `mtp` it is the companion of the network proper: the MTP layer alone, between an intake
    that reads hidden rows and the target's own head.
    """

    def __init__(
        self, spec: ModelSpec, weights: Weights | None = None, *, mtp: bool = False
    ) -> None:
        keep_freed_memory()
        self._spec = spec
        self._weights = draw(spec) if weights is None else weights
        self._mtp = mtp
        self._numbers = (len(spec.layers),) if mtp else tuple(range(len(spec.layers)))
        self._entry: Intake = (
            MtpIntake.read(spec, self._weights)
            if mtp
            else Embedding(embedding_table(self._spec, self._weights))
        )
        *body, last = [self._read(number) for number in self._numbers]
        self._body = [layer for layers in body for layer in layers]
        self._last = last
        self._head = Head.read(spec, self._weights, mtp=mtp)
        self._rotary = Rotary(spec)
        parts = [self._entry, *self._body, *self._last, self._head]
        matrices = tuple(matrix for part in parts for matrix in part.matrices)
        self._ladder = ladder_for(matrices)
        self._attention_ladder = attention_ladder_for(spec.kv_heads, spec.head_size, BLOCK)
        self._companion = (
            FloatNetwork(spec, self._weights, mtp=True) if spec.mtp_depth and not mtp else None
        )

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def weights(self) -> Weights:
        """The tensors, under the names of the real files."""
        return self._weights

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The layers with data in memory, in execution order."""
        return tuple(_shape(self._spec, number) for number in self._numbers)

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Run one ubatch through all layers."""
        check(ubatch, self._spec)
        run = Run(
            count=len(ubatch.tokens),
            sets=ubatch.sets,
            ladder=self._ladder,
            attention_ladder=self._attention_ladder,
            masks=KeyMasks(self._attention_ladder[-1]),
            turns=self._rotary.turns(ubatch.positions),
            store=store,
            padding=ubatch.padding,
        )
        outputs = ubatch.outputs
        last = run if self._spec.mtp_depth else run.with_outputs(outputs)
        with np.errstate(over="ignore", invalid="ignore"):  # the head checks the result
            x = self._entry(ubatch, self._ladder)
            for layer in self._body:
                x += layer(x, run)
            if not last.n_outputs:  # the part of a prompt before its end: only memories change
                self._last[0](x, last)
                return Output(logits=np.empty((0, self._spec.vocabulary)))
            x = self._finish(x, last)
            hidden = self._head.hidden(x[: len(last.rows(ubatch.tokens))])
        if last.outputs is not None:
            outputs = None
        logits = self._head.logits(hidden, outputs, self._ladder)
        return Output(logits=logits, hidden=hidden if self._spec.mtp_depth else None)

    def _finish(self, x: Array, run: Run) -> Array:
        mixer, *mlp = self._last
        mixed = mixer(x, run)
        x = run.tiled(x)
        x += mixed
        for layer in mlp:
            x += layer(x, run)
        return x

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        """Keys (n, ...) shifted by `shifts` (n,) positions."""
        turns = self._rotary.turns(np.abs(shifts))
        if turns is None or not self._spec.turns(layer):
            return keys.copy()
        cosines, sines = turns
        return rotate(keys, (cosines, sines * np.sign(shifts)[:, None, None, None]))

    def sample(self, logits: Array) -> Token:
        """The greedy token of a row of logits; ties go to the lowest id."""
        return Token(int(logits.argmax()))

    def difference(self, one: Array, other: Array) -> float:
        """The largest distance of two logits; 0.0 means the same bits."""
        if one.shape != other.shape:
            return math.inf
        return float(np.max(np.abs(one - other), initial=0.0))

    def companion(self) -> "FloatNetwork | None":
        """The network of the MTP head, or None."""
        return self._companion

    def _read(self, number: int) -> list[Layer]:
        """Layer `number`: its mixer and the MLP behind it."""
        readers: dict[LayerKind, Reader] = {
            "attention": Attention.read,
            "window": Attention.read,
            "ssm": Ssm.read,
            "delta": Delta.read,
            "conv": ShortConv.read,
        }
        spec, weights = self._spec, self._weights
        layers: list[Layer] = [readers[spec.kind(number)](spec, weights, number)]
        if spec.mlp_width:
            layers.append(Mlp.read(spec, weights, number))
        return layers


def check(ubatch: Ubatch, spec: ModelSpec) -> int:
    """Raise for a ubatch that no network can run; the bits that its positions have."""
    count = len(ubatch.tokens)
    if count == 0:
        raise TokenError("an ubatch without tokens: hand in at least one")
    if count > MOST_ROWS:
        raise LimitError(f"an ubatch of {count} rows is past the limit of {MOST_ROWS}")
    if not 0 <= _bits(ubatch.tokens) < spec.vocabulary and (
        (wrong := _outside(ubatch.tokens, spec.vocabulary - 1)) is not None
    ):
        msg = f"token {wrong} is not in the vocabulary: write ids from 0 to {spec.vocabulary - 1}"
        raise TokenError(msg)
    if len(ubatch.positions) != count:
        msg = f"{len(ubatch.positions)} positions for {count} tokens: write one for each"
        raise PositionError(msg)
    bits = _bits(ubatch.positions)
    if not 0 <= bits <= MOST_POSITION and (
        (wrong := _outside(ubatch.positions, MOST_POSITION)) is not None
    ):
        msg = f"position {wrong} is out of range: positions run from 0 to {MOST_POSITION}"
        raise PositionError(msg)
    if ubatch.sets < 1 or count % ubatch.sets:
        raise TokenError(f"{count} tokens do not fall into {ubatch.sets} sets of one length")
    return bits


def _bits(numbers: Integers) -> int:
    """The bits of all numbers: no number is above them, and a negative one makes them negative."""
    return int(numbers.item() if len(numbers) == 1 else np.bitwise_or.reduce(numbers))


def _outside(numbers: Integers, most: int) -> int | None:
    """The first number that is negative or above `most`, if any."""
    wrong = numbers[(numbers < 0) | (numbers > most)]
    return int(wrong[0]) if len(wrong) else None


def _shape(spec: ModelSpec, number: int) -> LayerShape:
    kind = spec.kind(number)
    if kind in {"attention", "window"}:
        cell = (spec.kv_heads, spec.head_size)
        place: Place = "window" if kind == "window" else "attention"
        return LayerShape(layer=number, place=place, dtype="float64", key=cell, value=cell)
    conv, state = spec.conv_row(number), spec.state_row(number)
    return LayerShape(layer=number, place="recurrent", dtype="float64", row=conv + state, conv=conv)
