"""The seam between a network and whoever runs it: one protocol, several arithmetics.

`float` is the real thing in float64; `ring` is its exact twin over the integers modulo 2^64;
`counts` computes nothing, for workloads of which only the cache's decisions are wanted.
Engines, oracle and scenarios know only what stands here.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from cachesim.model import ArithmeticName
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Store, Ubatch
from cachesim.units import Array, Integers, Token

__all__ = ["ArithmeticName", "LayerShape", "Network", "Output", "Place"]

Place: TypeAlias = Literal["attention", "window", "recurrent"]
"""Which part of a memory keeps a layer's data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The shape of a layer's data in a memory.

    An attention or window layer keeps a key and a value per cell; a recurrent one keeps a flat
    row per sequence and plane. The bytes of the real server are the spec's business, not these.
    """

    layer: int  # the number the network passes to its Store
    place: Place
    dtype: str
    key: tuple[int, ...] = ()
    value: tuple[int, ...] = ()
    row: int = 0
    marks: bool = False  # no layer of the model's: the real server has no bytes for it
    conv: int = 0  # how many numbers at the row's start are the convolution's


class Output(NamedTuple):
    """The result of a ubatch: logits of the rows asked for, and the rows that an MTP head reads."""

    logits: Array  # (rows asked for, vocabulary); ring: (rows asked for, 1) words
    hidden: Array | None = None  # (T, width), last hidden states; None where there is no MTP head


@runtime_checkable
class Network(Protocol):
    """A network that runs ubatches against a Store and keeps nothing itself."""

    @property
    def spec(self) -> ModelSpec:
        """The spec of the network."""
        ...

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The layers that keep something, in the order they run."""
        ...

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Put one ubatch through all layers."""
        ...

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        """Keys (n, ...) as if their positions had been `shifts` (n,) further on."""
        ...

    def sample(self, logits: Array) -> Token:
        """The greedy token of one row of logits; ties go to the lowest id."""
        ...

    def difference(self, one: Array, other: Array) -> float:
        """The distance of two rows (or blocks) of logits; 0.0 means the same bits."""
        ...

    def companion(self) -> "Network | None":
        """The network of the MTP head, which reads hidden states and next tokens, or None."""
        ...
