"""Events: what happened, as small frozen values; an engine's only output besides replies.

Each class declares, where it is defined, its tone and its sentence:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class SlotPurged(Event, tone="loss", says="idle slot {slot} was emptied: {n_tokens} tokens"):

Reports, pages and lessons render both and know no event by name.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias

from cachesim.engines.words import filled

Tone: TypeAlias = Literal["loss", "gain", "warn", "plain", "quiet"]
"""Tokens were lost; something was saved or brought back; something stayed or was handed on that
is not what it should be; a decision; routine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event. Engines derive their own; the name is the class's, in kebab-case."""

    tone: ClassVar[Tone] = "plain"
    says: ClassVar[str] = ""

    slot: int = -1
    task: int = -1

    def __init_subclass__(cls, *, tone: Tone | None = None, says: str | None = None) -> None:
        # `slots=True` makes each class twice; the second time nothing is given, and nothing changes
        if tone is not None:
            cls.tone = tone
        if says is not None:
            cls.says = says

    @classmethod
    @cache
    def name(cls) -> str:
        """`CheckpointCreated` is `checkpoint-created`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    def loudness(self) -> Tone:
        """The tone of this very event; classes whose numbers decide it say so."""
        return self.tone

    @property
    def for_bytes(self) -> bool:
        """True where a limit in bytes evicted something, or kept it from being saved."""
        return False

    @property
    def sentence(self) -> str:
        """The event's sentence: lower case, no full stop."""
        return filled(self.says, {each.name: getattr(self, each.name) for each in fields(self)})

    def as_dict(self) -> dict[str, Any]:
        """The event's data: its name first, then its fields in order."""
        return {"event": self.name()} | {
            each.name: getattr(self, each.name) for each in fields(self)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEvent(Event, tone="plain", says="tokens {start} to {end} are computed in this step"):
    """A request computes tokens `[start, end)`."""

    start: int
    end: int


class EventLog(list[Event]):
    """A list of events; whoever wants to look at the server after each of them may."""

    hear: Callable[[], None] | None = None

    def append(self, event: Event) -> None:
        """Keep an event, and say that it happened."""
        list.append(self, event)  # `super()` would take longer than the rest
        if self.hear is not None:
            self.hear()

    def extend(self, events: Iterable[Event]) -> None:
        """Keep several, one after the other."""
        for event in events:
            self.append(event)
