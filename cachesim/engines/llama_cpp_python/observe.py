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
        "slots": [{"id": each.id, "tokens": list(each.tokens)} for each in slots],
        "prompt_cache": [
            {"n_tokens": each.n_tokens, "checkpoints": 0, "bytes": each.size} for each in entries
        ],
    }


def held(context: Context, slots: Slots, entries: Entries) -> Held:
    """Cells and states with the marks of a traced network."""
    cells, rows = memory_held(context)
    saved = (EntryHeld(tokens=each.held, checkpoints=0, size=each.size) for each in entries)
    return Held(slots=slots, cells=cells, rows=rows, entries=tuple(saved))


def texts(slots: Slots, entries: Entries) -> Texts:
    """The tokens of each sequence and of each saved state."""
    return Texts(
        slots=tuple((each.id, each.tokens) for each in slots),
        entries=tuple(each.held for each in entries),
    )
