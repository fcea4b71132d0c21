"""One way to get a network: from a spec and the name of an arithmetic."""

from functools import lru_cache

from cachesim.errors import SpecError
from cachesim.model.arithmetic import ArithmeticName, Network
from cachesim.model.network import FloatNetwork
from cachesim.model.ring import RingNetwork
from cachesim.model.spec import ModelSpec


@lru_cache(maxsize=64)
def build(spec: ModelSpec, arithmetic: ArithmeticName = "float") -> Network:
    """The network of a spec; equal specs share one, for networks keep nothing."""
    if arithmetic == "float":
        return FloatNetwork(spec)
    if arithmetic == "ring":
        return RingNetwork(spec)
    msg = f"there is no arithmetic {arithmetic!r} for {spec.name!r}; there are 'float' and 'ring'"
    raise SpecError(msg)
