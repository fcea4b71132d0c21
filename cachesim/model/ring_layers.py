"""The layers of the ring network: each takes hidden words and says what it adds to them.

Each goes two roads that lead to the same words. `sweep` takes all tokens at once in arrays (T,);
`walk` takes a handful one by one in plain numbers, which are quicker than arrays of a few.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cachesim.model.arithmetic import LayerShape, Place
from cachesim.model.ring_sight import Sights
from cachesim.model.ring_words import MASK, ONE, Words, mix, mixed
from cachesim.model.store import Store, Ubatch


@dataclass(frozen=True, slots=True)
class Passage:
    """What all layers share while one ubatch goes through them."""

    ubatch: Ubatch
    store: Store
    rotation: Words  # of its rows, (2, T): g^position for keys, g^-position for queries
    sights: Sights


class Layer(Protocol):
    """One layer with something to keep."""

    shape: LayerShape

    def sweep(self, hidden: Words, passage: Passage) -> Words:
        """What the layer adds to each row's word."""
        ...

    def walk(self, hidden: list[int], passage: Passage) -> list[int]:
        """The same word by word; no row is padding."""
        ...


class Attention:
    """out[i] = sum over visible j of q[i] k[j] v[j] g^(p[j] - p[i]), with odd q, k and v."""

    def __init__(self, layer: int, place: Place, salts: Words, *, turns: bool) -> None:
        self.shape = LayerShape(layer=layer, place=place, dtype="uint64", key=(1,), value=(1,))
        self._salts = salts[:, None]  # (3, 1)
        self._salt_numbers: list[int] = salts.tolist()
        self._turns = turns

    def sweep(self, hidden: Words, passage: Passage) -> Words:
        """Hand keys and values (T, 1) to the store and add up what each row sees."""
        queries, keys, values = mix(hidden + self._salts) | ONE
        if self._turns:
            keys, queries = keys * passage.rotation[0], queries * passage.rotation[1]
        out: Words = queries * self._seen(keys, values, passage)
        return out

    def walk(self, hidden: list[int], passage: Passage) -> list[int]:
        """The same; what cells hold is added up in arrays here too, for those are many."""
        for_queries, for_keys, for_values = self._salt_numbers
        queries = [mixed(word + for_queries) | 1 for word in hidden]
        keys = np.array([mixed(word + for_keys) | 1 for word in hidden], np.uint64)
        values = np.array([mixed(word + for_values) | 1 for word in hidden], np.uint64)
        if self._turns:
            keys = keys * passage.rotation[0]
        seen = self._seen(keys, values, passage)
        if self._turns:
            seen = seen * passage.rotation[1]
        return [query * each & MASK for query, each in zip(queries, seen.tolist(), strict=True)]

    def _seen(self, keys: Words, values: Words, passage: Passage) -> Words:
        """What each row sees once its key and value lie in the store, (T,)."""
        seen = np.empty(len(keys), np.uint64)
        for lane in passage.store.attend(self.shape.layer, keys[:, None], values[:, None]):
            seen[lane.rows] = passage.sights.of(lane).sums(lane.keys[:, 0], lane.values[:, 0])
        return seen
