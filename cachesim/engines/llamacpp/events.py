"""What llama-server's log tells, station by station, with the numbers that the real lines show."""

from dataclasses import dataclass

from cachesim.engines.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChosenById(Event):
    """The request named its slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChosenBySimilarity(Event):
    """The slot shares the largest part of the prompt."""

    similarity: float
    threshold: float
    f_keep: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChosenByAge(Event):
    """No slot was similar enough; this one was used least recently."""

    t_last_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeferred(Event):
    """The slot is busy, or all are: the task waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheUpdateBegun(Event):
    """The slot's prompt is about to be swapped with the prompt cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSaving(Event):
    """A slot's prompt goes into the prompt cache."""

    n_tokens: int
    size: int
    size_companion: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAlreadyCached(Event):
    """The prompt cache holds this prompt or a longer one."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryObsolete(Event):
    """A cached prompt is a prefix of the one being saved and goes."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryTooLarge(Event):
    """The prompt alone is larger than the cache."""

    size: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryDropped(Event):
    """The oldest entry makes room for a new one, or a limit was reached."""

    reason: str  # "room", "size", "tokens"
    n_tokens: int
    size: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSearchBegun(Event):
    """Looking for a better prompt than the slot's own."""

    f_keep: float | None
    f_sim: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryCompared(Event):
    """One entry in the search."""

    n_tokens: int
    lcp: int
    f_keep: float | None
    f_sim: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryLoaded(Event):
    """A better prompt was found and is now the slot's."""

    n_tokens: int
    checkpoints: int
    kept: bool  # the entry stays in the cache (#24143)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLoadFailed(Event):
    """An entry's state did not load; the slot is cleared."""

    part: str  # "target" or "companion"
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState(Event):
    """What the prompt cache holds after an update."""

    entries: int
    size: int
    limit_size: int
    limit_tokens: int
    estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCleared(Event):
    """A slot's memory was emptied."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSlotSaved(Event):
    """A slot without a task was copied to the prompt cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPurged(Event):
    """An idle slot was emptied because a unified cache is full."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLaunched(Event):
    """A task got its slot."""

    is_child: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptStarted(Event):
    """A slot looks at its prompt for the first time."""

    n_ctx_slot: int
    n_keep: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReused(Event):
    """A moved part of the old prompt is kept under new positions."""

    size: int
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthTested(Event):
    """Does the memory reach back far enough? Not where `pos_min >= threshold`."""

    n_past: int
    slot_tokens: int
    pos_min: int
    threshold: int
    n_swa: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChecked(Event):
    """One checkpoint in the search; `refused` names the test it failed, or is empty."""

    pos_min: int
    pos_max: int
    n_tokens: int
    threshold: int
    pos_next: int
    refused: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRestored(Event):
    """The memory went back to a saved state."""

    pos_min: int
    pos_max: int
    n_tokens: int
    n_past: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FullReprocessing(Event):
    """Nothing usable was found: the whole prompt is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointErased(Event):
    """A checkpoint that does not fit the new prompt goes."""

    pos_min: int
    pos_max: int
    n_tokens: int
    n_swa: int
    pos_next: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept(Event):
    """A checkpoint passed the erasure, yet holds more than what the new prompt shares."""

    pos_min: int
    pos_max: int
    n_tokens: int
    pos_next: int
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDropped(Event):
    """A checkpoint goes because the list is full, another is close, or equal."""

    reason: str  # "full", "too-close", "superseded"
    pos_min: int
    pos_max: int
    n_tokens: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCreated(Event):
    """A state was saved along the prompt."""

    index: int
    most: int
    pos_min: int
    pos_max: int
    n_tokens: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTokenNeeded(Event):
    """Everything is cached; the last token is read again for its logits."""

    n_past: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCut(Event):
    """The slot keeps its first tokens; the rest of the memory is removed."""

    n_tokens: int
    p0: int
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShifted(Event):
    """The middle of a full context was thrown away."""

    n_keep: int
    n_left: int
    n_discard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecoded(Event):
    """A piece of the batch went through the network."""

    n_tokens: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRetried(Event):
    """There was no room: the piece is tried again, after a purge or in half."""

    offset: int
    n_batch: int
    ret: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentCopied(Event):
    """A child got a copy of its parent's state."""

    parent: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVerified(Event):
    """Drafted tokens were checked against the target."""

    drafted: int
    accepted: int
    rolled_back: str  # "nothing", "cut", "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMade(Event):
    """The companion proposed tokens."""

    n_tokens: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionFailed(Event):
    """The companion could not follow the batch."""

    ret: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReleased(Event):
    """A request left its slot."""

    n_tokens: int
    truncated: bool
    stop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused(Event):
    """The server answers with an error."""

    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSaved(Event):
    """A slot's tokens and state were written to a file."""

    file: str
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRestored(Event):
    """A slot took tokens and state from a file."""

    file: str
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotErased(Event):
    """A slot was emptied on request."""

    n_tokens: int
