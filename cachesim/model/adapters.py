"""Adapters (LoRA): small deltas on a network's weights, laid over it by a strength each.

    W  becomes  W + s1 B1 A1 + s2 B2 A2 ...        s: the strength, 0 where an adapter is off

What a memory holds does not say under which strengths it was computed. `Adapted` is a network whose
strengths are set between one ubatch and the next, as a server does it.
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
"""The matrices that an adapter changes: in every layer the one that feeds its memory."""


def deltas(spec: ModelSpec, name: str) -> Weights:
    """An adapter's matrices A (rank, in) and B (out, rank), under the names of its file."""
    found: Weights = {}
    for tensor, matrix in draw(spec).items():
        if tensor.endswith(TARGETS):
            random = np.random.default_rng([int(salt(spec.seed, f"{name} {tensor}")[0]), RANK])
            out, into = matrix.shape
            found[f"{tensor}.lora_a"] = _normal(random, (RANK, into), into**-0.5)
            found[f"{tensor}.lora_b"] = _normal(random, (out, RANK), 1.0)
    return found


def _normal(
    random: np.random.Generator, shape: tuple[int, int], deviation: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return (random.standard_normal(shape) * deviation).astype(np.float32)


class Adapted:
    """A network under adapters, whose strengths may change from ubatch to ubatch."""

    def __init__(self, network: Network, names: Sequence[str]) -> None:
        self._plain = network
        self.names = tuple(names)
        self.strengths: Strengths = (0.0,) * len(self.names)
        self._made: dict[Strengths, Network] = {}

    def under(self, strengths: Strengths) -> Network:
        """The network as it is with these strengths, kept once it was made."""
        if not any(strengths):
            return self._plain
        if strengths not in self._made:
            self._made[strengths] = _made_of(self._plain, self.names, strengths)
        return self._made[strengths]

    @property
    def spec(self) -> ModelSpec:
        """The spec of the plain network."""
        return self._plain.spec

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        """The plain network's: an adapter keeps nothing."""
        return self._plain.shapes

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        """Put one ubatch through the network as the strengths now make it."""
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
        """No adapter reaches the MTP head."""
        return self._plain.companion()


def _made_of(plain: Network, names: Sequence[str], strengths: Strengths) -> Network:
    makers: dict[type, Callable[[], Network]] = {
        FloatNetwork: lambda: FloatNetwork(plain.spec, _weights(plain.spec, names, strengths)),
        RingNetwork: lambda: RingNetwork(plain.spec, flavour=f"{names} {strengths}"),
    }
    maker = makers.get(type(plain))
    return plain if maker is None else maker()  # without arithmetic nothing changes


def _weights(spec: ModelSpec, names: Sequence[str], strengths: Strengths) -> Weights:
    weights = dict(draw(spec))
    for name, strength in zip(names, strengths, strict=True):
        laid = deltas(spec, name)
        for tensor in [each for each in weights if f"{each}.lora_a" in laid]:
            product = laid[f"{tensor}.lora_b"].astype(np.float64) @ laid[f"{tensor}.lora_a"]
            weights[tensor] = (weights[tensor] + strength * product).astype(np.float32)
    return weights


def adapted(network: Network, names: Sequence[str]) -> Network:
    """The network with adapters of these names, or as it is where there are none."""
    twice = sorted({each for each in names if list(names).count(each) > 1})
    if twice:
        msg = f"adapter {twice[0]!r} is named twice; give each a name of its own"
        raise OptionError(msg)
    return Adapted(network, names) if names else network


def adapted_in(network: Network) -> Adapted | None:
    """The part of a network that strengths are set on, if it has adapters."""
    inner = network.inner if isinstance(network, Traced) else network
    return inner if isinstance(inner, Adapted) else None
