"""The float network: real arithmetic in float64 that gives the same bits however it is cut.

    T   rows of the ubatch      R   T padded to full tiles      d   width      V   vocabulary

Every preset follows a family as llama.cpp builds it: Llama (`dense`), Gemma 3 (`swa`), Mamba-2
(`recurrent`), Granite 4 hybrid (`hybrid`), Qwen 3.5 (`hybrid-delta`, `hybrid-mtp`), LFM2
(`hybrid-swa`). Norm weights are folded into the matrix that follows them.
"""

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from cachesim.errors import ContractError, LimitError, PositionError, TokenError
from cachesim.model.arithmetic import LayerShape, Output, Place
from cachesim.model.layers.attention import Attention
from cachesim.model.layers.conv import ShortConv
from cachesim.model.layers.delta import Delta
from cachesim.model.layers.mlp import Mlp
from cachesim.model.layers.norm import rms_norm
from cachesim.model.layers.rope import Rotary, rotate
from cachesim.model.layers.ssm import Ssm
from cachesim.model.layers.tiles import LADDER, cuts, packed, product
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Store, Ubatch
from cachesim.model.weights import Weights, draw, output_norm_name
from cachesim.units import Array, Integers, Token

Mixer: TypeAlias = Attention | Ssm | Delta | ShortConv

MOST_ROWS: Final = 1 << 20
"""Rows of one ubatch."""

MOST_POSITION: Final = (1 << 31) - 1
"""Positions are 32-bit numbers on the real servers."""


class FloatNetwork:
    """A network in float64 that runs ubatches against a Store and keeps nothing itself."""

    def __init__(self, spec: ModelSpec, weights: Weights | None = None) -> None:
        self._spec = spec
        self._weights = draw(spec) if weights is None else weights
        self._rotary = Rotary(spec)
        self._ladder = LADDER
        self._embedding = self._weights["token_embd.weight"] * np.float64(spec.embedding_scale)
        self._blocks = [self._read(layer) for layer in self._layers()]
        self._head = self._read_head()
        self._norm = self._norm_weight()
        self._companion = MtpNetwork(spec, self._weights) if self._has_companion() else None

    @property
    def spec(self) -> ModelSpec:
        """What it was built from."""
        return self._spec

    @property
    def weights(self) -> Weights:
        """The tensors, under the names of the real files."""
        return self._weights

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The layers that keep something, in the order they run."""
        return tuple(self._shape(layer) for layer in self._layers())

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Put one ubatch through all layers."""
        count = check(ubatch, self._spec)
        tiles = cuts(count, self._ladder)
        x = self._enter(ubatch, tiles[-1].stop)
        turns = self._rotary.turns(ubatch.positions)
        for mixer, mlp in self._blocks:
            if isinstance(mixer, Attention):
                x += mixer(x, count, tiles, turns, store)
            else:
                x += mixer(x, count, ubatch.sets, tiles, store)
            if mlp is not None:
                x += mlp(x, tiles)
        return self._leave(x[:count], ubatch.outputs)

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        """Keys (n, ...) as if their positions had been `shifts` (n,) further on."""
        del layer
        turns = self._rotary.turns(np.abs(shifts))
        if turns is None:
            return keys.copy()
        cosines, sines = turns
        signs = np.sign(shifts).astype(np.float64)[:, None, None, None]
        return rotate(keys, (cosines, sines * signs))

    def sample(self, logits: Array) -> Token:
        """The greedy token of one row of logits; ties go to the lowest id."""
        return Token(int(np.argmax(logits)))

    def difference(self, one: Array, other: Array) -> float:
        """The largest distance of two logits; 0.0 means the same bits."""
        if one.shape != other.shape:
            return math.inf
        return float(np.max(np.abs(one - other), initial=0.0))

    def companion(self) -> "MtpNetwork | None":
        """The network of the MTP head, or None."""
        return self._companion

    def _has_companion(self) -> bool:
        return bool(self._spec.mtp_depth)

    def _layers(self) -> Sequence[int]:
        return range(len(self._spec.layers))

    def _read(self, layer: int) -> tuple[Mixer, Mlp | None]:
        spec, weights = self._spec, self._weights
        mixer: Mixer
        match spec.kind(layer):
            case "attention" | "window":
                mixer = Attention.read(spec, weights, layer)
            case "ssm":
                mixer = Ssm.read(spec, weights, layer)
            case "delta":
                mixer = Delta.read(spec, weights, layer)
            case "conv":
                mixer = ShortConv.read(spec, weights, layer)
        return mixer, Mlp.read(spec, weights, layer) if spec.mlp_width else None

    def _read_head(self) -> Array:
        name = "token_embd.weight" if self._spec.tied_head else "output.weight"
        return packed(self._weights[name].astype(np.float64))

    def _norm_weight(self) -> Array:
        return self._weights[output_norm_name(self._spec)].astype(np.float64)

    def _shape(self, layer: int) -> LayerShape:
        spec = self._spec
        kind = spec.kind(layer)
        if kind in {"attention", "window"}:
            cell = (spec.kv_heads, spec.head_size)
            place: Place = "window" if kind == "window" else "attention"
            return LayerShape(layer=layer, place=place, dtype="float64", key=cell, value=cell)
        row = spec.conv_row(layer) + spec.state_row(layer)
        return LayerShape(layer=layer, place="recurrent", dtype="float64", row=row)

    def _enter(self, ubatch: Ubatch, padded: int) -> Array:
        """Embeddings of the tokens, then rows of zeros: (R, d)."""
        x = np.zeros((padded, self._spec.width))
        x[: len(ubatch.tokens)] = self._embedding[ubatch.tokens]
        return x

    def _leave(self, x: Array, outputs: Integers | None) -> Output:
        """The last norm for all rows, logits for those asked for."""
        hidden = rms_norm(x, self._spec.norm_epsilon)
        hidden *= self._norm
        if not math.isfinite(float(hidden.sum())):
            msg = "a row of the network is not finite: a query saw no key, or a state was damaged"
            raise ContractError(msg)
        wanted = hidden if outputs is None else hidden[outputs]
        if not len(wanted):
            return Output(logits=np.empty((0, self._spec.vocabulary)), hidden=hidden)
        tiles = cuts(len(wanted), self._ladder)
        rows = np.zeros((tiles[-1].stop, self._spec.width))
        rows[: len(wanted)] = wanted
        logits = product(rows, self._head, tiles)[: len(wanted), : self._spec.vocabulary]
        return Output(logits=logits, hidden=hidden)


