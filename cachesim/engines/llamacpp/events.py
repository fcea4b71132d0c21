"""Events of llama-server in the order of its log, with the numbers of the real lines."""

from dataclasses import dataclass
from typing import Final

from cachesim.engines.events import Event, Tone
from cachesim.model.adapters import Strengths


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChosenById(Event, tone="plain", says="slot {slot} is chosen: the request names it"):
    """The request named its slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChosenBySimilarity(
    Event,
    tone="plain",
    says=(
        "slot {slot} is chosen: it shares {similarity} of the prompt (more than "
        "{threshold}) and keeps {f_keep} of its tokens"
    ),
):
    """The slot shares the largest part of the prompt."""

    similarity: float
    threshold: float
    f_keep: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChosenByAge(Event, tone="plain", says="slot {slot} is chosen: used least recently"):
    """No slot was similar enough; this one was used least recently."""

    t_last_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeferred(Event, tone="plain", says="the request waits for a slot"):
    """The slot is busy, or all are: the task waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCleared(Event, tone="loss", says="slot {slot} is cleared of {n_tokens} tokens"):
    """A slot's memory was emptied."""

    n_tokens: int

    def loudness(self) -> Tone:
        return "loss" if self.n_tokens > 0 else "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPurged(
    Event, tone="loss", says="idle slot {slot} is emptied of {n_tokens} tokens to make room"
):
    """An idle slot was emptied because a unified cache is full."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLaunched(Event, tone="plain", says="the request starts in slot {slot}"):
    """A task got its slot."""

    is_child: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptStarted(
    Event,
    tone="quiet",
    says="slot {slot} starts on a prompt of {n_tokens} tokens (context {n_ctx_slot})",
):
    """A slot looks at its prompt for the first time."""

    n_ctx_slot: int
    n_keep: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReused(Event, tone="gain", says="{size} tokens move from position {source} to {target}"):
    """A moved part of the old prompt is kept under new positions."""

    size: int
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthTested(
    Event,
    tone="plain",
    says=(
        "memory starts at position {pos_min}, {n_past} tokens match: refused if {rule}, "
        "here {numbers}"
    ),
):
    """Does the memory reach back far enough? Not where `pos_min >= threshold`."""

    n_past: int
    slot_tokens: int
    pos_min: int
    threshold: int
    n_swa: int
    rule: str
    numbers: str

    def loudness(self) -> Tone:
        return "loss" if self.pos_min >= self.threshold else "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class FullReprocessing(
    Event, tone="loss", says="no saved state is usable: the whole prompt is reprocessed"
):
    """Full re-processing: the prompt is processed from its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTokenNeeded(
    Event, tone="plain", says="all {n_tokens} tokens are there; the last one is reprocessed"
):
    """Re-processing of the last token for its logits where the whole prompt is cached."""

    n_past: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCut(Event):
    """The slot keeps its first tokens; the rest of the memory is removed."""

    n_tokens: int
    p0: int
    removed: bool

    def loudness(self) -> Tone:
        return "quiet" if self.removed else "loss"

    @property
    def sentence(self) -> str:
        if not self.removed:
            return f"memory cannot be cut at position {self.p0}"
        s = "s"[: self.n_tokens != 1]
        return f"slot {self.slot} keeps {self.n_tokens} token{s}; what follows is removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShifted(
    Event,
    tone="loss",
    says="the context is full: {n_discard} tokens after the first {n_keep} are discarded",
):
    """The middle of a full context was thrown away."""

    n_keep: int
    n_left: int
    n_discard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecoded(Event, tone="quiet", says="the network processes {n_tokens} tokens"):
    """A piece of the batch went through the network."""

    n_tokens: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRetried(
    Event,
    tone="plain",
    says="no room (decode returns {ret}): retried with at most {n_batch} tokens at once",
):
    """There was no room: the piece is tried again, after a purge or in half."""

    offset: int
    n_batch: int
    ret: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentCopied(
    Event, tone="gain", says="slot {slot} takes over slot {parent}'s {n_tokens} tokens"
):
    """A child got a copy of its parent's state."""

    parent: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVerified(
    Event,
    tone="plain",
    says="{accepted} of {drafted} drafted tokens are accepted; rolled back by: {rolled_back}",
):
    """Drafted tokens were checked against the target."""

    drafted: int
    accepted: int
    rolled_back: str  # "nothing", "cut", "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMade(
    Event, tone="plain", says="the companion drafts {n_tokens} tokens (at most {most})"
):
    """The companion proposed tokens."""

    n_tokens: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionFailed(
    Event, tone="loss", says="the companion cannot follow (decode returns {ret})"
):
    """The companion could not follow the batch."""

    ret: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReleased(
    Event, tone="plain", says="slot {slot} is released with {n_tokens} tokens ({stop})"
):
    """A request left its slot."""

    n_tokens: int
    truncated: bool
    stop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused(Event, tone="loss", says="the server answers {error}"):
    """The server answers with an error."""

    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSaved(
    Event, tone="gain", says="slot {slot} is saved to {file}: {n_tokens} tokens, {n_bytes} bytes"
):
    """A slot's tokens and state were written to a file."""

    file: str
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRestored(
    Event,
    tone="gain",
    says="slot {slot} is restored from {file}: {n_tokens} tokens, {n_bytes} bytes",
):
    """A slot took tokens and state from a file."""

    file: str
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotErased(Event, tone="loss", says="slot {slot} is erased: {n_tokens} tokens"):
    """A slot was emptied on request."""

    n_tokens: int


