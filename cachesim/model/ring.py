"""`ring`: the float network's exact twin over the integers modulo 2^64.

The layers are those of the spec, with the same cells, rows and Store; only the numbers are words.
Nothing rounds, so whatever happened to a memory either changes the answer or does not, with no
bound to argue about, and a context of a million tokens is two sums.

    attention   linear and relative: out[i] = sum over visible j of  q[i] k[j] v[j] g^(p[j] - p[i])
                A key is stored as k[j] g^p[j]: one at a wrong position, one left unrotated, one
                missing and one too many all change the sum. Without rope g is 1, as it is there.
    conv        a polynomial in the last few inputs, kept in the row
    ssm         a conv, then a chain of everything, decayed by a gate that each token sets
    delta       a conv, then a chain of chains
    in between  `mix`, a gate that is no ring operation, so that an error of any layer survives

Approximations show as in float. After a context shift a re-rotated key is exact, but above the
first layer words were computed among tokens that are gone: only a network whose one attention layer
is its first answers like a cold one. The query's place in a window comes from the Store alone.
"""

from typing import Final

import numpy as np

from cachesim.errors import ContractError
from cachesim.model.arithmetic import LayerShape, Network, Output, Place
from cachesim.model.network import check, is_one
from cachesim.model.ring_layers import Attention, Layer, Passage
from cachesim.model.ring_recurrent import Recurrent
from cachesim.model.ring_words import Powers, Words, mix, mixed, powers, salt
from cachesim.model.spec import RECURRENT_KINDS, ModelSpec
from cachesim.model.store import Store, Ubatch
from cachesim.units import Array, Integers, Token

BASE: Final = 0xD1342543DE82EF95  # 5 modulo 8: its powers differ for 2^62 positions

FEW: Final = 4
"""Rows up to which plain numbers are quicker than arrays."""


class WordNetwork:
    """A network whose logits are one word for each row."""

    _spec: ModelSpec
    _shapes: tuple[LayerShape, ...]

    @property
    def spec(self) -> ModelSpec:
        """What it was built from."""
        return self._spec

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The layers that keep something, in the order they run."""
        return self._shapes

    def sample(self, logits: Array) -> Token:
        """The token that a row's word stands for, among those that greedy decoding may yield."""
        first = self._spec.first_plain
        return Token(first + (int(logits[0]) >> 32) % (self._spec.vocabulary - first))


class RingNetwork(WordNetwork):
    """A spec's network in words: a pure function of the spec, like the float one."""

    def __init__(self, spec: ModelSpec, *, mtp: bool = False, flavour: str = "") -> None:
        """`flavour`: what is laid over the weights; keys, values and states are others then."""
        self._spec = spec
        self._mtp = mtp
        count = len(spec.layers)
        numbers = range(count, count + spec.mtp_depth) if mtp else range(count)
        self._powers = powers(1 if spec.rope == "none" else BASE)
        layers = [_layer(spec, number, self._powers) for number in numbers]
        *self._body, self._last = layers
        ids = np.arange(spec.vocabulary, dtype=np.uint64)
        self._shapes = tuple(layer.shape for layer in layers)
        self._tokens = mix(mix(ids + salt(spec.seed, f"tokens{flavour}")))
        self._head = salt(spec.seed, "mtp head" if mtp else "head")
        self._head_number = int(self._head[0])

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Put one ubatch through all layers."""
        highest = check(ubatch, self._spec)
        if is_one(ubatch):
            return self._run_one(ubatch, store)
        return self._run_rows(ubatch, Passage(ubatch, store, self._powers, highest))

    def _run_one(self, ubatch: Ubatch, store: Store) -> Output:
        outputs, mtp = ubatch.outputs, bool(self._spec.mtp_depth)
        word: int = self._enter(ubatch).item()
        position: int = ubatch.positions.item()
        for layer in self._body:
            word = layer.step(word, position, store, read=True)
        asked = outputs is None or len(outputs) > 0
        word = self._last.step(word, position, store, read=asked or mtp)
        hidden = np.array([[word]], np.uint64) if mtp else None
        return Output(self._logits([word] if asked else []), hidden)

    def _run_rows(self, ubatch: Ubatch, passage: Passage) -> Output:
        words, outputs = self._enter(ubatch), ubatch.outputs
        for layer in self._body:
            words = layer.sweep(words, passage)
        if outputs is not None and len(outputs) <= FEW and not self._spec.mtp_depth:
            return Output(self._logits(self._last.some(outputs.tolist(), words, passage)))
        words = self._last.sweep(words, passage)
        wanted = words if outputs is None else words[outputs]
        hidden = words[:, None] if self._spec.mtp_depth else None
        return Output(mix(wanted + self._head)[:, None], hidden)

    def _logits(self, words: list[int]) -> Words:
        """The logits (n, 1) of a few rows whose last words these are."""
        said = [mixed(word + self._head_number) for word in words]
        return np.array(said, np.uint64)[:, None]

    def _enter(self, ubatch: Ubatch) -> Words:
        """The word of each token; the MTP head adds what the target's last layer said."""
        words = self._tokens[ubatch.tokens]
        if not self._mtp:
            return words
        if ubatch.hidden is None or ubatch.hidden.shape != (len(words), 1):
            msg = f"an MTP head reads one hidden word with each of {len(words)} tokens"
            raise ContractError(msg)
        return mix(words + mix(ubatch.hidden[:, 0]))

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        """Keys (n, 1) as if their positions had been `shifts` (n,) further on."""
        if not self._spec.turns(layer):
            return keys.copy()
        return keys * self._powers(shifts)[:, None]

    def difference(self, one: Array, other: Array) -> float:
        """1.0 where any word differs: words are equal or they are not."""
        return 0.0 if one.shape == other.shape and one.tobytes() == other.tobytes() else 1.0

    def companion(self) -> Network | None:
        """The network of the MTP head, or None."""
        return None if self._mtp or not self._spec.mtp_depth else RingNetwork(self._spec, mtp=True)


def _layer(spec: ModelSpec, number: int, powers: Powers) -> Layer:
    kind = spec.kind(number)
    salts = salt(spec.seed, f"layer {number} {kind}", 3)
    if kind in RECURRENT_KINDS:
        return Recurrent(number, kind, spec.conv_size, salts[:2])
    place: Place = "window" if kind == "window" else "attention"
    return Attention(number, place, salts, powers if spec.turns(number) else None)
