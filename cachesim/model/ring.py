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

from cachesim.errors import LimitError, PositionError, TokenError
from cachesim.model.arithmetic import LayerShape, Network, Output
from cachesim.model.ring_layers import CHAINS, Attention, Layer, Recurrent, Turn
from cachesim.model.ring_words import MOST_POSITIONS, Words, mix, powers, salt
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.model.store import Store, Ubatch
from cachesim.units import Array, Integers, Token

MTP_LAYER: Final[tuple[LayerKind, ...]] = ("attention",)
BASE: Final = 0xD1342543DE82EF95  # 5 modulo 8: its powers differ for 2^62 positions
FIRST_SAMPLED: Final = 265  # as in the float network: below it lie bytes and marks


class RingNetwork:
    """A spec's network in words: a pure function of the spec, like the float one."""

    def __init__(self, spec: ModelSpec, *, mtp: bool = False) -> None:
        self._spec = spec
        self._mtp = mtp
        kinds = MTP_LAYER * spec.mtp_depth if mtp else spec.layers
        self._layers = tuple(_layer(i, kind, spec, mtp=mtp) for i, kind in enumerate(kinds))
        self._powers = powers(1 if spec.rope == "none" else BASE)
        ids = np.arange(spec.vocabulary, dtype=np.uint64)
        self._tokens = mix(mix(ids + salt(spec.seed, "tokens")))
        self._head = salt(spec.seed, "mtp head" if mtp else "head")

    @property
    def spec(self) -> ModelSpec:
        """What it was built from."""
        return self._spec

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The layers that keep something, in the order they run."""
        return tuple(layer.shape for layer in self._layers)

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Put one ubatch through all layers."""
        words = self._embed(ubatch)
        turn = Turn(keys=self._powers(ubatch.positions), queries=self._powers(-ubatch.positions))
        for layer in self._layers:
            words = mix(words + layer.run(words, turn, store, ubatch.sets))
        wanted = words if ubatch.outputs is None else words[ubatch.outputs]
        return Output(logits=mix(wanted + self._head)[:, None], hidden=words[:, None])

    def _embed(self, ubatch: Ubatch) -> Words:
        """The word of each token; a companion adds what the target's last layer said of it."""
        check_ubatch(ubatch, self._spec.vocabulary)
        words = self._tokens[ubatch.tokens]
        if ubatch.hidden is None:
            return words
        return mix(words + mix(ubatch.hidden[:, 0]))

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:  # noqa: ARG002
        """Keys (n, 1) as if their positions had been `shifts` (n,) further on."""
        return keys * self._powers(shifts)[:, None]

    def sample(self, logits: Array) -> Token:
        """The token that a row's word stands for, among those the float network emits."""
        first = FIRST_SAMPLED if self._spec.vocabulary > FIRST_SAMPLED else 0
        return Token(first + (int(logits[0]) >> 32) % (self._spec.vocabulary - first))

    def difference(self, one: Array, other: Array) -> float:
        """1.0 where any word differs: words are equal or they are not."""
        return 0.0 if np.array_equal(one, other) else 1.0

    def companion(self) -> Network | None:
        """The network of the MTP head."""
        if self._mtp or not self._spec.mtp_depth:
            return None
        return RingNetwork(self._spec, mtp=True)


def _layer(index: int, kind: LayerKind, spec: ModelSpec, *, mtp: bool) -> Layer:
    salts = salt(spec.seed, f"{'mtp' if mtp else 'layer'} {index} {kind}", 3)
    if kind in CHAINS:
        return Recurrent(index, kind, spec.conv_size, salts[:2])
    return Attention(index, "window" if kind == "window" else "attention", salts)


def check_ubatch(ubatch: Ubatch, vocabulary: int) -> None:
    """Refuse tokens and positions that no table has; seen as unsigned, negative ones are large."""
    if not ubatch.tokens.size:
        msg = "an ubatch without tokens; a prompt has at least one"
        raise TokenError(msg)
    if (worst := _largest(ubatch.tokens)) >= vocabulary:
        msg = f"token {_signed(worst)} is not in the vocabulary; it has 0 to {vocabulary - 1}"
        raise TokenError(msg)
    if (worst := _largest(ubatch.positions)) >= MOST_POSITIONS:
        if _signed(worst) < 0:
            msg = f"position {_signed(worst)} is negative; the first token's is 0"
            raise PositionError(msg)
        msg = f"position {worst} is beyond ring's limit; it goes up to {MOST_POSITIONS - 1}"
        raise LimitError(msg)


def _largest(integers: Integers) -> int:
    return int(integers.astype(np.uint64, copy=False).max())


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
