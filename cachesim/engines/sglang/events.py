"""What happens inside SGLang's scheduler and tree, as events."""

from dataclasses import dataclass

from cachesim.engines import said
from cachesim.engines.events import Event
from cachesim.units import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatched(Event, tone="plain"):
    """A waiting request was looked up; `branch` is where this prefill will save a state."""

    cached: Count
    attention: Count
    branch: int = 0

    @property
    def sentence(self) -> str:
        """What can be used, and how far attention alone goes."""
        words = f"the tree has {self.cached} tokens to go on from"
        if self.attention > self.cached:
            words += f"; attention alone would have {self.attention}"
        if self.branch:
            words += f", and {self.branch} is the branching point"
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkScheduled(Event, tone="plain", says=said.CHUNK):
    """A request computes tokens `[start, end)` of its prompt in this step."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixKept(
    Event, tone="gain", says="the tree keeps {tokens} tokens of the request, {fresh} of them new"
):
    """What a request has computed went into the tree."""

    tokens: Count
    fresh: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKept(Event, tone="gain", says="the tree keeps a state after {tokens} tokens"):
    """A node got a state."""

    tokens: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvicted(
    Event, tone="loss", says="a node is evicted: tokens {start} to {end} of request {request}"
):
    """A node went, with everything in it."""

    request: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEvicted(
    Event, tone="loss", says="the state after {tokens} tokens of request {request} is evicted"
):
    """A node lost its state and stays."""

    request: int
    tokens: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEvicted(
    Event,
    tone="loss",
    says="tokens {start} to {end} of request {request} lose their window slots",
):
    """A node lost its window slots and stays."""

    request: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetracted(
    Event, tone="loss", says="memory ran out: the request gives all of its back and starts over"
):
    """Memory ran out in decode: the request waits again, and is computed anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAborted(Event, tone="warn", says="the request is aborted; {why}"):
    """The client went away, or memory ran out for the last request."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFinished(Event, tone="quiet", says="the request is done after {generated} tokens"):
    """The request is done."""

    generated: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFlushed(Event, tone="loss"):
    """The tree was emptied, or not, because requests were running."""

    done: bool

    @property
    def sentence(self) -> str:
        """Whether it was done."""
        return "the tree is empty now" if self.done else "requests are running: nothing is flushed"