class MtpNetwork(FloatNetwork):
    """The MTP head: reads the target's last hidden states and the tokens that follow them.

    One attention block of its own over [norm of the token's embedding | norm of the hidden row],
    then the target's head; rows of its ubatches carry `hidden`.
    """

    def __init__(self, spec: ModelSpec, weights: Weights) -> None:
        super().__init__(spec, weights)
        p = f"blk.{spec.mtp_layer}.nextn."
        norms = [weights[p + f"{half}norm.weight"].astype(np.float64) for half in "eh"]
        self._entry = packed(weights[p + "eh_proj.weight"] * np.concatenate(norms))

    def _has_companion(self) -> bool:
        return False

    def _layers(self) -> Sequence[int]:
        return (len(self._spec.layers),)

    def _norm_weight(self) -> Array:
        name = f"blk.{self._spec.mtp_layer}.nextn.shared_head_norm.weight"
        return self._weights[name].astype(np.float64)

    def _enter(self, ubatch: Ubatch, padded: int) -> Array:
        """Both halves normed, side by side, through the entry: (R, d)."""
        width, count = self._spec.width, len(ubatch.tokens)
        if ubatch.hidden is None or ubatch.hidden.shape != (count, width):
            msg = f"an MTP head reads one hidden row of width {width} with each of {count} tokens"
            raise ContractError(msg)
        both = np.zeros((padded, 2 * width))
        epsilon = self._spec.norm_epsilon
        both[:count, :width] = rms_norm(self._embedding[ubatch.tokens], epsilon)
        both[:count, width:] = rms_norm(np.ascontiguousarray(ubatch.hidden), epsilon)
        return product(both, self._entry, cuts(count, self._ladder))[:, :width].copy()


def check(ubatch: Ubatch, spec: ModelSpec) -> int:
    """Refuse what no network can run; the number of rows otherwise."""
    count = len(ubatch.tokens)
    if count == 0:
        msg = "an ubatch without tokens: hand in at least one"
        raise TokenError(msg)
    if count > MOST_ROWS:
        msg = f"an ubatch of {count} rows is past the limit of {MOST_ROWS}"
        raise LimitError(msg)
    if int(ubatch.tokens.min()) < 0 or int(ubatch.tokens.max()) >= spec.vocabulary:
        wrong = next(int(t) for t in ubatch.tokens if not 0 <= t < spec.vocabulary)
        msg = f"token {wrong} is outside the vocabulary: write ids from 0 to {spec.vocabulary - 1}"
        raise TokenError(msg)
    if len(ubatch.positions) != count:
        msg = f"{len(ubatch.positions)} positions for {count} tokens: write one for each"
        raise PositionError(msg)
    if int(ubatch.positions.min()) < 0 or int(ubatch.positions.max()) > MOST_POSITION:
        wrong = next(int(p) for p in ubatch.positions if not 0 <= p <= MOST_POSITION)
        msg = f"position {wrong} is out of range: positions run from 0 to {MOST_POSITION}"
        raise PositionError(msg)
    if ubatch.sets < 1 or count % ubatch.sets:
        msg = f"{count} tokens do not fall into {ubatch.sets} sets of one length"
        raise TokenError(msg)
    return count
