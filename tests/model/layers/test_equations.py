"""Each layer against its equation, written once more without tiles, blocks or carried states."""

from collections.abc import Callable
from functools import partial
from typing import Any

import naive
import numpy as np
import pytest

from cachesim.model.arithmetic import PlainStore
from cachesim.model.build import build
from cachesim.model.mixers import Attention, Delta, ShortConv, Ssm
from cachesim.model.parts import Mlp, Rotary
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.model.tiles import ATTENTION_LADDER, LADDER, KeyMasks, Layer, Run, padded
from cachesim.model.weights import Weights, draw, mlp_norm_name
from cachesim.units import Array

COUNT = 70  # past one block of keys, past one stretch of states


def rows(spec: ModelSpec, count: int = COUNT) -> Array:
    return np.random.default_rng(5).normal(size=(count, spec.width))


def through(layer: Layer, spec: ModelSpec, xs: Array) -> Array:
    filled = np.zeros((padded(len(xs), LADDER), spec.width))
    filled[: len(xs)] = xs
    run = Run(
        count=len(xs),
        sets=1,
        ladder=LADDER,
        attention_ladder=ATTENTION_LADDER,
        masks=KeyMasks(ATTENTION_LADDER[-1]),
        turns=Rotary(spec).turns(np.arange(len(xs))),
        store=PlainStore(build(spec)),
    )
    result = layer(filled, run)
    assert not result[len(xs) :].any(), "rows that fill a tile stay zero"
    return result[: len(xs)]


def wide(spec: ModelSpec) -> Weights:
    return {name: tensor.astype(np.float64) for name, tensor in draw(spec).items()}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "spec", "at", "equation"),
    [
        (Attention, preset("dense"), 1, naive.attention),
        (Attention, preset("swa"), 1, naive.attention),
        (Attention, preset("hybrid-delta"), 1, naive.attention),
        (Attention, preset("swa"), 0, partial(naive.attention, window=preset("swa").window)),
        (Attention, preset("dense", rope="none", head_size=5), 0, naive.attention),
        (Ssm, preset("hybrid"), 1, naive.ssm),
        (Delta, preset("hybrid-delta"), 2, naive.delta),
        (ShortConv, preset("hybrid-swa"), 0, naive.short_conv),
    ],
)
def test_a_layer_follows_its_equation(
    kind: Any, spec: ModelSpec, at: int, equation: Callable[..., Array]
) -> None:
    xs = rows(spec)

    found = through(kind.read(spec, draw(spec), at), spec, xs)

    expected = equation(spec, wide(spec), f"blk.{at}.", xs)
    assert np.allclose(expected, found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["dense", "swa", "hybrid-delta"])
def test_the_mlp_follows_its_equation(name: str) -> None:
    spec = preset(name)
    xs = rows(spec, 9)

    found = through(Mlp.read(spec, draw(spec), 3), spec, xs)

    entry = mlp_norm_name(spec, 3).removeprefix("blk.3.")
    expected = naive.mlp(spec, wide(spec), "blk.3.", entry, xs)
    assert np.allclose(expected, found, rtol=1e-9, atol=1e-12)
