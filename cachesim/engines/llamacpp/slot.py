"""A slot with its tasks, prompt, checkpoints and states; the two contexts of a server."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Literal, TypeAlias, cast

from cachesim.engines.base import Ticket
from cachesim.engines.causes import Ledger
from cachesim.engines.images import Image
from cachesim.engines.llamacpp.drafter import NgramCache
from cachesim.engines.llamacpp.memory.blob import Blob
from cachesim.engines.llamacpp.memory.context import Context
from cachesim.engines.tokens import as_rope
from cachesim.errors import ContractError, UpstreamAbort
from cachesim.model.adapters import Strengths
from cachesim.units import Array, Count, Pos, SeqId, Token, Tokens

TaskKind: TypeAlias = Literal[
    "completion",
    "infill",
    "embedding",
    "rerank",
    "slot-save",
    "slot-restore",
    "slot-erase",
    "set-lora",
    "cancel",
]

EMBEDDED: Final = frozenset({"embedding", "rerank"})
PROMPTED: Final = frozenset({"completion", "infill"}) | EMBEDDED
"""Kinds of tasks with a prompt, which need a slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParams:
    """The fields of a completion request that affect its processing."""

    n_predict: int = -1
    n_keep: int = 0
    n_discard: int = 0
    n_cache_reuse: int = 0
    cache_prompt: bool = True
    lora: Strengths | None = None  # None: the server's own
    ignore_eos: bool = True
    reply: Tokens | None = None
    drafts: tuple[Tokens, ...] | None = None
    user_starts: frozenset[Pos] = frozenset()  # first tokens of user messages
    last_user_start: Pos = Pos(-1)


@dataclass(slots=True, kw_only=True)
class Task:
    """An entry of the queue; a parent holds its children until they are launched."""

    id: int
    ticket: Ticket
    kind: TaskKind = "completion"
    tokens: Tokens = ()
    params: TaskParams = field(default_factory=TaskParams)
    id_slot: int = -1
    id_parent: int = -1
    children: list["Task"] = field(default_factory=list)
    name: str = ""  # slot-save, slot-restore: the file
    target: int = -1  # cancel: the task
    strengths: Strengths = ()  # set-lora
    ledger: Ledger = field(default_factory=Ledger)
    images: tuple[Image, ...] = ()

    @property
    def n_tokens(self) -> Count:
        """The length of the prompt."""
        return Count(len(self.tokens))

    @property
    def is_embedded(self) -> bool:
        """True if every token has an output, and none is generated (`need_embd`)."""
        return self.kind in EMBEDDED

    @property
    def is_parent(self) -> bool:
        """True for the first of several completions of one prompt."""
        return bool(self.children)

    @property
    def is_child(self) -> bool:
        """True for a further completion of its parent's prompt."""
        return self.id_parent >= 0


SEQ_RM: Final = "common_memory::seq_rm"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """The blobs of one sequence and the bytes they take on the real machine."""

    target: Blob | None
    companion: Blob | None
    header: int  # bytes of the header that sequence calls add to each
    size: int = field(init=False, compare=False)
    """Bytes of both, stored because every query of the prompt cache needs them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.target_size + self.companion_size)

    @property
    def target_size(self) -> int:
        """Bytes of the target's blob with its header."""
        return 0 if self.target is None else self.target.size + self.header

    @property
    def companion_size(self) -> int:
        """Bytes of the companion's blob with its header."""
        return 0 if self.companion is None else self.companion.size + self.header

    def __deepcopy__(self, memo: object) -> "SavedState":
        return self

    def emptied(self) -> "SavedState":
        """The states after a half-failed load: without the target's blob, whose load succeeds."""
        return replace(self, target=None)


