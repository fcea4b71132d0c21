"""Events: what happened, as small frozen values; an engine's only output besides replies."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from cachesim.units import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. Rooms derive their own; the name is the class's, in kebab-case."""

    slot: int = -1
    task: int = -1

    @classmethod
    @cache
    def name(cls) -> str:
        """`CheckpointCreated` is `checkpoint-created`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    def as_dict(self) -> dict[str, Any]:
        """The event as JSON shows it: its name first, then its fields in order."""
        return {"event": self.name()} | {
            each.name: getattr(self, each.name) for each in fields(self)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One rule that lowered the number of tokens that could be reused.

    Emitted where the engine takes the branch. Over one request, the losses add up: what was equal
    with the best thing there was, minus what was reused. A rule that wins tokens back (a checkpoint
    after a refused cut) has `after > before`.
    """

    rule: str
    before: Count
    after: Count
    detail: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The entry of `why` in the JSON."""
        return {
            "rule": self.rule,
            "from": self.before,
            "to": self.after,
            "detail": dict(self.detail),
        }


class EventLog(list[Event]):
    """A list of events; whoever wants to look at the server after each of them may."""

    hear: Callable[[], None] | None = None

    def append(self, event: Event) -> None:
        """Keep an event, and say that it happened."""
        super().append(event)
        if self.hear is not None:
            self.hear()

    def extend(self, events: Iterable[Event]) -> None:
        """Keep several, one after the other."""
        for event in events:
            self.append(event)
