"""Events of ik_llama.cpp's server: one for each line of its log that carries numbers."""

from dataclasses import dataclass

from cachesim.engines.events import Event
from cachesim.engines.llamacpp import events as parent
from cachesim.engines.llamacpp.events import ERASED, CheckpointEvent, CheckpointSpared


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSelected(
    Event,
    tone="plain",
    says="slot {slot} is chosen by {by}: similarity {similarity}, f_keep {f_keep}",
):
    """A slot was chosen: by its id, by similarity, or because it was idle longest."""

    by: str
    similarity: float = 0.0
    f_keep: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeferred(Event, tone="plain", says="no slot is free: the request waits"):
    """No slot was free; the task waits until one is released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSaved(
    Event,
    tone="gain",
    says=(
        "slot {slot}'s {n_tokens} tokens are copied into the prompt cache, with "
        "{checkpoints} checkpoints"
    ),
):
    """The slot's conversation was copied into the RAM prompt cache."""

    n_tokens: int
    size: int
    checkpoints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAlreadyCached(Event, tone="plain", says=parent.PromptAlreadyCached.says):
    """A save that is skipped: an entry holds all of the tokens."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLoaded(
    Event,
    tone="loss",
    says=(
        "the parked {n_tokens} tokens are moved into slot {slot}; the entry leaves the prompt cache"
    ),
):
    """An entry was moved into the slot; the entry is gone from the cache."""

    entry: int
    n_tokens: int
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLoadFailed(
    Event,
    tone="loss",
    says=(
        "there is no room for the parked {n_tokens} tokens: slot {slot} keeps its token list, and "
        "its memory is empty"
    ),
):
    """The entry's state found no room; the slot keeps its token list over an empty memory."""

    entry: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEvicted(
    Event, tone="loss", says="the parked {n_tokens} tokens ({size} bytes) are evicted"
):
    """The oldest entry was dropped for its size."""

    n_tokens: int
    size: int

    @property
    def for_bytes(self) -> bool:
        """`--cache-ram` decided it."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatched(
    Event,
    tone="plain",
    says="{n_past_prompt} tokens of the prompt match (exact {exact}, by text {tolerant})",
):
    """The slot's tokens and the prompt were compared."""

    exact: int
    tolerant: int
    n_past: int
    n_past_prompt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCreated(
    CheckpointEvent, tone="gain", says="checkpoint {n_tokens}[{pos_min}..{pos_max}] is saved"
):
    """A state was saved."""

    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRestored(
    Event,
    tone="gain",
    says=("the checkpoint at positions {pos_min}..{pos_max} is restored ({n_past} tokens usable)"),
):
    """The sequence went back to a saved state."""

    pos_min: int
    pos_max: int
    n_past: int
    made_by: int  # the task that saved it


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRefused(
    Event,
    tone="loss",
    says=("the checkpoint at positions {pos_min}..{pos_max} is refused (threshold {thold})"),
):
    """A checkpoint was looked at and does not qualify."""

    pos_min: int
    pos_max: int
    thold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointErased(Event, tone="plain"):
    """A checkpoint lies beyond what is shared, or gave way to a new one."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointKept(CheckpointSpared):
    """The threshold kept it."""

    shared: int
    rule: str
    numbers: str
    made_by: int  # the task that saved it


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReset(
    Event,
    tone="loss",
    says=(
        "no checkpoint qualifies: the whole prompt is reprocessed (memory starts at "
        "{pos_min}, threshold {thold})"
    ),
):
    """No checkpoint serves: the prompt is read from its start."""

    n_past: int
    pos_min: int
    thold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTrimmed(
    Event,
    tone="quiet",
    says=("what follows position {p0} is removed: primary {primary}, companion {companion}"),
):
    """Positions from p0 on were removed before a pass over the prompt."""

    p0: int
    primary: bool
    companion: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FullReset(
    Event,
    tone="loss",
    says=(
        "a cut at position {p0} is refused: everything in slot {slot} is cleared, on both contexts"
    ),
):
    """A trim was refused: the whole sequence goes, on both contexts."""

    p0: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionReset(
    Event, tone="loss", says="the companion cannot be cut at position {p0}: it alone is cleared"
):
    """Only the companion was emptied; the primary keeps its prefix."""

    p0: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionRefused(
    Event, tone="loss", says="the companion does not decode at position {position}: drafting stops"
):
    """The companion would not decode: drafting stays off until it starts from position 0."""

    position: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVerified(
    Event, tone="plain", says="{accepted} of {drafted} drafted tokens are accepted"
):
    """A speculative step."""

    drafted: int
    accepted: int
    companion_tail: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShifted(Event, tone="loss", says=parent.ContextShifted.says):
    """Old positions were dropped and the rest moved down."""

    n_keep: int
    n_discard: int
    n_past: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRetried(
    Event, tone="plain", says="no room: retried with at most {n_batch} tokens at once"
):
    """No room: the same tokens are tried in smaller pieces."""

    n_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReleased(Event, tone="plain", says="slot {slot} is released with {n_tokens} tokens"):
    """The slot is idle again."""

    n_tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAction(Event, tone="plain", says="slot {slot}: {action} {file}, {n_tokens} tokens"):
    """A slot was saved, restored or erased."""

    action: str
    file: str
    n_tokens: int
