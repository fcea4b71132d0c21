"""Decisions that reports show; the docstring of an event is its sentence."""

from cachesim.engines.events import Event, event


@event("gain")
class PrefixMatched(Event):
    """{cached} tokens are reused"""

    cached: int


@event("loss")
class EntryEvicted(Event):
    """the least recently used prompt, {tokens} tokens, is evicted"""

    tokens: int
