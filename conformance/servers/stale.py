"""A model certifies nothing if a stale state of it is answered as a fresh one.

right    t0 ... t[n-k] ... t[n-1] | t[n]     what the layers of one kind keep is of other
stale    t0 ... o      ... o      | t[n]     tokens for the last k, all else is right
"""

from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Final

import numpy as np

from cachesim.conform.examiner import AGES, VISIBLE
from cachesim.errors import InputError
from cachesim.model.arithmetic import PlainStore
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Lanes, Ubatch
from cachesim.probe.judging import MATERIAL
from cachesim.units import Array, Integers

PROMPT: Final = 140
ROUNDING: Final = MATERIAL / VISIBLE
"""Rounding of the real servers with their defaults is at most this (keys of 16 bits: 0.0015)."""

TRIES: Final = 4


class _Mixed:
    """A store whose layers of some numbers hold what other tokens left."""

    planes = 1

    def __init__(self, right: PlainStore, other: PlainStore, layers: frozenset[int]) -> None:
        self._right, self._other, self._layers = right, other, layers

    def _of(self, layer: int) -> PlainStore:
        return self._other if layer in self._layers else self._right

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        return self._of(layer).attend(layer, keys, values)

    def states(self, layer: int) -> Array:
        return self._of(layer).states(layer)

    def keep_states(self, layer: int, states: Array) -> None:
        self._of(layer).keep_states(layer, states)


def moved(spec: ModelSpec, kind: str, age: int, seed: int = 0) -> float:
    """How far log probabilities move if the layers of a kind hold `age` other tokens at the end."""
    network, chance = build(spec, "float"), Random(seed)
    tokens = [chance.randrange(spec.vocabulary) for _ in range(PROMPT)]
    others = tokens[:-age] + [chance.randrange(spec.vocabulary) for _ in range(age)]
    last = chance.randrange(spec.vocabulary)
    layers = frozenset(number for number, own in enumerate(spec.layers) if own == kind)
    rows = []
    for held in (frozenset[int](), layers):
        stores = [PlainStore(network) for _ in range(2)]
        for store, text in zip(stores, (tokens, others), strict=True):
            network.run(Ubatch(_ids(text), np.arange(PROMPT)), store)
        mixed = _Mixed(stores[0], stores[1], held)
        row = network.run(Ubatch(_ids([last]), np.arange(PROMPT, PROMPT + 1)), mixed).logits[-1]
        rows.append(row - np.logaddexp.reduce(row))
    likely = np.maximum(*rows) > -7.0
    return float(np.abs(rows[0] - rows[1])[likely].max())


def _ids(tokens: list[int]) -> Integers:
    return np.array(tokens, np.int64)


@cache
def refuse_forgetful(spec: ModelSpec) -> None:
    """InputError for a model with layers whose stale content would pass for rounding."""
    far: dict[str, dict[str, float]] = {
        kind: {str(age): max(moved(spec, kind, age, at) for at in range(TRIES)) for age in AGES}
        for kind in dict.fromkeys(spec.layers)
    }
    refuse_stale(spec.name, far)


def refuse_stale(name: str, far: Mapping[str, Mapping[str, float]]) -> None:
    """InputError if log probabilities move too little, by kind of layer and age.

    Age 0 is two equal runs: their distance is the rounding of whatever ran the model.
    """
    for kind, ages in far.items():
        rounding = max(ROUNDING, ages.get("0", 0.0))
        for age in AGES:
            if ages[str(age)] < VISIBLE * rounding:
                raise InputError(
                    f"{name}: what its {kind} layers keep may be of {age} other tokens, and log"
                    f" probabilities move by {ages[str(age)]:.2g} alone; rounding is up to"
                    f" {rounding:.2g}, so that the model certifies nothing"
                )
