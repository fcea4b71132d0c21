"""Networks from a spec and an arithmetic."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from cachesim.errors import SpecError
from cachesim.model.arithmetic import ArithmeticName, Network
from cachesim.model.counts import CountsNetwork
from cachesim.model.network import FloatNetwork
from cachesim.model.ring import RingNetwork
from cachesim.model.spec import ModelSpec

ARITHMETICS: Final[Mapping[str, Callable[[ModelSpec], Network]]] = {
    "float": FloatNetwork,
    "ring": RingNetwork,
    "counts": CountsNetwork,
}


@lru_cache(maxsize=64)
def build(spec: ModelSpec, arithmetic: ArithmeticName = "float") -> Network:
    """The network of a spec; equal specs share one, since networks are stateless."""
    if arithmetic not in ARITHMETICS:
        known = ", ".join(repr(name) for name in ARITHMETICS)
        msg = f"there is no arithmetic {arithmetic!r} for {spec.name!r}; there are {known}"
        raise SpecError(msg)
    return ARITHMETICS[arithmetic](spec)


def arithmetic_of(network: Network) -> ArithmeticName:
    """The arithmetic of a network, by its layers."""
    if not all(shape.dtype.startswith("u") for shape in network.shapes):
        return "float"
    return "ring" if any(shape.row or any(shape.key) for shape in network.shapes) else "counts"
