"""Slots that a client saved, restored or erased, and their requests.

    done            request 3    save to f    request 4    restore f    request 5
    slot 0 holds    3            3            4            3            5, which continues 3

Requests and actions are numbered together, as their lines are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cachesim.why.read.segments import whole

ACTIONS: Final[Mapping[str, str]] = {"save": "saved", "restore": "restored", "erase": "erased"}
"""Actions of `POST /slots/N?action=...`, and their past participles."""

MOST_LOST: Final = 1_000
"""Most requests with lost slots; older ones are dropped."""

UNREADABLE: Final = 400

SLOT_TAKEN: Final = "slot-taken"
ADVICE: Final = (
    "Erase a slot, or restore a file into it, only when its conversation is over or saved; with "
    "another `id_slot` both can stay."
)


@dataclass(frozen=True, slots=True)
class SlotAction:
    """A call of `/slots/N`."""

    number: int
    action: str
    slot: int
    file: str = ""  # a hash of its name, or the name where text is kept
    tokens: int | None = None  # as the server counted them
    status: int | None = None
    began: float | None = None
    seconds: float | None = None

    @property
    def was_done(self) -> bool:
        return self.status is None or self.status < 400

    @property
    def changes(self) -> bool:
        """True if the action changes the server's slots or files.

        llama-server forgets what a slot holds before it answers 400 to a file that it cannot read.
        """
        return self.was_done or (self.action == "restore" and self.status == UNREADABLE)

    @property
    def sentence(self) -> str:
        if not self.was_done:
            return f"slot {self.slot} is not {ACTIONS[self.action]}: status {self.status}"
        counted = "" if self.tokens is None else f": {self.tokens:,} tokens"
        return f"slot {self.slot} {ACTIONS[self.action]}{counted}"

    @property
    def past(self) -> str:
        """A phrase such as `was erased by request 3`."""
        if self.action == "erase":
            return f"was erased by request {self.number}"
        if not self.was_done:
            return f"was emptied by request {self.number}, which found no file to restore"
        return f"was filled from a file by request {self.number}"


def action_from(
    entry: Mapping[str, Any], *, number: int, began: float | None, seconds: float | None
) -> SlotAction:
    """Action of a recorded line; ValueError for an unknown one."""
    action, slot = entry.get("action"), whole(entry.get("slot"))
    if not isinstance(action, str) or action not in ACTIONS or slot is None:
        raise ValueError(f"has an action that is none of {', '.join(ACTIONS)}, or no slot")
    return SlotAction(
        number=number,
        action=action,
        slot=slot,
        file=str(entry.get("file") or "")[:200],
        tokens=whole(entry.get("moved")),
        status=whole(entry.get("status")),
        began=began,
        seconds=seconds,
    )


@dataclass(slots=True)
class Slots:
    """The request in each slot and file, if known."""

    _holds: dict[int, int] = field(default_factory=dict)
    _files: dict[str, int] = field(default_factory=dict)
    _lost: dict[int, SlotAction] = field(default_factory=dict)

    def act(self, action: SlotAction) -> None:
        """Apply a save, restore or erase."""
        if not action.changes:
            return
        held = self._holds.get(action.slot)
        if action.action == "save":
            if held is not None:
                self._files[action.file] = held
            return
        if held is not None:
            del self._holds[action.slot]
            self._lost[held] = action
            if len(self._lost) > MOST_LOST:
                del self._lost[next(iter(self._lost))]
        restored = action.action == "restore" and action.was_done
        saved = self._files.get(action.file) if restored else None
        if saved is not None:
            self._holds[action.slot] = saved
            self._lost.pop(saved, None)

    def ran(self, number: int, slot: int | None) -> None:
        """Assign a finished request to its slot."""
        if slot is not None:
            self._holds[slot] = number

    def lost(self, number: int | None) -> SlotAction | None:
        """The action that removed a request from its slot, if any."""
        return None if number is None else self._lost.get(number)


def is_action(entry: Mapping[str, Any]) -> bool:
    """True if a recorded line is a call of `/slots/N` without a prompt."""
    return "action" in entry and not any(key in entry for key in ("request", "segments"))
