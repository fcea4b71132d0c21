"""What happens in an ik_llama.cpp server, one value per line of its log that carries numbers."""

from dataclasses import dataclass

from cachesim.engines.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSelected(Event):
    """A slot was chosen: by its id, by similarity, or because it was idle longest."""

    by: str
    similarity: float = 0.0
    f_keep: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDeferred(Event):
    """No slot was free; the task waits until one is released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSaved(Event):
    """The slot's conversation was copied into the RAM prompt cache."""

    n_tokens: int
    size: int
    checkpoints: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAlreadyCached(Event):
    """Nothing was saved: an entry holds all of it."""

    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLoaded(Event):
    """An entry was moved into the slot; the entry is gone from the cache."""

    entry: int
    n_tokens: int
    similarity: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLoadFailed(Event):
    """The entry's state found no room; the slot keeps its token list over an empty memory."""

    entry: int
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEvicted(Event):
    """The oldest entry was dropped for its size."""

    n_tokens: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMatched(Event):
    """The slot's tokens and the prompt were compared."""

    exact: int
    tolerant: int
    n_past: int
    n_past_prompt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCreated(Event):
    """A state was saved."""

    pos_min: int
    pos_max: int
    n_tokens: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRestored(Event):
    """The sequence went back to a saved state."""

    pos_min: int
    pos_max: int
    n_past: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRefused(Event):
    """A checkpoint was looked at and does not qualify."""

    pos_min: int
    pos_max: int
    thold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointErased(Event):
    """A checkpoint lies beyond what is shared, or gave way to a new one."""

    pos_max: int
    n_tokens: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReset(Event):
    """No checkpoint serves: the prompt is read from its start."""

    n_past: int
    pos_min: int
    thold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTrimmed(Event):
    """Positions from p0 on were removed before a pass over the prompt."""

    p0: int
    primary: bool
    companion: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FullReset(Event):
    """A trim was refused: the whole sequence goes, on both contexts."""

    p0: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionReset(Event):
    """Only the companion was emptied; the primary keeps its prefix."""

    p0: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionRefused(Event):
    """The companion would not decode: drafting stays off until it starts from position 0."""

    position: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVerified(Event):
    """One speculative step."""

    drafted: int
    accepted: int
    companion_tail: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShifted(Event):
    """Old positions were dropped and the rest moved down."""

    n_keep: int
    n_discard: int
    n_past: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRetried(Event):
    """No room: the same tokens are tried in smaller pieces."""

    n_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReleased(Event):
    """The slot is idle again."""

    n_tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAction(Event):
    """A slot was saved, restored or erased."""

    action: str
    file: str
    n_tokens: int
