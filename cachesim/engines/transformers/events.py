"""Events of continuous batching."""

from cachesim.engines.events import ChunkEvent, Event, event
from cachesim.units import Count


@event("plain")
class PrefixMatched(Event):
    """the cache has {cached} tokens"""

    cached: Count


@event()
class ChunkScheduled(ChunkEvent):
    pass


@event("gain")
class BlocksHashed(Event):
    """blocks {blocks} can be matched from now on, at {ends} tokens"""

    blocks: tuple[int, ...]
    ends: tuple[int, ...]


@event("quiet")
class BlockMerged(Event):
    """block {block} is free: block {other} holds the same {end} tokens"""

    block: int
    other: int
    end: int


@event("loss")
class BlocksEvicted(Event):
    """all {blocks} blocks without a request are evicted: {tokens} tokens"""

    blocks: int
    tokens: Count


@event("loss")
class RequestSetBack(Event):
    """blocks ran out: the request frees its blocks and starts over, {generated} tokens generated"""

    generated: Count


@event("warn")
class RequestAborted(Event):
    """the request is aborted"""


@event("quiet")
class RequestFinished(Event):
    """the request is finished, with a reply of {generated} tokens"""

    generated: Count
