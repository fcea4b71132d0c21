"""The exact twin: equal where it must be, different where anything at all is different."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachesim.model.arithmetic import Network, Output
from cachesim.model.build import build
from cachesim.model.plain import PlainStore
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
networks = st.sampled_from(sorted(NETWORKS)).map(NETWORKS.__getitem__)
tokens = st.lists(st.integers(0, 511), min_size=1, max_size=80)


def feed(network: Network, store: Store, ids: Sequence[int], first: int = 0) -> Output:
    positions = np.arange(first, first + len(ids))
    return network.run(Ubatch(tokens=np.array(ids), positions=positions), store)


def cold(network: Network, ids: Sequence[int]) -> Array:
    return feed(network, PlainStore(network), ids).logits


@given(networks, tokens, st.data())
def test_any_cut_of_a_prompt_gives_the_same_words(
    network: Network, ids: list[int], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids)))) | {0, len(ids)})
    store = PlainStore(network, planes=data.draw(st.integers(1, 4)))

    pieces = [
        feed(network, store, ids[a:b], a).logits for a, b in zip(cuts, cuts[1:], strict=False)
    ]

    assert np.array_equal(cold(network, ids), np.concatenate(pieces))
