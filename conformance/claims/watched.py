"""Cells and rows as queries read them, recorded while the network runs.

A birth is the number of a computed token, which the traced network lays into its cell; a mark in a
row names the last token folded in. Nothing here uses histories, strays or faults: a sentence's
claims on a memory are looked up in these raw contents.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from cachesim.model.arithmetic import Network, Output
from cachesim.model.store import FAR, Lane, Lanes, Store, Ubatch
from cachesim.model.trace import Traced
from cachesim.units import Array, Integers, Tokens

NOBODY: Final = 0
"""The birth of what no token left: zeros, or a key beside another's value."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell that a query attended to."""

    position: int
    birth: int
    token: int


@dataclass(slots=True)
class Computed:
    """One computed token, and its reads."""

    token: int
    lanes: dict[str, tuple[Lane, int]] = field(default_factory=dict)  # by place, with its row
    former: int | None = None  # the birth of the token that its row ended with; None: not known


@dataclass(slots=True)
class Watch:
    """Everything that was computed, by birth."""

    born: list[Computed] = field(default_factory=lambda: [Computed(-1)])
    rows: dict[bytes, list[int]] = field(default_factory=dict)  # logits -> births
    marks: dict[int, int] = field(default_factory=lambda: {0: NOBODY})  # in a row -> birth
    formers: dict[tuple[int, str], int] = field(default_factory=dict)  # the last that each read

    def own(self, birth: int, place: str) -> int:
        """The position at which a token looks: its own."""
        lane, row = self.born[birth].lanes[place]
        high = int(lane.high[row])
        own = lane.positions[lane.keys[:, 0] == birth]
        return high if high < FAR else int(own[0])

    def cells(self, birth: int, place: str) -> list[Cell]:
        """The cells that a token attended to in a place, by position, without its own."""
        if place not in self.born[birth].lanes:
            return []
        lane, row = self.born[birth].lanes[place]
        low, high = int(lane.low[row]), self.own(birth, place)
        inside = (lane.positions >= low) & (lane.positions <= high) & (lane.keys[:, 0] != birth)
        found = []
        for at in np.flatnonzero(inside):
            known, value = int(lane.keys[at, 0]), int(lane.values[at, 0])
            known = known if known == value and 0 < known < len(self.born) else NOBODY
            found.append(Cell(int(lane.positions[at]), known, self.born[known].token))
        return sorted(found, key=lambda cell: cell.position)

    def history(self, birth: int, place: str) -> Tokens | None:
        """A token behind those that it went on from, oldest first; None: not known."""
        found: list[Any] = []
        while birth != NOBODY:
            found.append(self.born[birth].token)
            if place == "recurrent":
                former = self.born[birth].former
            else:
                former = self.formers.get((birth, place))
                if former is None:
                    former = next((cell.birth for cell in self.cells(birth, place)[::-1]), NOBODY)
                    self.formers[birth, place] = former
            if former is None:
                return None
            birth = former
        return tuple(found[::-1])

    def behind(self, births: list[int]) -> Iterator[int]:
        """These births, and all that they read, directly or by way of others."""
        known, left = {*births, NOBODY}, list(births)
        while left:
            birth = left.pop()
            yield birth
            one = self.born[birth]
            read = {cell.birth for place in one.lanes for cell in self.cells(birth, place)}
            fresh = (read | ({one.former} if one.former is not None else set())) - known
            known |= fresh
            left += fresh


class Watched(Traced):
    """A traced network whose readings are watched."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self.watch = Watch()

    def run(self, ubatch: Ubatch, store: Store) -> Output:
        first, watch = len(self.watch.born), self.watch
        output = super().run(ubatch, store)
        rows = range(len(ubatch.tokens)) if ubatch.outputs is None else ubatch.outputs
        for logits, row in zip(output.logits, rows, strict=True):
            watch.rows.setdefault(logits.tobytes(), []).append(first + int(row))
        return output

    def _run_marks(self, ubatch: Ubatch, store: Store) -> Integers:
        watch = self.watch
        first, count = len(watch.born), len(ubatch.tokens) // ubatch.sets
        watch.born += [Computed(int(token)) for token in ubatch.tokens]
        looking = _Looking(store, watch, first, {s.layer: s.place for s in self._marks})
        nodes = super()._run_marks(ubatch, looking)
        if looking.starts is not None and ubatch.padding is None:
            for row in range(len(nodes)):
                start = watch.marks.get(int(looking.starts[row // count]))
                watch.born[first + row].former = first + row - 1 if row % count else start
        for row, node in enumerate(nodes.tolist()):
            watch.marks.setdefault(node, first + row)
        return nodes


class _Looking:
    """A store that records its returned content."""

    def __init__(self, store: Store, watch: Watch, first: int, places: dict[int, Any]) -> None:
        self._store, self._watch, self._first, self._places = store, watch, first, places
        self.starts: Integers | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def states(self, layer: int) -> Array:
        found = self._store.states(layer)
        self.starts = found[:, 0].copy()
        return found

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        lanes = tuple(self._store.attend(layer, keys, values))
        for lane in lanes:
            held = Lane(*(np.array(each) for each in lane))
            for row, at in enumerate(lane.rows):
                self._watch.born[self._first + int(at)].lanes[self._places[layer]] = (held, row)
        return lanes
