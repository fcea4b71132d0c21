"""Slot files: tokens, state and checkpoints, then the layers' elements in that order."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cachesim.engines import slot_file
from cachesim.engines.ik_llama.context import Checkpoint, SequenceState
from cachesim.engines.ik_llama.options import MOST_CELLS
from cachesim.engines.slot_file import tokens_of, whole
from cachesim.units import Array, Count, Pos, Token

MAGIC: Final = b"CSIK"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSlot:
    """The content of a slot file."""

    tokens: tuple[Token, ...]
    state: SequenceState
    checkpoints: tuple[Checkpoint, ...]


def encode(saved: SavedSlot) -> bytes:
    """Write a slot as bytes (`llama_state_seq_save_file`)."""
    elements: list[bytes] = []
    text = {
        "tokens": list(saved.tokens),
        "state": _describe(saved.state, elements),
        "checkpoints": [
            {
                "pos": [c.pos_min, c.pos_max, c.pos_min_prompt, c.pos_max_prompt],
                "state": _describe(c.state, elements),
            }
            for c in saved.checkpoints
        ],
    }
    return slot_file.write(MAGIC, text, elements)


def decode(data: bytes) -> SavedSlot:
    """Parse a slot file; a damaged one is refused."""
    return slot_file.read(
        data, MAGIC, "ik_llama.cpp", lambda text, rest: _read(text, _Elements(rest))
    )


def _read(text: dict[str, Any], rest: "_Elements") -> SavedSlot:
    state = rest.state(text["state"])
    return SavedSlot(
        tokens=tuple(tokens_of(text["tokens"])),
        state=state,
        checkpoints=tuple(_checkpoint(each, rest) for each in text["checkpoints"]),
    )


def _checkpoint(text: dict[str, Any], rest: "_Elements") -> Checkpoint:
    """Parse a checkpoint; upstream leaves n_tokens undefined (an oddity), here it is 0."""
    pos_min, pos_max, pos_min_prompt, pos_max_prompt = (Pos(whole(each)) for each in text["pos"])
    return Checkpoint(
        made_by=-1,  # not in the file
        pos_min=pos_min,
        pos_max=pos_max,
        pos_min_prompt=pos_min_prompt,
        pos_max_prompt=pos_max_prompt,
        n_tokens=Count(0),
        state=rest.state(text["state"]),
    )


def _describe(state: SequenceState, elements: list[bytes]) -> dict[str, Any]:
    def layers(arrays: dict[int, Array] | None) -> list[Any] | None:
        if arrays is None:
            return None
        elements.extend(array.tobytes() for array in arrays.values())
        return [[n, list(array.shape), array.dtype.str] for n, array in arrays.items()]

    return {
        "positions": list(state.positions),
        "born": list(state.born),
        "size": state.size,
        "keys": layers(state.keys),
        "values": layers(state.values),
        "rows": layers(state.rows),
    }


def _position(value: object) -> Pos:
    return Pos(whole(value, most=MOST_CELLS))


class _Elements:
    """The elements after the text, parsed in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def layers(self, described: list[Any]) -> dict[int, Array]:
        found: dict[int, Array] = {}
        for layer, shape, kind in described:
            count = math.prod(whole(each, 0) for each in shape)
            array = np.frombuffer(self._data, kind, count, self._at).reshape(shape)
            self._at += array.nbytes
            found[whole(layer)] = array.copy()
        return found

    def state(self, text: dict[str, Any]) -> SequenceState:
        keys, values = text["keys"], text["values"]
        return SequenceState(
            positions=tuple(map(_position, text["positions"])),
            born=tuple(map(_position, text["born"])),
            size=whole(text["size"]),
            keys=None if keys is None else self.layers(keys),
            values=None if values is None else self.layers(values),
            rows=self.layers(text["rows"]),
        )
