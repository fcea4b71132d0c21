"""Events of vLLM's scheduler and runner.

Publication and writing are two events: a block has its id as soon as its chunk is scheduled, and
its content when the chunk has run.
"""

from dataclasses import dataclass

from cachesim.engines.events import ChunkEvent, Event
from cachesim.units import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLookup(
    Event,
    tone="plain",
    says="the cache has {cached} tokens; the groups answered, in turn, {by_group}",
):
    """A waiting request was looked up.

    `by_group` says what each kind of group answered when it was first asked, in that order;
    `junction` how far the longest went, where that is further than the hit.
    """

    cached: Count
    by_group: tuple[tuple[str, int], ...]
    junction: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDeferred(Event, tone="warn"):
    """The request stays in the queue: too few blocks, or a state that this step is to write."""

    cached: Count
    same_step: bool

    @property
    def sentence(self) -> str:
        if self.same_step:
            return "the request waits one step: the state that it would get is written in this one"
        return "the request waits: too few blocks are free"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkScheduled(ChunkEvent):
    """A request computes tokens `[start, end)` in this step, the last `drafts` of them proposed."""

    drafts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksPublished(
    Event, tone="gain", says="{kind} blocks {blocks} can be hit from now on, at {ends} tokens"
):
    """Blocks of a group got their ids and can be hit; `ends` are the lengths of their prefixes."""

    group: int
    kind: str
    blocks: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWritten(
    Event, tone="quiet", says="{chunks} chunks have run: what was published for them is written"
):
    """The chunks of a step have run: what was published for them is written now."""

    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockEvicted(
    Event,
    tone="loss",
    says="{kind} block {block}, the last of {tokens} tokens, is evicted and loses its id",
):
    """A free block was taken for something else and lost its id."""

    block: int
    group: int
    kind: str
    tokens: Count  # length of the prefix that it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopied(
    Event, tone="quiet", says="block {source} is copied to {target} before it is written to"
):
    """A partly filled block was copied before it is written to."""

    group: int
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPreempted(Event, tone="loss"):
    """Blocks ran out: the request gave all of its back and will be computed again.

    `unwritten` are the blocks that this step had published for it and will not write; `taken_back`
    says whether they lost their ids.
    """

    unwritten: int = 0
    taken_back: bool = False

    @property
    def sentence(self) -> str:
        lost = "blocks ran out: the request frees all of its blocks and starts over"
        if not self.unwritten:
            return lost
        left = "lose their ids" if self.taken_back else "keep their ids until they are taken"
        return f"{lost}; {self.unwritten} published blocks will not be written: they {left}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftsVerified(Event, tone="plain", says="{accepted} of {proposed} drafts are accepted"):
    """Number of proposed tokens that were accepted."""

    proposed: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAborted(Event, tone="warn"):
    """The client went away; a chunk that was scheduled for it runs anyway, or is skipped."""

    scheduled: bool = False
    skipped: bool = False

    @property
    def sentence(self) -> str:
        if not self.scheduled:
            return "the request is aborted"
        fate = "never runs" if self.skipped else "runs anyway"
        return f"the request is aborted; its chunk of the scheduled step {fate}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished(
    Event, tone="quiet", says="the request is done after {generated} tokens; its blocks are free"
):
    """The request is done and its blocks are free."""

    generated: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReset(Event, tone="loss"):
    """All ids were forgotten, or not, because blocks were in use."""

    done: bool

    @property
    def sentence(self) -> str:
        return "all ids are forgotten" if self.done else "blocks are in use: nothing is forgotten"