class Contexts:
    """Two contexts under the same sequence ids; most servers have only the first.

    Upstream: `common_memory`.
    """

    def __init__(
        self,
        target: Context,
        companion: Context | None = None,
        *,
        saves_companion: bool,
        refused_cut_aborts: bool,
    ) -> None:
        self._refused_cut_aborts = refused_cut_aborts
        self.target = target
        self.companion = companion
        self.saves_companion = saves_companion and companion is not None

    def seq_rm(self, seq: int, p0: int, p1: int = -1) -> None:
        """Remove a range from both; a refusal ends the real process, or is ignored."""
        for context in self._both():
            # The oldest releases ignore the refusal: the slot's tokens and the memory differ from
            # then on.
            if not context.seq_rm(seq, p0, p1) and self._refused_cut_aborts:
                why = f"sequence {seq} cannot be cut at position {p0}"
                raise UpstreamAbort(SEQ_RM, why)

    def try_seq_rm(self, seq: int, p0: int) -> bool:
        """Remove a tail from the target, then from the companion; False if the target refuses."""
        # The target decides first: if it refuses, both memories stay as they are.
        if not self.target.seq_rm(seq, p0, -1):
            return False
        # The target is cut by now, so a companion that refuses cannot be undone.
        if self.companion is not None and not self.companion.seq_rm(seq, p0, -1):
            why = f"the companion's sequence {seq} cannot be cut at position {p0}"
            raise UpstreamAbort(SEQ_RM, why)
        return True

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move a range of positions in both."""
        for context in self._both():
            context.seq_add(seq, p0, p1, delta)

    def replace(self, src: int, dst: int) -> None:
        """Replace the content of `dst` by that of `src`."""
        # All positions, whatever the target held: a child's memory equals its parent's.
        for context in self._both():
            context.seq_rm(dst, -1, -1)
            context.seq_cp(src, dst, -1, -1)

    def save(self, seq: int, *, partial: bool) -> SavedState:
        """Save a sequence: completely, or the part that a checkpoint needs."""
        companion = None
        # Until companions are saved, the draft model starts from what its own memory still has.
        if self.companion is not None and self.saves_companion:
            companion = self.companion.state_seq_get_data(seq, partial=partial)
        return SavedState(
            target=self.target.state_seq_get_data(seq, partial=partial),
            companion=companion,
            header=self.target.rules.sequence_header,
        )

    def load_target(self, blob: Blob | None, seq: int, *, partial: bool = False) -> bool:
        """Load a saved state into the target; False if it does not fit."""
        # An empty blob counts as loaded, as upstream's reading of 0 bytes does.
        return blob is None or self.target.state_seq_set_data(blob, seq, partial=partial) > 0

    def load_companion(self, blob: Blob | None, seq: int, *, partial: bool = False) -> bool:
        """Load a saved state into the companion, if there is one."""
        if self.companion is None or blob is None:
            return True
        return self.companion.state_seq_set_data(blob, seq, partial=partial) > 0

    def check_integrity(self) -> None:
        """Raise ContractError if the accounts of a memory are inconsistent."""
        for context in self._both():
            context.check_integrity()

    def _both(self) -> tuple[Context, ...]:
        return (self.target,) if self.companion is None else (self.target, self.companion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximation:
    """The first token from which on the memory holds values of another context by design."""

    start: Count
    why: str  # "context-shift" or "chunk-reuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A saved state for a resume without a cut (upstream: `common_prompt_checkpoint`).

    `pos_min` and `pos_max` are those of the live memory at the save. A window blob has fewer
    positions: only those inside the window of `pos_max`.
    """

    n_tokens: Count
    pos_min: Pos
    pos_max: Pos
    id_task: int
    state: SavedState
    drafter: Array | None = None  # the companion's data beside its memory
    approximate: Approximation | None = None  # the approximation at the save

    def __deepcopy__(self, memo: object) -> "Checkpoint":
        return self

    @property
    def size(self) -> int:
        """Bytes of the two states, as the server counts them.

        Trap: the companion's carried data is stored too, but not counted (`data_spec`).
        """
        return self.state.size

    @property
    def pos_end(self) -> Pos:
        """The position after its last token (#24035)."""
        return Pos(self.n_tokens)

    def as_dict(self) -> dict[str, int]:
        """The numbers in the log."""
        return {"pos_min": self.pos_min, "pos_max": self.pos_max, "n_tokens": self.n_tokens}


class Prompt:
    """The tokens of one slot and its checkpoints, oldest first (upstream: `server_prompt`)."""

    __slots__ = ("approximate", "checkpoints", "tokens")

    def __init__(
        self,
        tokens: list[Token] | None = None,
        checkpoints: list[Checkpoint] | None = None,
        approximate: Approximation | None = None,
    ) -> None:
        self.tokens: list[Token] = [] if tokens is None else tokens
        self.checkpoints: list[Checkpoint] = [] if checkpoints is None else checkpoints
        self.approximate = approximate

    @property
    def n_tokens(self) -> Count:
        """Number of tokens in the slot; also the position of the next one (`pos_next`)."""
        return Count(len(self.tokens))

    def keep_first(self, count: int) -> None:
        """Drop all tokens except the first `count`."""
        del self.tokens[count:]
        # The part that was computed in another context is gone with the tokens.
        if self.approximate is not None and self.approximate.start >= count:
            self.approximate = None

    def take_shape_of(self, tokens: Sequence[Token]) -> None:
        """Use a rope for the tokens of an empty prompt, if these are a rope."""
        rope = as_rope(tokens)
        if rope is not None and not self.tokens:
            self.tokens = cast("list[Token]", rope[:0])

    def approximate_from(self, start: int, why: str) -> None:
        """Record that values from `start` on were computed in another context."""
        if self.approximate is None or start < self.approximate.start:
            self.approximate = Approximation(start=Count(start), why=why)

    def clone(self) -> "Prompt":
        """A copy with tokens and checkpoints in lists of its own."""
        return Prompt(self.tokens[:], list(self.checkpoints), self.approximate)


