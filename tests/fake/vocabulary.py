"""Events of the fake server, and why it reuses less."""

from cachesim.engines.causes import Cause, declared, last_computed
from cachesim.engines.events import Event, event


@event()
class RequestServed(Event):
    """{cached} tokens were kept"""

    cached: int


FORGETFUL = Cause(
    id="forgetful",
    sentence="half of the {held} tokens held is forgotten",
    about="This server is made to lose tokens.",
)

LAST_TOKEN = last_computed("A prompt is never taken from the cache whole.")

CAUSES = declared(globals())
