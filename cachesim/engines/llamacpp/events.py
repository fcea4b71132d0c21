"""What llama-server's log tells, station by station, with the numbers that the real lines show."""

from dataclasses import dataclass

from cachesim.engines.events import Event, Tone


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
    Event,
    tone="loss",
    says="idle slot {slot} is emptied of {n_tokens} tokens to make room",
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
    Event,
    tone="loss",
    says="no saved state is usable: the whole prompt is reprocessed",
):
    """Nothing usable was found: the whole prompt is processed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTokenNeeded(
    Event,
    tone="plain",
    says="all {n_tokens} tokens are there; the last one is reprocessed",
):
    """Everything is cached; the last token is processed again for its logits."""

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
    Event,
    tone="gain",
    says="slot {slot} takes over slot {parent}'s {n_tokens} tokens",
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
    Event,
    tone="plain",
    says="the companion drafts {n_tokens} tokens (at most {most})",
):
    """The companion proposed tokens."""

    n_tokens: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionFailed(
    Event,
    tone="loss",
    says="the companion cannot follow (decode returns {ret})",
):
    """The companion could not follow the batch."""

    ret: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReleased(
    Event,
    tone="plain",
    says="slot {slot} is released with {n_tokens} tokens ({stop})",
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
    Event,
    tone="gain",
    says="slot {slot} is saved to {file}: {n_tokens} tokens, {n_bytes} bytes",
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