class SlotState(Enum):
    """Upstream's `slot_state`."""

    IDLE = "idle"
    WAIT_OTHER = "wait-other"  # a child, until its parent's prompt is decoded
    STARTED = "started"
    PROCESSING_PROMPT = "processing-prompt"
    DONE_PROMPT = "done-prompt"
    GENERATING = "generating"

    __hash__ = object.__hash__  # identity: the hash of an enum's name is slow


MOVES: Final[dict[SlotState, frozenset[SlotState]]] = {
    SlotState.IDLE: frozenset({SlotState.STARTED, SlotState.WAIT_OTHER}),
    SlotState.WAIT_OTHER: frozenset({SlotState.DONE_PROMPT, SlotState.IDLE}),
    SlotState.STARTED: frozenset({SlotState.PROCESSING_PROMPT, SlotState.IDLE}),
    SlotState.PROCESSING_PROMPT: frozenset({SlotState.DONE_PROMPT, SlotState.IDLE}),
    SlotState.DONE_PROMPT: frozenset({SlotState.GENERATING, SlotState.IDLE}),
    SlotState.GENERATING: frozenset({SlotState.IDLE}),
}
"""Permitted transitions. Every state may end in a release."""

NEVER: Final = -1
"""`t_last_used` of a slot without a released request."""

NO_ROW: Final = -1
"""`i_batch` of a slot that needs no logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecCheckpoint:
    """The start of a draft, and the states for its rollback (upstream: `spec_ckpt`)."""

    n_tokens: Count
    pos_max: Pos
    target: Blob | None
    companion: Blob | None


class Slot:
    """A slot (upstream: `server_slot`).

    The first fields outlive a request: the prompt and the time of the last release. The others
    belong to the task and are reset on release.
    """

    def __init__(self, number: int, n_ctx: int) -> None:
        self.id = SeqId(number)
        self.n_ctx = n_ctx
        self.prompt = Prompt()
        self.lora: Strengths = ()  # the set of the last request
        self.ngrams = NgramCache()
        self.t_last_used = NEVER
        self.completed = True  # the last request was a completion
        self.state = SlotState.IDLE
        self.task: Task | None = None
        self.n_prompt_tokens_processed = 0
        self.reset()

    def reset(self) -> None:
        """Reset the fields of the request, not the prompt (upstream: `server_slot::reset`).

        Trap: older releases keep `n_prompt_tokens_processed`, so that the reply to an empty prompt
        has the number of the previous request.
        """
        self.n_prompt_tokens_cache: Count | None = None
        self.approximated: str | None = None  # the reply depends on values of another context
        self.i_batch = NO_ROW
        self.sampled = Token(-1)
        self.generated: list[Token] = []
        self.rows: list[Array] = []
        self.truncated = False
        self.keeps_last_cell = False  # the next cut spares the token to recompute (#5420)
        self.split_at = -1  # a length at which the batch ends to save a state (#24035)
        self.draft: list[Token] = []
        self.spec_checkpoint: SpecCheckpoint | None = None
        self.ngrams_checked = 0  # upstream: `idx_last_check` of the n-gram map
        self.n_draft_steps = 0
        self.n_draft_total = 0
        self.n_draft_accepted = 0
        self.spec_is_replay = False  # the draft is the accepted part before a restore

    @property
    def is_processing(self) -> bool:
        """True while a task is in the slot."""
        return self.state is not SlotState.IDLE

    @property
    def running(self) -> Task:
        """The task of a busy slot."""
        if self.task is None:
            raise ContractError(f"slot {self.id} is {self.state.value} without a task")
        return self.task

    @property
    def n_decoded(self) -> int:
        """Number of sampled tokens, the last one included."""
        return len(self.generated)

    def move(self, state: SlotState) -> None:
        """Change to a permitted state."""
        if state not in MOVES[self.state]:
            msg = f"slot {self.id} cannot go from {self.state.value} to {state.value}"
            raise ContractError(msg)
        self.state = state
