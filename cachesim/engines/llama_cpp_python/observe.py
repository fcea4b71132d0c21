"""What an instance, and its cache of states, holds."""

from collections.abc import Collection
from typing import Any, Protocol, TypeAlias

from cachesim.engines.held import EntryHeld, Held, SlotHeld, Texts
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.llamacpp.observe import memory_held
from cachesim.units import Count, Tokens


class Saved(Protocol):
    """A saved state."""

    @property
    def held(self) -> Tokens:
        """The evaluated tokens."""
        ...

    @property
    def n_tokens(self) -> Count: ...

    @property
    def size(self) -> int: ...


Slots: TypeAlias = tuple[SlotHeld, ...]
Entries: TypeAlias = Collection[Saved]


def books(slots: Slots, entries: Entries) -> dict[str, Any]:
    """Tokens of each sequence, and the saved states."""
    return {
        "slots": [{"id": slot.id, "tokens": list(slot.tokens)} for slot in slots],
        "prompt_cache": [
            {"n_tokens": entry.n_tokens, "checkpoints": 0, "bytes": entry.size} for entry in entries
        ],
    }


def held(context: Context, slots: Slots, entries: Entries) -> Held:
    """Cells and states with the marks of a traced network."""
    cells, rows = memory_held(context)
    saved = (EntryHeld(tokens=entry.held, checkpoints=0, size=entry.size) for entry in entries)
    return Held(slots=slots, cells=cells, rows=rows, entries=tuple(saved))


def texts(slots: Slots, entries: Entries) -> Texts:
    """The tokens of each sequence and of each saved state."""
    return Texts(
        slots=tuple((slot.id, slot.tokens) for slot in slots),
        entries=tuple(entry.held for entry in entries),
    )
