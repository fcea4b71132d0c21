"""Events of llama-server in the order of its log, with the numbers of the real lines."""

from typing import Final

from cachesim.engines.events import Event, Tone, event
from cachesim.engines.words import filled, of_one
from cachesim.model.adapters import Strengths


@event("plain")
class SlotChosenById(Event):
    """slot {slot} is chosen: the request names it"""


@event("plain")
class SlotChosenBySimilarity(Event):
    """slot {slot} is chosen by LCP similarity {similarity} (threshold {threshold});
    f_keep {f_keep}"""

    similarity: float
    threshold: float
    f_keep: float


@event("plain")
class SlotChosenByAge(Event):
    """slot {slot} is chosen: used least recently"""

    t_last_used: int


@event("plain")
class TaskDeferred(Event):
    """the request waits for a slot"""


@event("loss")
class PromptCleared(Event):
    """slot {slot} is cleared of {n_tokens} tokens"""

    n_tokens: int

    def loudness(self) -> Tone:
        return "loss" if self.n_tokens > 0 else "quiet"


@event("loss")
class SlotPurged(Event):
    """idle slot {slot} is emptied of {n_tokens} tokens to make room"""

    n_tokens: int


@event("plain")
class TaskLaunched(Event):
    """the request starts in slot {slot}"""

    is_child: bool


@event("quiet")
class PromptStarted(Event):
    """slot {slot} starts on a prompt of {n_tokens} tokens (context {n_ctx_slot})"""

    n_ctx_slot: int
    n_keep: int
    n_tokens: int


@event("gain")
class ChunkReused(Event):
    """{size} tokens move from position {source} to {target}"""

    size: int
    source: int
    target: int


@event("plain")
class DepthTested(Event):
    """The position at which memory starts, compared with the threshold."""

    n_past: int
    slot_tokens: int
    pos_min: int
    threshold: int
    n_swa: int
    rule: str
    numbers: str

    def loudness(self) -> Tone:
        return "loss" if self.pos_min >= self.threshold else "plain"

    @property
    def sentence(self) -> str:
        refused = "true" if self.pos_min >= self.threshold else "false"
        return of_one(
            f"memory starts at position {self.pos_min}, {self.n_past} tokens match. "
            f"Rule: refuse if {self.rule}. Here {self.numbers} is {refused}"
        )


@event("loss")
class FullReprocessing(Event):
    """no saved state is usable: the whole prompt is reprocessed"""


@event("plain")
class OneTokenNeeded(Event):
    """all {n_tokens} tokens match; the last one is reprocessed"""

    n_past: int
    n_tokens: int


@event()
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


@event("loss")
class ContextShifted(Event):
    """the context is full: {n_discard} tokens after the first {n_keep} are discarded"""

    n_keep: int
    n_left: int
    n_discard: int


@event("quiet")
class BatchDecoded(Event):
    """the network processes {n_tokens} tokens"""

    n_tokens: int
    slots: tuple[int, ...]


@event("plain")
class BatchRetried(Event):
    """no room (decode returns {ret}): retried with at most {n_batch} tokens at once"""

    offset: int
    n_batch: int
    ret: int


@event("gain")
class ParentCopied(Event):
    """slot {slot} takes over slot {parent}'s {n_tokens} tokens"""

    parent: int
    n_tokens: int


@event("plain")
class DraftVerified(Event):
    """{accepted} of {drafted} drafted tokens are accepted; rolled back by: {rolled_back}"""

    drafted: int
    accepted: int
    rolled_back: str  # "nothing", "cut", "checkpoint"


@event("plain")
class DraftMade(Event):
    """the companion drafts {n_tokens} tokens (at most {most})"""

    n_tokens: int
    most: int


@event("loss")
class CompanionFailed(Event):
    """the companion cannot follow (decode returns {ret})"""

    ret: int


@event("plain")
class SlotReleased(Event):
    """slot {slot} is released with {n_tokens} tokens ({stop})"""

    n_tokens: int
    truncated: bool
    stop: str


@event("loss")
class RequestRefused(Event):
    """the server answers {error}"""

    error: str
    message: str


@event("gain")
class SlotSaved(Event):
    """slot {slot} is saved to {file}: {n_tokens} tokens, {n_bytes} bytes"""

    file: str
    n_tokens: int
    n_bytes: int


@event("gain")
class SlotRestored(Event):
    """slot {slot} is restored from {file}: {n_tokens} tokens, {n_bytes} bytes"""

    file: str
    n_tokens: int
    n_bytes: int


@event("loss")
class SlotErased(Event):
    """slot {slot} is erased: {n_tokens} tokens"""

    n_tokens: int


ERASED: Final = "is erased. Rule: erase if {rule}. Here {numbers} is true"
"""Sentence for a checkpoint that is erased."""


@event()
class CheckpointEvent(Event):
    """An event of a checkpoint, with its numbers."""

    pos_min: int
    pos_max: int
    n_tokens: int


@event("warn")
class CheckpointSpared(CheckpointEvent):
    """checkpoint {n_tokens}[{pos_min}..{pos_max}] stays, though only {shared} of its tokens match.
    Rule: erase if {rule}. Here {numbers} is false"""


@event()
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


