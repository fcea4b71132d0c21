"""Keys, values and states of one sequence, as a request computes them and as nodes keep them."""

from dataclasses import dataclass, field

import numpy as np

from cachesim.model.arithmetic import LayerShape, Network
from cachesim.model.store import BLOCK, Frame, Lanes
from cachesim.units import Array


@dataclass(slots=True)
class Content:
    """What belongs to the tokens of one node: their keys and values, and the state at the end."""

    keys: dict[int, tuple[Array, Array]]
    state: dict[int, Array]

    def parted(self, length: int) -> "tuple[Content, Content]":
        """The first tokens, whose state is not known, and the rest."""
        upper = {layer: (k[:length], v[:length]) for layer, (k, v) in self.keys.items()}
        lower = {layer: (k[length:], v[length:]) for layer, (k, v) in self.keys.items()}
        return Content(upper, {}), Content(lower, self.state)

    def before(self, other: "Content") -> "Content":
        """These tokens and then another node's."""
        both = {
            layer: (
                np.concatenate((k, other.keys[layer][0])),
                np.concatenate((v, other.keys[layer][1])),
            )
            for layer, (k, v) in self.keys.items()
        }
        return Content(both, other.state)


@dataclass(slots=True)
class Memory:
    """The memory of the request that runs; a network's `Store` over positions from 0 on."""

    network: Network
    longest: int
    planes: int = 1
    length: int = 0
    keys: dict[int, tuple[Array, Array]] = field(default_factory=dict)
    state: dict[int, Array] = field(default_factory=dict)
    count: int = 0  # tokens of the piece that runs now

    def __post_init__(self) -> None:
        """Room for every layer."""
        room = -(-self.longest // BLOCK) * BLOCK
        for shape in self.network.shapes:
            if shape.place == "recurrent":
                self.state[shape.layer] = np.zeros(shape.row, shape.dtype)
            else:
                self.keys[shape.layer] = (
                    np.zeros((room, *shape.key), shape.dtype),
                    np.zeros((room, *shape.value), shape.dtype),
                )

    def load(self, contents: list[Content]) -> None:
        """Start from the nodes of a match: their keys one after the other, the last one's state."""
        for content in contents:
            count = 0
            for layer, (keys, values) in content.keys.items():
                count = len(keys)
                held_keys, held_values = self.keys[layer]
                held_keys[self.length : self.length + count] = keys
                held_values[self.length : self.length + count] = values
            self.length += count
        if contents:
            self.state = {layer: row.copy() for layer, row in contents[-1].state.items()}

    def content(self, start: int, end: int, state: dict[int, Array]) -> Content:
        """What a node of tokens `[start, end)` keeps."""
        keys = {
            layer: (k[start:end].copy(), v[start:end].copy()) for layer, (k, v) in self.keys.items()
        }
        return Content(keys, state)

    def saved(self) -> dict[int, Array]:
        """A copy of the running state."""
        return {layer: row.copy() for layer, row in self.state.items()}

    def _shape(self, layer: int) -> LayerShape:
        return next(shape for shape in self.network.shapes if shape.layer == layer)

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Write the piece's keys and values, then look at all of the sequence."""
        start, end = self.length, self.length + self.count
        held_keys, held_values = self.keys[layer]
        held_keys[start:end], held_values[start:end] = keys, values
        window = self.network.spec.window if self._shape(layer).place == "window" else 0
        frame = Frame.of_run(start, end, window)
        first = int(frame.positions[0])
        shown = slice(first, first + len(frame.positions))
        return (frame.lane(held_keys[shown], held_values[shown]),)

    def states(self, layer: int) -> Array:
        """The running state."""
        return self.state[layer][None].copy()

    def keep_states(self, layer: int, states: Array) -> None:
        """The state after the piece."""
        self.state[layer] = states[0, 0].copy()
