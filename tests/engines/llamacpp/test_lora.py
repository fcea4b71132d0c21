"""Adapters: what empties a slot, what does not, and what forgets under which it was computed."""

import numpy as np

from cachesim.model.adapters import Adapted, adapted_in, deltas
from cachesim.model.build import build
from cachesim.model.network import FloatNetwork
from cachesim.model.presets import preset


def test_an_adapter_is_a_small_delta_on_the_weights_that_feed_the_memory() -> None:
    spec = preset("dense")
    network = Adapted(build(spec), ["A", "B"])
    laid = deltas(spec, "A")
    name = "blk.0.attn_v.weight"

    half = network.under((0.5, 0.0))

    assert isinstance(half, FloatNetwork)
    plain = build(spec)
    assert isinstance(plain, FloatNetwork)
    product = laid[f"{name}.lora_b"].astype(np.float64) @ laid[f"{name}.lora_a"]
    np.testing.assert_allclose(half.weights[name], plain.weights[name] + 0.5 * product, atol=1e-6)
    assert network.under((0.0, 0.0)) is plain
    assert half is network.under((0.5, 0.0))
    assert network is adapted_in(network)
    assert not np.array_equal(deltas(spec, "B")[f"{name}.lora_a"], laid[f"{name}.lora_a"])
