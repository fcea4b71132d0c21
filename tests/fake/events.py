"""What the fake server says that it did."""

from cachesim.engines.events import Event, event


@event()
class RequestServed(Event):
    """{cached} tokens were kept"""

    cached: int
