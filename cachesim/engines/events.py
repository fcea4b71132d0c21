"""Events: small frozen values, an engine's only output besides replies.

Each class is declared once: its tone, its sentence as the docstring, its fields:

    @event("loss")
    class SlotPurged(Event):
        '''idle slot {slot} was emptied of {n_tokens} tokens'''

        n_tokens: int

Reports, pages and lessons render tone and sentence, without a list of events.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, dataclass_transform

from cachesim.engines.words import filled

Tone: TypeAlias = Literal["loss", "gain", "warn", "plain", "quiet"]
"""Loss; save or restore; stale or wrong content that is kept or passed on; decision; routine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event; engines derive their own, named after the class in kebab-case."""

    tone: ClassVar[Tone] = "plain"
    template: ClassVar[str] = ""

    slot: int = -1
    task: int = -1

    @classmethod
    @cache
    def name(cls) -> str:
        """`CheckpointCreated` is `checkpoint-created`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    @cache
    def own_fields(cls) -> tuple[str, ...]:
        """The fields beside slot and task."""
        return tuple(field.name for field in fields(cls) if field.name not in {"slot", "task"})

    def loudness(self) -> Tone:
        """The tone of this event, for classes whose numbers decide it."""
        return self.tone

    @property
    def for_bytes(self) -> bool:
        """True if a limit in bytes caused an eviction, or prevented a save."""
        return False

    @property
    def sentence(self) -> str:
        """The event's sentence: lower case, no full stop."""
        return filled(
            self.template, {field.name: getattr(self, field.name) for field in fields(self)}
        )

    def as_dict(self) -> dict[str, Any]:
        """The event's data: its name first, then its fields in order."""
        return {"event": self.name()} | {
            field.name: getattr(self, field.name) for field in fields(self)
        }


E = TypeVar("E", bound=Event)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event(tone: Tone | None = None) -> Callable[[type[E]], type[E]]:
    """Declare an event: a frozen value whose docstring is its sentence, over fields in braces."""

    def declared(cls: type[E]) -> type[E]:
        if tone is not None:
            cls.tone = tone
        if cls.__doc__ is None:
            cls.__doc__ = cls.template
        elif "sentence" not in vars(cls):
            cls.template = cls.__doc__ if "\n" not in cls.__doc__ else " ".join(cls.__doc__.split())
            cls.__doc__ = cls.template
        return dataclass(frozen=True, slots=True, kw_only=True)(cls)

    return declared


@event("plain")
class ChunkEvent(Event):
    """tokens {start} to {end} are computed in this step"""

    start: int
    end: int


@event("plain")
class VerifiedEvent(Event):
    """{accepted} of {proposed} drafts are accepted"""

    proposed: int
    accepted: int


class EventLog(list[Event]):
    """A list of events, with a callback after each of them."""

    listener: Callable[[], None] | None = None

    def append(self, event: Event) -> None:
        """Append an event, and call the listener."""
        list.append(self, event)  # `super()` would take longer than the rest
        if self.listener is not None:
            self.listener()

    def extend(self, events: Iterable[Event]) -> None:
        """Append several events."""
        for event in events:
            self.append(event)
