"""Detection of two llama.cpp servers whose lines are in one log without a prefix.

    slot 0 | task 7 | processing task       server A
    slot 0 | task 3 | processing task       server B: in A, task 7 would have been released before
    slot 0 | task 7 | stop processing       A goes on: two servers

After a restart or lost lines no task returns.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

Work = tuple[int, int]
"""A slot and the task in it."""

TASKS: Final = 2
"""Tasks that come back until lines are mixed; a single one may be a line that was moved."""

SWINGS: Final = 3
"""Times that task numbers go back and forth; one start of a server sends them back once."""

SOON: Final = 3
"""Launches in which a swing is over."""

CLOCK_SWINGS, ALONE, AT_ONCE = 3, 8, 100
"""Times that the clock goes back and forth: beside a task that comes back, and without one; most
lines of slots of such a time. One thread of a server prints them all.
"""

ADVICE: Final = (
    "Slots and tasks of both have the same numbers, so no line can be assigned to its server. "
    "Give each server a log of its own, as with `--log-file`"
)


@dataclass(slots=True)
class Mixture:
    """The lines so far of what seems to be one server."""

    overtaken: dict[Work, int] = field(default_factory=dict)  # at work, while it could not be
    back: dict[Work, int] = field(default_factory=dict)  # their lines after that
    swings: int = 0
    _highest: int = -1
    _went_back: int | None = None  # launches since the numbers did
    _was_alone: bool = True
    _clock: float = 0.0
    _clock_went_back: int | None = None  # lines since it did
    _clock_swings: int = 0

    def launch(self, slot: int, task: int, active: Collection[Work]) -> None:
        """Read a launch beside what is at work."""
        for work in active:
            if (work[0] == slot) != (work[1] == task):
                self.overtaken.setdefault(work, task)
        alone = not active
        if task > self._highest:
            self.swings += self._went_back is not None
            self._highest, self._went_back = task, None
        elif alone and self._was_alone and task > 0 and self._went_back is None:
            self._went_back = 0
        if self._went_back is not None:
            self._went_back += 1
            if self._went_back > SOON:
                self._went_back = None
        self._was_alone = alone

    def idle(self, active: Collection[Work]) -> None:
        """Read that all slots are idle."""
        for work in active:
            self.overtaken.setdefault(work, -1)

    def line(self, slot: int, task: int, number: int) -> None:
        """Read any other line of a task."""
        if self.overtaken and (slot, task) in self.overtaken:
            self.back.setdefault((slot, task), number)

    def clock(self, seconds: float) -> None:
        """Read the clock of a slot's line."""
        if seconds > self._clock:
            self._clock_swings += self._clock_went_back is not None
            self._clock, self._clock_went_back = seconds, None
        elif seconds < self._clock and self._clock_went_back is None:
            self._clock_went_back = 0
        if self._clock_went_back is not None:
            self._clock_went_back += 1
            if self._clock_went_back > AT_ONCE:
                self._clock, self._clock_went_back = seconds, None

    @property
    def proof(self) -> str:
        """What only two servers print; empty if one may have printed all lines."""
        if len(self.back) >= TASKS or (self.back and self._clock_swings >= CLOCK_SWINGS):
            (slot, task), line = next(iter(self.back.items()))
            by = self.overtaken[slot, task]
            what = f"task {by} was launched there" if by >= 0 else "all slots were idle"
            if by == task:
                what = "a task of this number was launched in another slot"
            return f"task {task} of slot {slot} continues in line {line} after {what}"
        if self._clock_swings >= ALONE:
            return f"the clock of their slots went back and forth {self._clock_swings} times"
        if self.swings >= SWINGS:
            return (
                f"the numbers of launched tasks went back {self.swings} times, and then on from "
                "where they were"
            )
        return ""