@event("gain")
class CheckpointRestored(CheckpointEvent):
    """checkpoint {n_tokens}[{pos_min}..{pos_max}] is restored ({n_past} tokens usable)"""

    n_past: int
    size: int
    made_by: int  # the task that saved it


@event("plain")
class CheckpointErased(CheckpointEvent):
    __doc__ = f"checkpoint {{n_tokens}}[{{pos_min}}..{{pos_max}}] {ERASED}"

    n_swa: int
    pos_next: int
    size: int
    rule: str
    numbers: str


@event()
class CheckpointKept(CheckpointSpared):
    pos_next: int
    shared: int
    rule: str
    numbers: str
    made_by: int  # the task that saved it


@event("warn")
class CheckpointCut(CheckpointEvent):
    """checkpoint {n_tokens}[{pos_min}..{pos_max}] is relabelled {cut_tokens}[{cut_min}..{cut_max}];
    the state that it saved is not cut"""

    cut_min: int
    cut_max: int
    cut_tokens: int
    pos_next: int


@event("loss")
class CheckpointDropped(Event):
    """checkpoint {n_tokens}[{pos_min}..{pos_max}] is dropped ({reason})"""

    reason: str  # "full", "too-close", "superseded"
    pos_min: int
    pos_max: int
    n_tokens: int
    size: int

    def loudness(self) -> Tone:
        return "plain" if self.reason == "superseded" else "loss"


@event("gain")
class CheckpointCreated(Event):
    """checkpoint {n_tokens}[{pos_min}..{pos_max}] is saved, {index} of at most {most}"""

    index: int
    most: int
    pos_min: int
    pos_max: int
    n_tokens: int
    size: int


@event("quiet")
class PromptCacheUpdateBegun(Event):
    """slot {slot}'s prompt is swapped with the prompt cache"""


@event("gain")
class PromptSaving(Event):
    """slot {slot}'s {n_tokens} tokens are saved to the prompt cache"""

    n_tokens: int
    size: int
    size_companion: int


@event("plain")
class PromptAlreadyCached(Event):
    """the prompt cache already has all {n_tokens} tokens: nothing is saved"""

    n_tokens: int


@event("plain")
class CacheEntryObsolete(Event):
    """the prompt-cache entry ({n_tokens} tokens) is a prefix of the saved prompt: erased"""

    n_tokens: int


@event("loss")
class CacheEntryTooLarge(Event):
    """the prompt needs {size} bytes, and the prompt cache may hold {limit}: not saved"""

    size: int
    limit: int

    @property
    def for_bytes(self) -> bool:
        return True


@event("loss")
class CacheEntryDropped(Event):
    """the prompt-cache entry ({n_tokens} tokens) is evicted ({reason})"""

    reason: str  # "room", "size", "tokens"
    n_tokens: int
    size: int
    limit: int

    @property
    def for_bytes(self) -> bool:
        """True if `--cache-ram` caused it, not the limit in tokens."""
        return self.reason != "tokens"


@event("plain")
class CacheSearchBegun(Event):
    """the prompt cache is searched: an entry must exceed f_keep {f_keep} and similarity {f_sim}"""

    f_keep: float | None
    f_sim: float | None


@event("plain")
class CacheEntryCompared(Event):
    """An entry in the search."""

    n_tokens: int
    lcp: int
    f_keep: float | None
    f_sim: float | None

    @property
    def sentence(self) -> str:
        shares = "no common prefix"
        if self.lcp:
            shares = "{lcp} tokens in common, keep {f_keep}, similarity {f_sim}"
        return filled(f"prompt-cache entry ({{n_tokens}} tokens): {shares}", self.as_dict())


@event()
class CacheEntryLoaded(Event):
    """A better prompt was found in the cache and loaded into the slot."""

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
            f"the prompt-cache entry ({self.n_tokens} tokens) is loaded into slot {self.slot}; "
            f"it {stays}"
        )


@event("loss")
class CacheLoadFailed(Event):
    """the {part}'s state of the entry does not load ({size} bytes): slot {slot} is cleared"""

    part: str  # "target" or "companion"
    size: int


@event("quiet")
class CacheState(Event):
    """the prompt cache holds {entries} conversations, {size} bytes"""

    entries: int
    size: int
    limit_size: int
    limit_tokens: int
    estimate: int


@event("gain")
class IdleSlotSaved(Event):
    """idle slot {slot} is copied to the prompt cache"""


@event("loss")
class AdaptersChanged(Event):
    """slot {slot} is emptied of {n_tokens} tokens: the request has its own adapters"""

    n_tokens: int
    lora: Strengths


@event("plain")
class AdaptersSet(Event):
    """the strengths of the server's own adapters are changed"""

    lora: Strengths


@event("loss")
class ServerRestarted(Event):
    """the server is restarted: slots and prompt cache are empty, slot files stay"""


@event("loss")
class ServerSlept(Event):
    """the idle server sleeps: slots and prompt cache are empty when it wakes"""


@event("plain")
class ModelLoaded(Event):
    """a child server for {model} starts, with empty slots and an empty prompt cache"""

    model: str
    loaded: int


@event("loss")
class ModelUnloaded(Event):
    """the child server of {model} ends for {asked}: slots, checkpoints, prompt cache are lost"""

    model: str
    asked: str
    n_tokens: int
