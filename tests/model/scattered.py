"""A memory that keeps cells wherever chance puts them, with holes, and several sequences at once.

It shares no code with any other store: it exists to show that a network does not care.
"""

from dataclasses import dataclass

import numpy as np

from cachesim.model.arithmetic import Network
from cachesim.model.store import ABSENT, BLOCK, Lane, Lanes, Ubatch
from cachesim.units import Array, Integers

CELLS = 512


@dataclass(frozen=True)
class Piece:
    """A run of tokens of one sequence, from a position on."""

    sequence: int
    tokens: tuple[int, ...]
    start: int


class ScatteredStore:
    def __init__(self, network: Network, *, chance: int = 0, planes: int = 1) -> None:
        self.planes = planes
        self.kept: dict[int, list[Array]] = {}
        self._network = network
        self._random = np.random.default_rng(chance)
        self._free = self._random.permutation(CELLS).tolist()
        self._places: dict[int, dict[int, int]] = {}
        self._pieces: tuple[Piece, ...] = ()
        self._cells: dict[int, tuple[Array, Array]] = {}
        self._rows: dict[tuple[int, int], Array] = {}
        self._widths = {s.layer: s.row for s in network.shapes if s.place == "recurrent"}
        self._windows = {s.layer: s.place == "window" for s in network.shapes}
        for shape in network.shapes:
            if shape.place != "recurrent":
                rubbish = [self._rubbish(CELLS, *part) for part in (shape.key, shape.value)]
                self._cells[shape.layer] = (rubbish[0], rubbish[1])

    def play(self, *pieces: Piece) -> list[Array]:
        """Run pieces of equal length as one ubatch, a set each; their logits."""
        return np.split(self.answers(None, *pieces), len(pieces))

    def answers(self, outputs: list[int] | None, *pieces: Piece) -> Array:
        """The same with the logits of some rows only, in the order they are asked for."""
        for piece in pieces:
            places = self._places.setdefault(piece.sequence, {})
            for position in range(piece.start, piece.start + len(piece.tokens)):
                places[position] = self._free.pop()
        self._pieces = pieces
        positions = [np.arange(p.start, p.start + len(p.tokens)) for p in pieces]
        ubatch = Ubatch(
            tokens=np.concatenate([np.array(p.tokens) for p in pieces]),
            positions=np.concatenate(positions),
            sets=len(pieces),
            outputs=None if outputs is None else np.array(outputs, dtype=np.int64),
        )
        return self._network.run(ubatch, self).logits

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        first, lanes = 0, []
        for piece in self._pieces:
            rows = np.arange(first, first + len(piece.tokens))
            where = [self._places[piece.sequence][piece.start + i] for i in range(len(rows))]
            self._cells[layer][0][where] = keys[rows]
            self._cells[layer][1][where] = values[rows]
            first += len(rows)
            order = self._random.permutation(len(rows))
            lanes.append(self._lane(layer, piece, rows[order], order))
        return tuple(lanes)

    def _lane(self, layer: int, piece: Piece, rows: Integers, order: Integers) -> Lane:
        high = piece.start + order
        window = self._network.spec.window
        low = np.maximum(high - window + 1, 0) if self._windows[layer] else np.zeros_like(high)
        places = self._places[piece.sequence]
        lowest = max(int(low.min()), min(places))  # some stores start a lane at what they hold
        base = int(self._random.integers(0, lowest // BLOCK + 1)) * BLOCK
        stop = (int(high.max()) // BLOCK + 1 + int(self._random.integers(0, 3))) * BLOCK
        positions = np.arange(base, stop)
        held = np.array([position in places for position in positions.tolist()])
        where = [places[position] for position in positions[held].tolist()]
        lane_keys, lane_values = (
            self._rubbish(stop - base, *cells.shape[1:]) for cells in self._cells[layer]
        )
        lane_keys[held], lane_values[held] = (cells[where] for cells in self._cells[layer])
        positions[~held] = ABSENT
        return Lane(
            rows=rows, keys=lane_keys, values=lane_values, positions=positions, low=low, high=high
        )

    def states(self, layer: int) -> Array:
        nothing = np.zeros(self._widths[layer])
        return np.stack([self._rows.get((layer, p.sequence), nothing) for p in self._pieces])

    def keep_states(self, layer: int, states: Array) -> None:
        self.kept.setdefault(layer, []).append(states.copy())
        for piece, planes in zip(self._pieces, states, strict=True):
            self._rows[layer, piece.sequence] = planes[0].copy()

    def _rubbish(self, *shape: int) -> Array:
        return self._random.normal(0, 1e3, shape)
