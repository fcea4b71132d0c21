"""Events of SGLang's scheduler and tree, and its causes of lost reuse, one for each branch."""

from typing import Final

from cachesim.engines.causes import NO_STATE, Cause, declared, last_computed
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


LAST_TOKEN: Final = last_computed("A match is limited to the prompt's length minus one.")
PAIRS: Final = Cause(
    id="pairs-of-tokens",
    sentence="keys are pairs of tokens: {tokens} tokens have {pairs}",
    about=(
        "With EAGLE the key of a position is its token and the next one, because the drafter was "
        "fed with both; a match ends one token earlier."
    ),
)
IMAGE_IDS: Final = Cause(
    id="ids-of-all-images",
    sentence="an image's ids come from all images of its request, and are equal up to {found}",
    about=(
        "A key has ids of a hash for the tokens of images; before #21899 it was one hash of all "
        "images of the request, and another image changed the ids of the first."
    ),
)
WHOLE_PAGES: Final = Cause(
    id="whole-pages",
    sentence="a match is a multiple of {page} tokens",
    about="Keys are compared page by page (`--page-size`).",
)
NOT_KEPT: Final = Cause(
    id="not-kept",
    sentence="tokens computed after the first {kept} were never inserted into the tree",
    about=(
        "With `extra_buffer` a finished request keeps its tokens up to its last saved state and "
        "frees the rest; a request that was retracted or aborted keeps nothing. With "
        "`strip_thinking_cache` a reply with reasoning is freed, its answer too."
    ),
)
ATTENTION_EVICTED: Final = Cause(
    id="attention-evicted",
    sentence="the tree once had more than {found} of these tokens; they were evicted",
    about=(
        "When memory is short, leaves that no request holds are evicted, least recently used first."
    ),
    fields=("wanted",),
)
WINDOW_GONE: Final = Cause(
    id="window-gone",
    sentence=(
        "the window layers' last {window} tokens before {wanted} are incomplete; "
        "they are complete before {found}"
    ),
    about=(
        "A node keeps attention's slots when its window part is freed; a match may end only where "
        "the whole window before it is still there."
    ),
)
STATE_EVICTED: Final = Cause(
    id="state-evicted",
    sentence=(
        "the state that was saved after {saved} tokens was evicted; the nearest is after {found}"
    ),
    about=(
        "States have their own slots and their own least-recently-used list: an inner node can "
        "lose its state and keep attention's slots (a tombstone)."
    ),
    fields=("wanted",),
)
STATE_MISSING: Final = Cause(
    id="state-missing",
    sentence=NO_STATE,
    about=(
        "`no_buffer` saves states where chunks and requests end, `extra_buffer` at the last "
        "multiple of the grid, every `mamba_track_interval` generated tokens, and where attention "
        "alone could have resumed."
    ),
)
NOT_LOADED: Final = Cause(
    id="not-loaded-back",
    sentence="the match ends on the host, after {wanted} tokens; the device has {found} of them",
    about=(
        "Fewer than ten tokens of attention are recomputed instead of being loaded back, and "
        "nothing is loaded where the device has no room for all of it."
    ),
)
NOT_FETCHED: Final = Cause(
    id="not-fetched",
    sentence=("the storage has {stored} of these tokens; the tree, with fetched ones, has {found}"),
    about=(
        "A prefetch starts when a request arrives, for what the tree lacks at that time. There is "
        "none for fewer tokens than `prefetch_threshold`, none while prefetches hold their share "
        "of the host, and none below a node that has not been copied to the host. With "
        "`best_effort` a request does not wait for it. In 0.5.9 what arrives is attached to the "
        "node where the match ended: at the root, a request with its own key does not find it; "
        "with EAGLE the prefetch uses different keys. In 0.5.22 and 0.5.23 a hit is known one pass "
        "after the request arrived, and its tokens arrive in the next one; with windows or states "
        "all of them arrive, or none."
    ),
)
CAUSES: Final = declared(globals())
