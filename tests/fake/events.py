"""What the fake server says that it did."""

from dataclasses import dataclass

from cachesim.engines.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestServed(Event, says="{cached} tokens were kept"):
    """A request was answered."""

    cached: int
