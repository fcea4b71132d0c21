"""Exact twins with every kind of layer, and short hands to feed them."""

from collections.abc import Sequence

import numpy as np
import pytest

from cachesim.model.arithmetic import Network, Output, PlainStore
from cachesim.model.build import build
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.model.store import Store, Ubatch
from cachesim.units import Array

LAYERS: dict[str, tuple[LayerKind, ...]] = {
    "attention": ("attention", "attention", "attention"),
    "window": ("window", "attention", "window"),
    "ssm": ("ssm", "ssm"),
    "delta": ("delta", "delta"),
    "conv": ("conv", "conv", "attention"),
    "hybrid": ("ssm", "attention", "ssm", "delta", "window"),
}
NETWORKS = {
    name: build(ModelSpec(layers=layers, window=5), "ring") for name, layers in LAYERS.items()
}
ONE_LAYER = build(ModelSpec(layers=("attention",)), "ring")
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())
PROMPT = tuple(range(300, 340))


def feed(network: Network, store: Store, ids: Sequence[int], first: int = 0) -> Output:
    positions = np.arange(first, first + len(ids))
    return network.run(Ubatch(tokens=np.array(ids), positions=positions), store)


def cold(network: Network, ids: Sequence[int]) -> Array:
    return feed(network, PlainStore(network), ids).logits
