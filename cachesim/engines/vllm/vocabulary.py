"""Events of vLLM's scheduler and runner, and its causes of lost reuse, one for each branch.

Publication and writing are two events: a block has its id as soon as its chunk is scheduled, and
its content when the chunk has run.
"""

from typing import Final

from cachesim.engines.causes import Cause, declared, last_computed
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


CACHE_NOT_READ: Final = Cause(
    id="cache-not-read",
    sentence="the request does not read the prefix cache",
    about="Caching is off, or the request asks for something that needs every token computed.",
)
LAST_TOKEN: Final = last_computed(
    "A hit ends at the last token but one (`num_tokens - 1`), before it is cut to blocks."
)
WHOLE_BLOCKS: Final = Cause(
    id="whole-blocks",
    sentence="a hit is a multiple of {block} tokens",
    about=(
        "Only a full block has a hash; several groups agree only on multiples of the least "
        "common multiple of their block sizes. A smaller `prefix_match_unit` can help hybrid "
        "models."
    ),
    fields=("block",),
)
ATTENTION_EVICTED: Final = Cause(
    id="attention-evicted",
    sentence="attention's blocks after {found} of {wanted} tokens were evicted for other requests",
    about=(
        "A free block loses its hash when another request takes it; the block freed first is taken "
        "first."
    ),
    fields=("wanted", "found", "block"),
)
ATTENTION_MISSING: Final = Cause(
    id="attention-missing",
    sentence="attention's blocks after {found} of {wanted} tokens have no hash",
    about=(
        "A block gets its hash when it is full, and not all computed tokens fill one. A reset "
        "removes all hashes."
    ),
    fields=("wanted", "found", "block"),
)
WINDOW_EVICTED: Final = Cause(
    id="window-evicted",
    sentence=(
        "the window before {wanted} tokens is gone: its blocks were evicted; the nearest ends at "
        "{found}"
    ),
    about="A window needs its last blocks without a gap; they were freed early and evicted.",
    fields=("wanted", "found", "block"),
)
WINDOW_MISSING: Final = Cause(
    id="window-missing",
    sentence="no window ends at {wanted} tokens; the nearest complete one ends at {found}",
    about="Sparse retention keeps only the blocks before a few positions: prompt end and junction.",
    fields=("wanted", "found", "block"),
)
STATE_EVICTED: Final = Cause(
    id="state-evicted",
    sentence=(
        "the state after {wanted} tokens was evicted for other requests; the nearest is after "
        "{found}"
    ),
    about="A state is in one free block once its request has moved on; eviction removes all of it.",
    fields=("wanted", "found", "block"),
)
STATE_MISSING: Final = Cause(
    id="state-missing",
    sentence="no state is kept after {wanted} tokens; the nearest is after {found}",
    about=(
        "Only the end of a prefill chunk leaves a state, and sparse retention keeps those at the "
        "prompt's end and at junctions. The second request that shares a prefix saves one there. A "
        "reset removes all hashes."
    ),
    fields=("wanted", "found", "block"),
)
LOOK_AHEAD_BLOCK: Final = Cause(
    id="look-ahead-block",
    sentence="the drafter needs the last block's hidden states, so its {block} tokens are dropped",
    about="EAGLE and MTP heads read the target's hidden states, which no block keeps.",
    fields=("kind", "block"),
)
GRANTS_MORE: Final = Cause(
    id="grants-more",
    sentence="the {kind} group returns a hit of {answer} tokens, longer than requested",
    about=(
        "A recurrent group that looks one block ahead and drops nothing (#43559), or null blocks "
        "of chunked attention that count as present."
    ),
    fields=("kind", "block", "answer"),
)
GROUPS_DISAGREE: Final = Cause(
    id="groups-disagree",
    sentence="all groups together agree on less than each alone ({answers})",
    about="Each group may lower the candidate, and the others are asked again from there.",
    fields=("answers",),
)
STATE_FORGIVEN: Final = Cause(
    id="state-forgiven",
    sentence="no state was found, but attention's hit of {answer} tokens is used anyway",
    about=(
        "The defect of #43090, and of 0.24 beside a store that brings nothing (#48195): recurrent "
        "layers resume from whatever the new block holds."
    ),
    fields=("answer",),
)
FROM_STORE: Final = Cause(
    id="from-store",
    sentence="an external store promises {tokens} more tokens",
    about="A KV connector brings blocks that the pool does not have.",
    fields=("tokens",),
)

FROM_HOST: Final = Cause(
    id="from-host",
    sentence="the host has {tokens} more tokens, which are loaded",
    about="With `kv_offloading_size` the blocks of prompts are copied to the host, and loaded when"
    " the pool no longer has them.",
    fields=("tokens",),
)

LOAD_FAILED: Final = Cause(
    id="load-failed",
    sentence="the load from the store failed: {valid} tokens of the prompt are valid",
    about="Under `kv_load_failure_policy` recompute, tokens from the first failed block on count as"
    " not computed.",
    fields=("valid",),
)

CAUSES: Final = declared(globals())
