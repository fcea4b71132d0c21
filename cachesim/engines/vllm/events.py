"""Events of vLLM's scheduler and runner.

Publication and writing are two events: a block has its id as soon as its chunk is scheduled, and
its content when the chunk has run.
"""

from cachesim.engines.events import ChunkEvent, Event, VerifiedEvent, event
from cachesim.units import Count


@event("plain")
class CacheLookup(Event):
    """the cache has {cached} tokens; hits by group, in turn: {by_group}"""

    cached: Count
    by_group: tuple[tuple[str, int], ...]
    junction: int = 0


@event("warn")
class RequestDeferred(Event):
    """The request stays in the queue: too few blocks, or a hit on a state of the current step."""

    cached: Count
    same_step: bool

    @property
    def sentence(self) -> str:
        if self.same_step:
            return "the request waits one step: the state that it would get is written in this one"
        return "the request waits: too few blocks are free"


@event()
class ChunkScheduled(ChunkEvent):
    drafts: int = 0


@event("gain")
class BlocksPublished(Event):
    """{kind} blocks {blocks} are cached, at {ends} tokens"""

    group: int
    kind: str
    blocks: tuple[int, ...]
    ends: tuple[int, ...]


@event("quiet")
class StepWritten(Event):
    """{chunks} chunks have run: their published blocks are written"""

    chunks: int


@event("loss")
class BlockEvicted(Event):
    """{kind} block {block}, the last of {tokens} tokens, is evicted and loses its hash"""

    block: int
    group: int
    kind: str
    tokens: Count  # length of the prefix that it ended


@event("quiet")
class BlockCopied(Event):
    """block {source} is copied to {target} before it is written to"""

    group: int
    source: int
    target: int


@event("loss")
class RequestPreempted(Event):
    """Blocks ran out: the request freed all of its blocks and will be recomputed.

    `unwritten` is the number of its blocks that this step published and will not write;
    `taken_back` is True if they lost their hashes.
    """

    unwritten: int = 0
    taken_back: bool = False

    @property
    def sentence(self) -> str:
        lost = "blocks ran out: the request frees all of its blocks and starts over"
        if not self.unwritten:
            return lost
        left = "lose their hashes" if self.taken_back else "keep their hashes until they are taken"
        return f"{lost}; {self.unwritten} published blocks will not be written: they {left}"


@event()
class DraftsVerified(VerifiedEvent):
    pass


@event("warn")
class RequestAborted(Event):
    """The client cancelled the request; a chunk already scheduled runs anyway, or is skipped."""

    scheduled: bool = False
    skipped: bool = False

    @property
    def sentence(self) -> str:
        if not self.scheduled:
            return "the request is aborted"
        fate = "never runs" if self.skipped else "runs anyway"
        return f"the request is aborted; its chunk of the scheduled step {fate}"


@event("quiet")
class RequestFinished(Event):
    """the request is done after {generated} tokens; its blocks are free"""

    generated: Count


@event("loss")
class CacheReset(Event):
    """All hashes were removed, or none, because blocks were in use."""

    done: bool

    @property
    def sentence(self) -> str:
        return "all hashes are removed" if self.done else "blocks are in use: no hash is removed"


@event("gain")
class LoadArrived(Event):
    """{tokens} tokens have arrived from the store; the request no longer waits for them"""

    tokens: Count


@event("loss")
class LoadFailed(Event):
    """the load from the store failed; {valid} tokens of the prompt are valid"""

    valid: Count


@event("plain")
class PrefilledElsewhere(Event):
    """the prefill server has computed {tokens} tokens and holds their blocks"""

    tokens: Count


@event("warn")
class LeaseEnded(Event):
    """the prefill server frees the request's blocks, which have not been read"""


@event("plain")
class BlocksOffloaded(Event):
    """{chunks} chunks of blocks are copied to the host"""

    chunks: int


@event("loss")
class HostEvicted(Event):
    """{chunks} chunks are evicted from the host"""

    chunks: int


@event("warn")
class HostFull(Event):
    """chunks are not copied to the host: those in use leave too few places"""


@event("warn")
class RequestAskedLater(Event):
    """the request waits: a copy to or from the host has not ended"""


@event("gain")
class LoadedFromHost(Event):
    """{tokens} tokens are loaded, with those from the host; the request no longer waits for them"""

    tokens: Count
