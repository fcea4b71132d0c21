"""Adapters (LoRA): low-rank deltas on a network's weights, each with a strength.

    W  becomes  W + s1 B1 A1 + s2 B2 A2 ...        s: the strength, 0 where an adapter is off

Memory does not record the strengths it was computed under. `Adapted` is a network whose strengths
are set between two ubatches, as in a server.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from cachesim.errors import OptionError
from cachesim.model.arithmetic import LayerShape, Network, Output
from cachesim.model.network import FloatNetwork
from cachesim.model.ring import RingNetwork, salt
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Store, Ubatch
from cachesim.model.trace import Traced
from cachesim.model.weights import Weights, draw
from cachesim.units import Array, Integers, Token

Strengths: TypeAlias = tuple[float, ...]

RANK: Final = 2

TARGETS: Final = ("attn_v.weight", "ssm_in.weight", "attn_qkv.weight", "shortconv.in_proj.weight")
"""The matrices that an adapter changes: in every layer the one before its memory."""


def deltas(spec: ModelSpec, name: str) -> Weights:
    """An adapter's matrices A (rank, in) and B (out, rank), under the names of its file."""
    weights: Weights = {}
    for tensor, matrix in draw(spec).items():
        if tensor.endswith(TARGETS):
            random = np.random.default_rng([int(salt(spec.seed, f"{name} {tensor}")[0]), RANK])
            out, into = matrix.shape
            weights[f"{tensor}.lora_a"] = _normal(random, (RANK, into), into**-0.5)
            weights[f"{tensor}.lora_b"] = _normal(random, (out, RANK), 1.0)
    return weights


def _normal(
    random: np.random.Generator, shape: tuple[int, int], deviation: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return (random.standard_normal(shape) * deviation).astype(np.float32)


class Adapted:
    """A network under adapters, whose strengths may change between ubatches."""

    def __init__(self, network: Network, names: Sequence[str]) -> None:
        self._plain = network
        self.names = tuple(names)
        self.strengths: Strengths = (0.0,) * len(self.names)
        self._made: dict[Strengths, Network] = {}

    def under(self, strengths: Strengths) -> Network:
        """The network under these strengths, cached."""
        if not any(strengths):
            return self._plain
        if strengths not in self._made:
            plain = self._plain
            makers: dict[type, Callable[[], Network]] = {
                FloatNetwork: lambda: FloatNetwork(
                    plain.spec, _weights(plain.spec, self.names, strengths)
                ),
                RingNetwork: lambda: RingNetwork(plain.spec, flavour=f"{self.names} {strengths}"),
            }
            maker = makers.get(type(plain))
            # without arithmetic nothing changes
            self._made[strengths] = plain if maker is None else maker()
        return self._made[strengths]

    @property
    def spec(self) -> ModelSpec:
        """The spec of the plain network."""
        return self._plain.spec

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The shapes of the plain network: adapters store nothing."""
        return self._plain.shapes

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Run an ubatch under the present strengths."""
        return self.under(self.strengths).run(ubatch, store)

    def rotate(self, layer: int, keys: Array, shifts: Integers) -> Array:
        """The plain network's result."""
        return self._plain.rotate(layer, keys, shifts)

    def sample(self, logits: Array) -> Token:
        """The plain network's result."""
        return self._plain.sample(logits)

    def difference(self, one: Array, other: Array) -> float:
        """The plain network's result."""
        return self._plain.difference(one, other)

    def companion(self) -> Network | None:
        """The MTP head, which no adapter changes."""
        return self._plain.companion()


def _weights(spec: ModelSpec, names: Sequence[str], strengths: Strengths) -> Weights:
    weights = dict(draw(spec))
    for name, strength in zip(names, strengths, strict=True):
        laid = deltas(spec, name)
        for tensor in [weight for weight in weights if f"{weight}.lora_a" in laid]:
            product = laid[f"{tensor}.lora_b"].astype(np.float64) @ laid[f"{tensor}.lora_a"]
            weights[tensor] = (weights[tensor] + strength * product).astype(np.float32)
    return weights


def adapted(network: Network, names: Sequence[str]) -> Network:
    """The network with adapters of these names, or itself without any."""
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise OptionError(f"adapter {twice[0]!r} is named twice; give each a name of its own")
    return Adapted(network, names) if names else network


def adapted_in(network: Network) -> Adapted | None:
    """The adapted part of a network, if any."""
    inner = network.inner if isinstance(network, Traced) else network
    return inner if isinstance(inner, Adapted) else None
