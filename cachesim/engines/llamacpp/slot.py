"""A slot: the server's place for one conversation, what it is believed to hold, and its states."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Literal, TypeAlias, cast

from cachesim.engines.base import Ticket
from cachesim.engines.causes import Ledger
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
"""Kinds of tasks that bring a prompt and take a slot for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParams:
    """The fields of a completion request that decide how it is run."""

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
    """An entry of the queue; a parent carries its children until they are launched."""

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

    @property
    def n_tokens(self) -> Count:
        """The length of the prompt."""
        return Count(len(self.tokens))

    @property
    def is_embedded(self) -> bool:
        """True where every token's output is wanted, and none is generated (`need_embd`)."""
        return self.kind in EMBEDDED

    @property
    def is_parent(self) -> bool:
        """True for the first of several completions of one prompt."""
        return bool(self.children)

    @property
    def is_child(self) -> bool:
        """True for the others."""
        return self.id_parent >= 0


SEQ_RM: Final = "common_memory::seq_rm"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """The blobs of one sequence and the bytes they take on the real machine."""

    target: Blob | None
    companion: Blob | None
    header: int  # bytes that the sequence calls put in front of each
    size: int = field(init=False, compare=False)
    """Bytes of both: asked for at every look at the prompt cache, so counted once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.target_size + self.companion_size)

    @property
    def target_size(self) -> int:
        """Bytes of the target's blob, as the sequence calls count them."""
        return 0 if self.target is None else self.target.size + self.header

    @property
    def companion_size(self) -> int:
        """Bytes of the companion's blob."""
        return 0 if self.companion is None else self.companion.size + self.header

    def __deepcopy__(self, memo: object) -> "SavedState":
        """Itself: it never changes."""
        return self

    def emptied(self) -> "SavedState":
        """The states after a half-failed load: the target's blob is gone; loading it "works"."""
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
        """Remove a range from both; a refusal ends the real process, or nobody looks."""
        for context in self._both():
            if not context.seq_rm(seq, p0, p1) and self._refused_cut_aborts:
                why = f"sequence {seq} cannot be cut at position {p0}"
                raise UpstreamAbort(SEQ_RM, why)

    def try_seq_rm(self, seq: int, p0: int) -> bool:
        """Remove a tail from the target; the companion follows if that worked."""
        if not self.target.seq_rm(seq, p0, -1):
            return False
        if self.companion is not None and not self.companion.seq_rm(seq, p0, -1):
            why = f"the companion's sequence {seq} cannot be cut at position {p0}"
            raise UpstreamAbort(SEQ_RM, why)
        return True

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move a range of positions in both."""
        for context in self._both():
            context.seq_add(seq, p0, p1, delta)

    def replace(self, src: int, dst: int) -> None:
        """Give `dst` all that `src` has, and nothing else."""
        for context in self._both():
            context.seq_rm(dst, -1, -1)
            context.seq_cp(src, dst, -1, -1)

    def save(self, seq: int, *, partial: bool) -> SavedState:
        """Write a sequence: all of it, or only what a checkpoint needs."""
        companion = None
        if self.companion is not None and self.saves_companion:
            companion = self.companion.state_seq_get_data(seq, partial=partial)
        return SavedState(
            target=self.target.state_seq_get_data(seq, partial=partial),
            companion=companion,
            header=self.target.rules.sequence_header,
        )

    def load_target(self, blob: Blob | None, seq: int, *, partial: bool = False) -> bool:
        """Put a saved state back; False where it does not fit."""
        return blob is None or self.target.state_seq_set_data(blob, seq, partial=partial) > 0

    def load_companion(self, blob: Blob | None, seq: int, *, partial: bool = False) -> bool:
        """Load a saved state into the companion, if it takes part in saving."""
        if self.companion is None or blob is None:
            return True
        return self.companion.state_seq_set_data(blob, seq, partial=partial) > 0

    def check_integrity(self) -> None:
        """Raise ContractError where the books of a memory disagree."""
        for context in self._both():
            context.check_integrity()

    def _both(self) -> tuple[Context, ...]:
        return (self.target,) if self.companion is None else (self.target, self.companion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximation:
    """From which token on the memory knowingly holds values of another context, and why."""

    start: Count
    why: str  # "context-shift" or "chunk-reuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A saved copy of what cannot be cut back (upstream: `common_prompt_checkpoint`).

    `pos_min` and `pos_max` are what the live memory reported when it was taken. A window blob
    holds less than that: only what lies inside the window of `pos_max`.
    """

    n_tokens: Count
    pos_min: Pos
    pos_max: Pos
    id_task: int
    state: SavedState
    drafter: Array | None = None  # what the companion carried beside its memory
    approximate: Approximation | None = None  # what was approximate when it was taken

    def __deepcopy__(self, memo: object) -> "Checkpoint":
        """Itself: it never changes."""
        return self

    @property
    def size(self) -> int:
        """Bytes of the two states, as the server counts them.

        Trap: what the companion carries is kept too and counted nowhere (`data_spec`).
        """
        return self.state.size

    @property
    def pos_end(self) -> Pos:
        """The position right after its last token (#24035)."""
        return Pos(self.n_tokens)

    def as_dict(self) -> dict[str, int]:
        """The numbers that the log prints."""
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
        """The number of tokens in the slot; also the position of the next one (`pos_next`)."""
        return Count(len(self.tokens))

    def keep_first(self, count: int) -> None:
        """Forget all tokens but the first `count`."""
        del self.tokens[count:]
        if self.approximate is not None and self.approximate.start >= count:
            self.approximate = None

    def take_shape_of(self, tokens: Sequence[Token]) -> None:
        """Keep following tokens in the form of these, a list or a rope, where none are held."""
        rope = as_rope(tokens)
        if rope is not None and not self.tokens:
            self.tokens = cast("list[Token]", rope[:0])

    def approximate_from(self, start: int, why: str) -> None:
        """Remember that values from `start` on were computed in another context."""
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

    __hash__ = object.__hash__  # there is one of each; an enum hashes its name, in Python


