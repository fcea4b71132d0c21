"""Events of SGLang's scheduler and tree."""

from dataclasses import dataclass
from typing import Final

from cachesim.engines.events import ChunkEvent, Event
from cachesim.engines.sglang.pools import Deed
from cachesim.units import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatched(Event, tone="plain"):
    """A waiting request was looked up; `branch` is where this prefill will save a state."""

    cached: Count
    attention: Count
    branch: int = 0
    on_host: int = 0

    @property
    def sentence(self) -> str:
        words = f"the tree has {self.cached} tokens to resume from"
        if self.on_host:
            words += f", {self.on_host} of them on the host"
        if self.attention > self.cached:
            words += f"; attention alone would have {self.attention}"
        if self.branch:
            words += f", and {self.branch} is the branching point"
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkScheduled(ChunkEvent):
    """A chunk of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixKept(
    Event, tone="gain", says="the tree keeps {tokens} tokens of the request, {fresh} of them new"
):
    """The tokens of a request were inserted into the tree."""

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
    Event, tone="loss", says="tokens {start} to {end} of request {request} lose their window slots"
):
    """A node lost its window slots and stays."""

    request: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent(Event):
    """Something of a node moved between the device and the host."""

    request: int
    start: int
    end: int
    part: str = "attention"  # or window, or state

    @property
    def subject(self) -> str:
        """The moved part, with its verb."""
        if self.part == "state":
            return f"the state after {self.end} tokens of request {self.request} is"
        tokens = f"tokens {self.start} to {self.end} of request {self.request}"
        return f"{tokens} are" if self.part == "attention" else f"the window slots of {tokens} are"

    @property
    def sentence(self) -> str:
        return f"{self.subject} {self.says}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedToHost(HostEvent, tone="gain", says="copied to the host"):
    """The host has a copy now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictedToHost(HostEvent, tone="plain", says="now on the host only"):
    """The device gave something up that the host has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFromHost(HostEvent, tone="gain", says="loaded back from the host"):
    """The device has it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvicted(HostEvent, tone="loss", says="evicted from the host"):
    """The host gave something up."""

    @property
    def for_bytes(self) -> bool:
        """The host's size decided it, which `--hicache-size` gives in bytes."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedToStorage(HostEvent, tone="gain", says="copied to the storage"):
    """The storage has what the host got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFromStorage(HostEvent, tone="gain", says="fetched from the storage to the host"):
    """The host has what a waiting request asked the storage for."""


MOVED: Final[dict[Deed, type[HostEvent]]] = {
    "copied": CopiedToHost,
    "left": EvictedToHost,
    "loaded": LoadedFromHost,
    "dropped": HostEvicted,
    "stored": CopiedToStorage,
    "fetched": FetchedFromStorage,
}
"""Sentence for each transfer of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetracted(
    Event, tone="loss", says="memory ran out: the request frees all of its memory and starts over"
):
    """Memory ran out in decode: the request waits again, and is computed from the start."""


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
        return "the tree is empty now" if self.done else "requests are running: nothing is flushed"
