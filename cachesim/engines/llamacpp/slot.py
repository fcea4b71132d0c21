"""A slot: the server's place for one conversation, what it is believed to hold, and its states."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, cast

from cachesim.engines.llamacpp.contexts import SavedState
from cachesim.engines.llamacpp.memory.blob import Blob
from cachesim.engines.llamacpp.ngram_cache import NgramCache
from cachesim.engines.llamacpp.task import Task
from cachesim.engines.rope import as_rope
from cachesim.errors import ContractError
from cachesim.model.adapters import Strengths
from cachesim.units import Array, Count, Pos, SeqId, Token


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