MOVES: Final[dict[SlotState, frozenset[SlotState]]] = {
    SlotState.IDLE: frozenset({SlotState.STARTED, SlotState.WAIT_OTHER}),
    SlotState.WAIT_OTHER: frozenset({SlotState.DONE_PROMPT, SlotState.IDLE}),
    SlotState.STARTED: frozenset({SlotState.PROCESSING_PROMPT, SlotState.IDLE}),
    SlotState.PROCESSING_PROMPT: frozenset({SlotState.DONE_PROMPT, SlotState.IDLE}),
    SlotState.DONE_PROMPT: frozenset({SlotState.GENERATING, SlotState.IDLE}),
    SlotState.GENERATING: frozenset({SlotState.IDLE}),
}
"""The automaton: what may follow what. Every state may end in a release."""

NEVER: Final = -1
"""`t_last_used` of a slot that no request has left yet."""

NO_ROW: Final = -1
"""`i_batch` of a slot that waits for no logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecCheckpoint:
    """The start of a draft, and the states that cannot be cut back (upstream: `spec_ckpt`)."""

    n_tokens: Count
    pos_max: Pos
    target: Blob | None
    companion: Blob | None


class Slot:
    """A place for a conversation (upstream: `server_slot`).

    What outlives a request stands first: the prompt and when the slot was last released. The rest
    belongs to the task in it and is reset on release.
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
        """Forget the request, not the prompt (upstream: `server_slot::reset`).

        Trap: older releases leave `n_prompt_tokens_processed` as it is, and an empty prompt is
        answered with the number of the request before it.
        """
        self.n_prompt_tokens_cache: Count | None = None
        self.approximated: str | None = None  # the reply rests on values of another context
        self.i_batch = NO_ROW
        self.sampled = Token(-1)
        self.generated: list[Token] = []
        self.rows: list[Array] = []
        self.truncated = False
        self.keeps_last_cell = False  # the next cut spares the token to be read again (#5420)
        self.split_at = -1  # a length at which the batch is cut to save a state (#24035)
        self.draft: list[Token] = []
        self.spec_checkpoint: SpecCheckpoint | None = None
        self.ngrams_checked = 0  # upstream: `idx_last_check` of the n-gram map
        self.n_draft_steps = 0
        self.n_draft_total = 0
        self.n_draft_accepted = 0
        self.spec_is_replay = False  # the draft is what was accepted before a restore

    @property
    def is_processing(self) -> bool:
        """True while a task is in the slot."""
        return self.state is not SlotState.IDLE

    @property
    def running(self) -> Task:
        """The task in a slot that is known to be busy."""
        if self.task is None:
            msg = f"slot {self.id} is {self.state.value} without a task"
            raise ContractError(msg)
        return self.task

    @property
    def n_decoded(self) -> int:
        """The number of sampled tokens, the last one included."""
        return len(self.generated)

    def move(self, state: SlotState) -> None:
        """Go on to a state that the table allows."""
        if state not in MOVES[self.state]:
            msg = f"slot {self.id} cannot go from {self.state.value} to {state.value}"
            raise ContractError(msg)
        self.state = state
