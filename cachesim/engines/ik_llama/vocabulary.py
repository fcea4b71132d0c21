"""The events of ik_llama.cpp's server, one for each line of its log with numbers, and its causes.

Causes of lost reuse that it has in common with llama.cpp are declared there.
"""

from dataclasses import replace
from typing import Final

from cachesim.engines.causes import Cause, declared
from cachesim.engines.events import Event, event
from cachesim.engines.llamacpp.vocabulary import causes as parent_causes
from cachesim.engines.llamacpp.vocabulary import events as parent_events
from cachesim.engines.llamacpp.vocabulary.events import ERASED, CheckpointEvent, CheckpointSpared


@event("plain")
class SlotSelected(Event):
    """slot {slot} is chosen by {by}: similarity {similarity}, f_keep {f_keep}"""

    by: str
    similarity: float = 0.0
    f_keep: float = 0.0


@event("plain")
class TaskDeferred(Event):
    """no slot is free: the request waits"""


@event("gain")
class PromptSaved(Event):
    """slot {slot}'s {n_tokens} tokens are copied into the prompt cache, with {checkpoints}
    checkpoints"""

    n_tokens: int
    size: int
    checkpoints: int


@event("plain")
class PromptAlreadyCached(Event):
    __doc__ = parent_events.PromptAlreadyCached.template

    n_tokens: int


@event("loss")
class PromptLoaded(Event):
    """the prompt-cache entry ({n_tokens} tokens) is moved into slot {slot}; it leaves the cache"""

    entry: int
    n_tokens: int
    similarity: float


@event("loss")
class PromptLoadFailed(Event):
    """there is no room for the entry's {n_tokens} tokens: slot {slot} keeps its token list, and its
    memory is empty"""

    entry: int
    n_tokens: int


@event("loss")
class PromptEvicted(Event):
    """the prompt-cache entry ({n_tokens} tokens, {size} bytes) is evicted"""

    n_tokens: int
    size: int

    @property
    def for_bytes(self) -> bool:
        return True


@event("plain")
class PrefixMatched(Event):
    """{n_past_prompt} tokens of the prompt match (exact {exact}, by text {tolerant})"""

    exact: int
    tolerant: int
    n_past: int
    n_past_prompt: int


@event("gain")
class CheckpointCreated(CheckpointEvent):
    """checkpoint {n_tokens}[{pos_min}..{pos_max}] is saved"""

    size: int


@event("gain")
class CheckpointRestored(Event):
    """the checkpoint at positions {pos_min}..{pos_max} is restored ({n_past} tokens usable)"""

    pos_min: int
    pos_max: int
    n_past: int
    made_by: int  # the task that saved it


@event("loss")
class CheckpointRefused(Event):
    """the checkpoint at positions {pos_min}..{pos_max} is refused (threshold {thold})"""

    pos_min: int
    pos_max: int
    thold: int


@event("plain")
class CheckpointErased(Event):
    """A checkpoint is beyond the common prefix, or was evicted for a new one."""

    pos_max: int
    n_tokens: int
    because: str
    rule: str = ""
    numbers: str = ""

    @property
    def sentence(self) -> str:
        shown = f"checkpoint {self.n_tokens}[..{self.pos_max}]"
        if not self.rule:
            return f"{shown} is erased: {self.because}"
        return f"{shown} {ERASED.format(rule=self.rule, numbers=self.numbers)}"


@event()
class CheckpointKept(CheckpointSpared):
    shared: int
    rule: str
    numbers: str
    made_by: int  # the task that saved it


@event("loss")
class CheckpointReset(Event):
    """no checkpoint qualifies: the whole prompt is reprocessed (memory starts at {pos_min},
    threshold {thold})"""

    n_past: int
    pos_min: int
    thold: int


@event("quiet")
class SequenceTrimmed(Event):
    """what follows position {p0} is removed: primary {primary}, companion {companion}"""

    p0: int
    primary: bool
    companion: bool | None


@event("loss")
class FullReset(Event):
    """a cut at position {p0} is refused: everything in slot {slot} is cleared, on both contexts"""

    p0: int


@event("loss")
class CompanionReset(Event):
    """the companion cannot be cut at position {p0}: it alone is cleared"""

    p0: int


@event("loss")
class CompanionRefused(Event):
    """the companion does not decode at position {position}: drafting stops"""

    position: int
    tokens: int


@event("plain")
class DraftVerified(Event):
    """{accepted} of {drafted} drafted tokens are accepted"""

    drafted: int
    accepted: int
    companion_tail: int


@event("loss")
class ContextShifted(Event):
    __doc__ = parent_events.ContextShifted.template

    n_keep: int
    n_discard: int
    n_past: int
    removed: int  # of the slot's tokens: another number where a prompt is shorter than n_keep


@event("loss")
class MemoryCleared(Event):
    """the server is idle for the first time and empties its memory; slot {slot} still lists
    {n_tokens} tokens"""

    n_tokens: int


@event("plain")
class BatchRetried(Event):
    """no room: retried with at most {n_batch} tokens at once"""

    n_batch: int


@event("plain")
class SlotReleased(Event):
    """slot {slot} is released with {n_tokens} tokens"""

    n_tokens: int
    truncated: bool


@event("plain")
class SlotAction(Event):
    """slot {slot}: {action} {file}, {n_tokens} tokens"""

    action: str
    file: str
    n_tokens: int


SLOT_TOKENS: Final = parent_causes.SLOT_TOKENS
LIST_MOVED_OUT: Final = Cause(
    id="list-moved-out",
    sentence="searching the prompt cache emptied slot {slot}'s token list",
    about=(
        "Without reasoning tags the search moves every token list out to compare it, the slot's "
        "own too, and puts none back: the tokens are still in memory, but no longer listed."
    ),
)
CACHE_PROMPT_OFF: Final = parent_causes.CACHE_PROMPT_OFF
TEXT_MATCH: Final = Cause(
    id="text-match",
    sentence="compared as text, {exact} tokens of the prompt match exactly and {tolerant} loosely",
    about=(
        "The server compares text, not token ids: text that was tokenised differently still "
        "matches, and the loose comparison ignores white space."
    ),
)
CACHE_RAM_N_MIN: Final = Cause(
    id="cache-ram-n-min",
    sentence="{match} matching tokens are fewer than --cache-ram-n-min {n_min}",
    about="A short match is thrown away, with the slot's checkpoints.",
)
LAST_TOKEN: Final = parent_causes.LAST_TOKEN
MEMORY_DEPTH: Final = replace(
    parent_causes.MEMORY_DEPTH,
    about=(
        "A recurrent state is valid at one position and cannot be rewound. Only a checkpoint helps."
    ),
    fields=("threshold", "checkpoints"),
)
FULL_REPROCESSING: Final = replace(
    parent_causes.FULL_REPROCESSING,
    about="The state cannot be rewound, and no checkpoint qualifies.",
    fields=("threshold",),
)
CHECKPOINT_RESTORED: Final = parent_causes.CHECKPOINT_RESTORED
FULL_RESET: Final = Cause(
    id="full-reset",
    sentence=(
        "the {who} context cannot be cut at position {p0}, so both are cleared and the whole "
        "prompt is reprocessed"
    ),
    about="If one context refuses a trim, both are emptied: the reset site of #1860 and #1889.",
)
PROMPT_TRUNCATED: Final = Cause(
    id="prompt-truncated",
    sentence="the prompt is too long for the context: {dropped} tokens are dropped",
    about="With context shift on, whole blocks after `n_keep` are dropped until the prompt fits.",
)

CAUSES: Final = declared(globals())