ERASED: Final = "is erased. Rule: erase if {rule}. Here {numbers} is true"
"""Sentence for a checkpoint that is erased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvent(Event):
    """Something befalls a checkpoint; these are its numbers."""

    pos_min: int
    pos_max: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpared(
    CheckpointEvent,
    tone="warn",
    says=(
        "checkpoint {n_tokens}[{pos_min}..{pos_max}] stays, though only {shared} of its "
        "tokens match. Rule: erase if {rule}. Here {numbers} is false"
    ),
):
    """A checkpoint passed the erasure, yet holds more than what the new prompt shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointChecked(CheckpointEvent):
    """A checkpoint in the search; `refused` names the test it failed, or is empty."""

    threshold: int
    pos_next: int
    refused: str
    numbers: str

    def loudness(self) -> Tone:
        return "loss" if self.refused else "plain"

    @property
    def sentence(self) -> str:
        shown = f"checkpoint {self.n_tokens}[{self.pos_min}..{self.pos_max}]"
        if not self.refused:
            return f"{shown} qualifies"
        return f"{shown} is refused if {self.refused}; here {self.numbers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRestored(
    CheckpointEvent,
    tone="gain",
    says="checkpoint {n_tokens}[{pos_min}..{pos_max}] is restored ({n_past} tokens usable)",
):
    """The memory went back to a saved state."""

    n_past: int
    size: int
    made_by: int  # the task that saved it


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointErased(
    CheckpointEvent,
    tone="plain",
    says=f"checkpoint {{n_tokens}}[{{pos_min}}..{{pos_max}}] {ERASED}",
):
    """A checkpoint that does not fit the new prompt goes."""

    n_swa: int
    pos_next: int
    size: int
    rule: str
    numbers: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept(CheckpointSpared):
    """The rule of this release kept it."""

    pos_next: int
    shared: int
    rule: str
    numbers: str
    made_by: int  # the task that saved it


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCut(
    CheckpointEvent,
    tone="warn",
    says=(
        "checkpoint {n_tokens}[{pos_min}..{pos_max}] is relabelled "
        "{cut_tokens}[{cut_min}..{cut_max}]; the state that it saved is not cut"
    ),
):
    """A checkpoint beyond the new prompt's prefix gets smaller numbers, and keeps its state."""

    cut_min: int
    cut_max: int
    cut_tokens: int
    pos_next: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDropped(
    Event, tone="loss", says="checkpoint {n_tokens}[{pos_min}..{pos_max}] is dropped ({reason})"
):
    """A checkpoint goes because the list is full, another is close, or equal."""

    reason: str  # "full", "too-close", "superseded"
    pos_min: int
    pos_max: int
    n_tokens: int
    size: int

    def loudness(self) -> Tone:
        return "plain" if self.reason == "superseded" else "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCreated(
    Event,
    tone="gain",
    says="checkpoint {n_tokens}[{pos_min}..{pos_max}] is saved, {index} of at most {most}",
):
    """A state was saved along the prompt."""

    index: int
    most: int
    pos_min: int
    pos_max: int
    n_tokens: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCacheUpdateBegun(
    Event, tone="quiet", says="slot {slot}'s prompt is swapped with the prompt cache"
):
    """The slot's prompt is about to be swapped with the prompt cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSaving(
    Event, tone="gain", says="slot {slot}'s {n_tokens} tokens are saved to the prompt cache"
):
    """A slot's prompt goes into the prompt cache."""

    n_tokens: int
    size: int
    size_companion: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAlreadyCached(
    Event, tone="plain", says="the prompt cache already has all {n_tokens} tokens: nothing is saved"
):
    """The prompt cache holds this prompt or a longer one."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryObsolete(
    Event,
    tone="plain",
    says="the parked {n_tokens} tokens are a prefix of the prompt that is saved, and are erased",
):
    """A cached prompt is a prefix of the one being saved and goes."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryTooLarge(
    Event,
    tone="loss",
    says="the prompt needs {size} bytes, and the prompt cache may hold {limit}: not saved",
):
    """The prompt alone is larger than the cache."""

    size: int
    limit: int

    @property
    def for_bytes(self) -> bool:
        """`--cache-ram` decided it."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryDropped(
    Event, tone="loss", says="the parked {n_tokens} tokens are evicted ({reason})"
):
    """The oldest entry makes room for a new one, or a limit was reached."""

    reason: str  # "room", "size", "tokens"
    n_tokens: int
    size: int
    limit: int

    @property
    def for_bytes(self) -> bool:
        """`--cache-ram` decided it, and not the limit in tokens."""
        return self.reason != "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSearchBegun(
    Event,
    tone="plain",
    says="the prompt cache is searched: an entry must beat keep {f_keep} and similarity {f_sim}",
):
    """Looking for a better prompt than the slot's own."""

    f_keep: float | None
    f_sim: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntryCompared(
    Event,
    tone="plain",
    says=(
        "a parked conversation of {n_tokens} tokens shares {lcp}: keep {f_keep}, similarity {f_sim}"
    ),
):
    """An entry in the search."""

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
    shared: int  # with the prompt that it is loaded for

    def loudness(self) -> Tone:
        return "gain" if self.kept else "loss"

    @property
    def sentence(self) -> str:
        stays = "stays in the prompt cache" if self.kept else "leaves the prompt cache"
        return (
            f"the parked {self.n_tokens} tokens are loaded into slot {self.slot}; the entry {stays}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLoadFailed(
    Event,
    tone="loss",
    says="the parked state of the {part} does not load ({size} bytes): slot {slot} is cleared",
):
    """An entry's state did not load; the slot is cleared."""

    part: str  # "target" or "companion"
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState(
    Event, tone="quiet", says="the prompt cache holds {entries} conversations, {size} bytes"
):
    """The content of the prompt cache after an update."""

    entries: int
    size: int
    limit_size: int
    limit_tokens: int
    estimate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSlotSaved(Event, tone="gain", says="idle slot {slot} is copied to the prompt cache"):
    """A slot without a task was copied to the prompt cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersChanged(
    Event,
    tone="loss",
    says="slot {slot} is emptied of {n_tokens} tokens: the request brings adapters of its own",
):
    """A request's own set of adapters is not the slot's."""

    n_tokens: int
    lora: Strengths


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersSet(
    Event, tone="plain", says="the strengths of the server's own adapters are changed"
):
    """The server's own set of adapters was replaced."""

    lora: Strengths


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRestarted(
    Event,
    tone="loss",
    says="the server is started again: slots and prompt cache are empty, slot files stay",
):
    """The process ended and another one was started with the same flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSlept(
    Event,
    tone="loss",
    says="the idle server sleeps: slots and prompt cache are empty when it wakes",
):
    """Sleep of the server after `--sleep-idle-seconds` without a request."""
