"""Content for a cache: rows of keys, values and states that the small network computed.

    layer with attention    | row 0 | row 1 | ... | row n-1 |     key and value of each token
    layer with a window           | row n-w | ... | row n-1 |     those that the next token sees
    recurrent layer                               | row n-1 |     the state after n tokens

Rows are what they are on a real server: those of a token depend on all tokens before it, and on the
adapter, the images, the data type, the scaling of positions and the weights.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Final, Literal, TypeAlias

import numpy as np

from cachesim.model.adapters import Adapted
from cachesim.model.arithmetic import LayerShape, Network, PlainStore
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.model.store import Lanes, Ubatch
from cachesim.units import Array, Token, Tokens

DataType: TypeAlias = Literal["float16", "bfloat16", "float32", "float64"]

PLACEHOLDER: Final = Token(3)
"""The token in place of any image."""

WORDS: Final = 240
FIRST: Final = 265
"""Tokens in place of an image's embeddings."""

UNSEEN: Final = 1000.0
"""The keys and values that a window layer has outside its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: its weights, its data type and its positions."""

    preset: str = "dense"
    seed: int = 0
    dtype: DataType = "float32"
    rope_base: float = 10000.0

    @property
    def model(self) -> str:
        """The name of the weights."""
        return f"{self.preset}-{self.seed}"

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The layers with data in memory."""
        return _network(replace(self, dtype="float64"), "").shapes

    @property
    def window(self) -> int:
        """The positions that a layer with a window sees."""
        return tiny(self.preset).window


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The first tokens of a prompt, and the other inputs of their keys and values."""

    tokens: Tokens
    adapter: str = ""
    salt: str = ""  # of a tenant: requests under others neither get its rows nor learn of them
    image: str = ""  # the hash of the image, in hexadecimal digits; "": none
    image_at: int = 0
    """The image's first token; it takes the `PLACEHOLDER` tokens that begin there."""

    @property
    def embedded(self) -> Tokens:
        """The tokens as the network sees them: those of an image are its own."""
        if not self.image:
            return self.tokens
        embedded = list(self.tokens)
        digest = hashlib.sha256(self.image.encode()).digest()
        for at in range(self.image_at, len(embedded)):
            if embedded[at] != PLACEHOLDER:
                break
            embedded[at] = Token(FIRST + digest[(at - self.image_at) % len(digest)] % WORDS)
        return tuple(embedded)

    def first(self, count: int) -> "Request":
        """The request for its first tokens alone."""
        return replace(self, tokens=self.tokens[:count])


Rows: TypeAlias = list[Array]
"""Per layer, the rows of consecutive tokens, (n, 2, heads, size) or (n, state): the last is that
of the last token. bfloat16 rows are words of 16 bits.
"""


def rows_of(server: Server, request: Request) -> Rows:
    """The rows of all tokens: computed by an uncached run, never to be written to."""
    return _cold(server, request.adapter, request.embedded)


def answer(server: Server, request: Request, rows: Rows, rest: Sequence[Token]) -> Array:
    """The logits after `rest`, which is computed behind the rows of a request's tokens."""
    network = _network(server, request.adapter)
    store = _Recording(network, server.dtype, planes=1)
    for shape, held in zip(server.shapes, rows, strict=True):
        plain = _plain(held, server.dtype)
        if shape.place == "recurrent":
            store.keep_states(shape.layer, plain[-1:, None])
        else:
            whole = np.full((len(request.tokens), 2, *shape.key), UNSEEN)
            whole[len(whole) - len(plain) :] = plain
            store.attend(shape.layer, whole[:, 0], whole[:, 1])
    start = len(request.tokens)
    positions = np.arange(start, start + len(rest))
    last = np.array([len(rest) - 1])
    return network.run(Ubatch(np.array(rest), positions, outputs=last), store).logits


def finite(server: Server, rows: Rows) -> bool:
    """True if all rows are numbers of the server's data type."""
    return all(np.isfinite(_plain(layer, server.dtype)).all() for layer in rows)


def needed(server: Server, shape: LayerShape, count: int) -> int:
    """The rows of a layer that the token after `count` others needs."""
    needs = {"attention": count, "window": min(count, server.window - 1), "recurrent": 1}
    return needs[shape.place]


class _Recording(PlainStore):
    """A store that rounds to a data type, as a server does, and records the rows."""

    def __init__(self, network: Network, dtype: DataType, *, planes: int) -> None:
        super().__init__(network, planes=planes)
        self.rows: dict[int, Array] = {}
        self._dtype: DataType = dtype

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        cells = _kept(np.stack([keys, values], 1), self._dtype)
        self.rows[layer] = cells
        plain = _plain(cells, self._dtype)
        return super().attend(layer, plain[:, 0], plain[:, 1])

    def keep_states(self, layer: int, states: Array) -> None:
        self.rows[layer] = _kept(states[0, ::-1], self._dtype)
        super().keep_states(layer, states)


def _kept(values: Array, dtype: DataType) -> Array:
    if dtype == "bfloat16":
        return np.asarray(values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def _plain(rows: Array, dtype: DataType) -> Array:
    if dtype == "bfloat16":
        words = np.ascontiguousarray(rows).astype(np.uint32) << 16
        return words.view(np.float32).astype(np.float64)
    return rows.astype(np.float64)


@lru_cache(maxsize=256)
def _network(server: Server, adapter: str) -> Network:
    spec = tiny(server.preset, seed=server.seed, rope_base=server.rope_base)
    network = build(spec)
    return Adapted(network, [adapter]).under((1.0,)) if adapter else network


@lru_cache(maxsize=4096)
def _cold(server: Server, adapter: str, tokens: Tokens) -> Rows:
    network = _network(server, adapter)
    store = _Recording(network, server.dtype, planes=len(tokens))
    network.run(Ubatch(np.array(tokens), np.arange(len(tokens)), outputs=np.array([0])), store)
    return [store.rows[shape.layer] for shape in network.shapes]


def split(server: Server, rows: Rows, unit: int) -> list[Rows]:
    """The rows in blocks of `unit` tokens; of a state only the one after each block."""
    count = max(map(len, rows))
    blocks = range(0, count - unit + 1, unit)
    return [
        [
            layer[start + unit - 1 : start + unit]
            if shape.place == "recurrent"
            else layer[start : start + unit]
            for shape, layer in zip(server.shapes, rows, strict=True)
        ]
        for start in blocks
    ]


def joined(blocks: Sequence[Rows]) -> Rows:
    """The rows of blocks that follow each other."""
    return [np.concatenate(layers) for layers in zip(*blocks, strict=True)]


def packed(rows: Rows) -> bytes:
    """All bytes of some rows, layer after layer."""
    return b"".join(layer.tobytes() for layer in rows)


def unpacked(server: Server, data: bytes, count: int) -> Rows:
    """The rows of `count` tokens from their bytes: one state where a layer is recurrent."""
    kept = np.dtype(np.uint16 if server.dtype == "bfloat16" else server.dtype)
    counts = [1 if shape.place == "recurrent" else count for shape in server.shapes]
    forms = [(shape.row,) if shape.row else (2, *shape.key) for shape in server.shapes]
    sizes = [n * int(np.prod(form)) for n, form in zip(counts, forms, strict=True)]
    flat = np.frombuffer(data, kept)
    ends = list(accumulate(sizes))
    return [
        flat[end - size : end].reshape(n, *form).copy()
        for end, size, n, form in zip(ends, sizes, counts, forms, strict=True)
    ]
