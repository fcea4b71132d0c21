"""Events of SGLang's scheduler and tree."""

from typing import Final

from cachesim.engines.events import ChunkEvent, Event, VerifiedEvent, event
from cachesim.engines.sglang.pools import HostAction
from cachesim.units import Count


@event("plain")
class PrefixMatched(Event):
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


@event()
class ChunkScheduled(ChunkEvent):
    pass


@event()
class DraftsVerified(VerifiedEvent):
    pass


@event("gain")
class PrefixKept(Event):
    """the tree keeps {tokens} tokens of the request, {fresh} of them new"""

    tokens: Count
    fresh: Count


@event("gain")
class StateKept(Event):
    """the tree keeps a state after {tokens} tokens"""

    tokens: Count


@event("loss")
class NodeEvicted(Event):
    """a node is evicted: tokens {start} to {end} of request {request}"""

    request: int
    start: int
    end: int


@event("loss")
class StateEvicted(Event):
    """the state after {tokens} tokens of request {request} is evicted"""

    request: int
    tokens: Count


@event("loss")
class WindowEvicted(Event):
    """tokens {start} to {end} of request {request} lose their window slots"""

    request: int
    start: int
    end: int


@event()
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
        return f"{self.subject} {self.template}"


@event("gain")
class CopiedToHost(HostEvent):
    """copied to the host"""


@event("plain")
class EvictedToHost(HostEvent):
    """now on the host only"""


@event("gain")
class LoadedFromHost(HostEvent):
    """loaded back from the host"""


@event("loss")
class HostEvicted(HostEvent):
    """evicted from the host"""

    @property
    def for_bytes(self) -> bool:
        """The host's size decided it, which `--hicache-size` gives in bytes."""
        return True


@event("gain")
class CopiedToStorage(HostEvent):
    """copied to the storage"""


@event("gain")
class FetchedFromStorage(HostEvent):
    """fetched from the storage to the host"""


MOVED: Final[dict[HostAction, type[HostEvent]]] = {
    "copied": CopiedToHost,
    "left": EvictedToHost,
    "loaded": LoadedFromHost,
    "dropped": HostEvicted,
    "stored": CopiedToStorage,
    "fetched": FetchedFromStorage,
}
"""Sentence for each transfer of a node."""


@event("loss")
class RequestRetracted(Event):
    """memory ran out: the request frees all of its memory and starts over"""


@event("loss")
class RequestPreempted(Event):
    """a request of higher priority needs its place: it frees all of its memory and starts over"""


@event("warn")
class RequestAborted(Event):
    """the request is aborted; {why}"""

    why: str


@event("quiet")
class RequestFinished(Event):
    """the request is done after {generated} tokens"""

    generated: Count


@event("loss")
class CacheFlushed(Event):
    """The tree was emptied, or not, because requests were running."""

    done: bool

    @property
    def sentence(self) -> str:
        return "the tree is empty now" if self.done else "requests are running: nothing is flushed"
