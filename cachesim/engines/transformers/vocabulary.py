"""Events of continuous batching, and its causes of lost reuse."""

from typing import Final

from cachesim.engines.causes import Cause, declared, last_computed
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


SHARING_OFF: Final = Cause(
    id="sharing-off",
    sentence="blocks are not shared: `allow_block_sharing` is off",
    about="No block gets a hash, and every prompt is computed.",
)
WINDOW_LAYERS: Final = Cause(
    id="window-layers",
    sentence="blocks are not shared by a model with windows",
    about=(
        "The ring of a window overwrites itself, so its blocks cannot be shared, and a prefix is "
        "matched in all layers or in none."
    ),
)
LAST_TOKEN: Final = last_computed("A match covers at most all tokens but the last.")
WHOLE_PAGES: Final = Cause(
    id="whole-pages",
    sentence="only whole blocks of {page} tokens are matched",
    about="A hash stands for a whole block. A smaller `page_size` reuses more of short prompts.",
)
NOT_HASHED: Final = Cause(
    id="not-hashed",
    sentence="the blocks after {found} of {wanted} tokens have no hash",
    about=(
        "A batch registers the blocks that it fills after it ran, but not those of a request that "
        "it finishes: a prompt whose reply is one token leaves nothing of its last batch. Blocks "
        "of a batch that has not run have no hash yet."
    ),
)
EVICTED: Final = Cause(
    id="evicted",
    sentence="the blocks after {found} of {wanted} tokens were evicted",
    about=(
        "Below the safety margin, and where a request finds no room, all blocks without a request "
        "are evicted at once. A preempted request frees its blocks, too."
    ),
)

CAUSES: Final = declared(globals())
