"""Events of the fake server."""

from cachesim.engines.events import Event, event


@event()
class RequestServed(Event):
    """{cached} tokens were kept"""

    cached: int
