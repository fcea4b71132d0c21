"""The layers of the ring network: each takes hidden words and adds to them.

Each goes two roads that lead to the same words. `sweep` takes all tokens at once in arrays (T,);
`step` takes a token that is alone in plain numbers, which are quicker than arrays of one.
"""

from typing import Protocol

import numpy as np

from cachesim.model.arithmetic import LayerShape, Place
from cachesim.model.ring_sight import Sights, place_of, seen_by
from cachesim.model.ring_words import MASK, ONE, Powers, Words, mix, mixed
from cachesim.model.store import Lane, Store, Ubatch


class Passage:
    """What all layers share while one ubatch goes through them."""

    __slots__ = ("_back", "_highest", "_powers", "_there", "sights", "store", "ubatch")

    def __init__(self, ubatch: Ubatch, store: Store, powers: Powers, highest: int) -> None:
        """No position of the ubatch is above the highest."""
        self.ubatch, self.store, self.sights = ubatch, store, Sights()
        self._powers, self._highest = powers, highest
        self._there: Words | None = None
        self._back: Words | None = None

    @property
    def there(self) -> Words:
        """g^position of each row, which turns its key."""
        if self._there is None:
            self._there = self._powers.there(self.ubatch.positions, self._highest)
        return self._there

    @property
    def back(self) -> Words:
        """g^-position of each row, which turns what its query sees."""
        if self._back is None:
            self._back = self._powers.back(self.ubatch.positions, self._highest)
        return self._back


class Layer(Protocol):
    """One layer with something to keep."""

    shape: LayerShape

    def sweep(self, hidden: Words, passage: Passage) -> Words:
        """The rows' words with what the layer adds to them."""
        ...

    def some(self, rows: list[int], hidden: Words, passage: Passage) -> list[int]:
        """The same of a few rows, in plain numbers, where nobody reads the others."""
        ...

    def step(self, word: int, position: int, store: Store, *, read: bool) -> int:
        """The same of a token that is alone; anything where nobody is to read it."""
        ...


class Attention:
    """out[i] = sum over visible j of q[i] k[j] v[j] g^(p[j] - p[i]), with odd q, k and v."""

    def __init__(self, layer: int, place: Place, salts: Words, powers: Powers | None) -> None:
        """`powers`: the powers of g, or None where keys do not know their positions."""
        self.shape = LayerShape(layer=layer, place=place, dtype="uint64", key=(1,), value=(1,))
        self._salts = salts[:, None]  # (3, 1)
        self._kept_salts = self._salts[1:]
        self._query_salt, self._key_salt, self._value_salt = salts.tolist()
        self._powers = powers

    def sweep(self, hidden: Words, passage: Passage) -> Words:
        """Hand keys and values (T, 1) to the store and add up what each row sees."""
        queries, keys, values = mix(hidden + self._salts) | ONE
        if self._powers is not None:
            keys, queries = keys * passage.there, queries * passage.back
        seen = np.empty(len(keys), np.uint64)
        for lane in passage.store.attend(self.shape.layer, keys[:, None], values[:, None]):
            seen[lane.rows] = passage.sights.of(lane).sums(lane.keys[:, 0], lane.values[:, 0])
        return mix(hidden + queries * seen)

    def some(self, rows: list[int], hidden: Words, passage: Passage) -> list[int]:
        """The same, but only the rows that somebody reads look at what the store shows."""
        keys, values = mix(hidden + self._kept_salts) | ONE
        if self._powers is not None:
            keys = keys * passage.there
        lanes = passage.store.attend(self.shape.layer, keys[:, None], values[:, None])
        positions = passage.ubatch.positions
        return [
            self._answer(hidden.item(row), positions.item(row), *place_of(row, lanes))
            for row in rows
        ]

    def step(self, word: int, position: int, store: Store, *, read: bool) -> int:
        """The same of one token."""
        key, value = mixed(word + self._key_salt) | 1, mixed(word + self._value_salt) | 1
        if self._powers is not None:
            key = key * self._powers.of(position) & MASK
        lanes = store.attend(
            self.shape.layer, np.array([[key]], np.uint64), np.array([[value]], np.uint64)
        )
        return self._answer(word, position, 0, lanes[0]) if read else word

    def _answer(self, word: int, position: int, place: int, lane: Lane) -> int:
        """The word, with what the layer adds to it, of the row at that place in a lane."""
        query = mixed(word + self._query_salt) | 1
        if self._powers is not None:
            query *= self._powers.of(-position)
        return mixed(word + query * seen_by(place, lane))
