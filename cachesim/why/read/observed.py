"""Facts of a log by request, before any inference."""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

# -- numbers with their sources --------------------------------------------------------------------

How: TypeAlias = Literal["printed", "computed", "bounded", "assumed", "unknown"]
"""Printed in the log; computed from printed numbers; within bounds of the log; assumed where the
log has nothing; unknown.
"""


@dataclass(frozen=True, slots=True)
class Known:
    """A number of a request or a server, with its source."""

    value: int | None
    how: How
    low: int | None = None
    high: int | None = None

    @property
    def is_sure(self) -> bool:
        return self.how in {"printed", "computed"}


UNKNOWN = Known(None, "unknown")


def printed(value: int) -> Known:
    """A number printed in the log."""
    return Known(value, "printed")


def computed(value: int) -> Known:
    """A number computed from the log."""
    return Known(value, "computed")


def bounded(value: int, low: int, high: int) -> Known:
    """A number within the log's bounds."""
    return computed(value) if low == high else Known(value, "bounded", low, high)


HUNDREDTH: Final = 0.005
"""Rounding error of two printed decimals."""


# -- observations ----------------------------------------------------------------------------------


LLAMA, IK, MLX, PYTHON = "llama.cpp", "ik_llama.cpp", "mlx-lm", "llama-cpp-python"
OLLAMA, LM_STUDIO, SGLANG = "Ollama's MLX runner", "LM Studio's MLX engine", "SGLang"
OMLX, KOBOLD, MLX_OPENAI = "oMLX", "KoboldCpp", "mlx-openai-server"
LM_STUDIO_LLAMA = "LM Studio's llama.cpp engine"
OTHERS: Final = (
    IK, OLLAMA, LM_STUDIO, LM_STUDIO_LLAMA, OMLX, KOBOLD, MLX_OPENAI, SGLANG, MLX, PYTHON,
)  # fmt: skip
"""Engines whose lines are known, besides llama.cpp."""

OVERWRITTEN: Final = "another request loaded a conversation of the prompt cache over its slot"
"""Why an answer is wrong that was generated while a later request named the busy slot."""

ENDLESS: Final = "its slot holds more tokens than its prompt has, so that it is read without end"
"""Why a request has no answer whose busy slot a later one named, and why no other is answered."""

SlotChoice: TypeAlias = Literal["similarity", "age", "id", "unknown"]


@dataclass(slots=True)
class Compared:
    """A prompt-cache entry, as printed by the search of the prompt cache."""

    n_tokens: int
    lcp: int


@dataclass(slots=True)
class Search:
    """The swap with the prompt cache before a request."""

    saved: int | None = None  # tokens of the slot's prompt that was saved
    keep: str | None = None  # of the slot itself
    sim: str | None = None
    found_keep: str | None = None  # of the entry that was loaded
    found_sim: str | None = None
    compared: list[Compared] = field(default_factory=list)


@dataclass(slots=True)
class Observed:
    """A request, as far as the log shows it."""

    number: int
    line: int
    slot: int
    task: int
    choice: SlotChoice = "unknown"
    sim: str | None = None
    keep: str | None = None
    threshold: str | None = None
    slot_common: dict[int, int] = field(default_factory=dict)  # per slot that was looked at
    search: Search = field(default_factory=Search)
    n_tokens: int | None = None  # as printed
    depth: tuple[int, int, int] | None = None  # n_past, tokens held, n_swa
    spans: list[tuple[int, int]] = field(default_factory=list)  # pos_min, pos_max of what is kept
    keeps_all: bool = False  # memory reached back to position 0
    checked: list[tuple[int, int, int]] = field(default_factory=list)
    restored: int | None = None
    restored_at: int | None = None  # tokens of the restored checkpoint
    forced: bool = False
    refused_cut: bool = False
    refused_at: int | None = None  # where memory would not be cut
    erased: list[tuple[int, int | None]] = field(default_factory=list)  # tokens, pos_next
    created: list[tuple[int, int, int]] = field(default_factory=list)  # pos_min, pos_max, n_tokens
    dropped: list[tuple[int, int, int]] = field(default_factory=list)  # the same, of older ones
    one_token: bool = False
    first_cut: int | None = None
    cuts: list[int] = field(default_factory=list)
    shares: list[tuple[int, str]] = field(default_factory=list)  # tokens held, part of the prompt
    shares_read: list[tuple[int, str]] = field(default_factory=list)  # the same of those processed
    cached_within: tuple[int, int, int] | None = None  # likeliest, by time and rate of the rest
    at_least: int = 1  # tokens of the prompt
    done_at: int | None = None  # tokens of the slot when the prompt had been read
    processed: int | None = None
    generated: int | None = None
    prompt_ms: float | None = None
    reply_ms: float | None = None
    held_after: int | None = None
    shifts: list[tuple[int, int]] = field(default_factory=list)  # left, discarded
    shift_keep: int | None = None  # tokens before those that a context shift discarded
    shifted_before: int | None = None  # the same, of the slot's request before
    moved: list[tuple[int, int, int]] = field(default_factory=list)  # from where, to where, tokens
    cancelled: bool = False  # no reply in the log: the client left, or it was an embedding
    disconnected: bool | None = False  # by the line of llama.cpp; None: no other engine prints it
    too_long: bool = False
    is_empty: bool = False  # an empty prompt: its timings are those of the slot's last request
    is_child: bool = False
    is_chat: bool = False
    started_before: bool = False  # launched before the log begins
    ended: bool = False
    swa: int | None = None
    offset: int = 0  # tokens that the prompt has more than the slot for the same text
    prints_tries: bool = True  # the server names every checkpoint that it tries
    shared: Known | None = None  # the prompt's common prefix, where its own lines have it
    takes_snapshots: bool = False  # a state is saved where a prompt parts from a stored one
    restores_blocks: bool = False  # only whole blocks of a stored sequence are reused
    leaves_last: bool = False  # its lines do not count the prompt's last token
    notes: list[str] = field(default_factory=list)
    stale: str | None = None
    is_named: bool = False  # by another request (`id_slot`), while it ran
    launched_at: float | None = None

    @property
    def begins(self) -> bool:
        """True if lines of the prompt's start are in the log, though its launch may not be."""
        seen = self.checked or self.erased or self.depth or self.first_cut == 0
        return bool(seen or self.forced or self.restored is not None)

    def note_cached(self, whole: int, seconds: float, rate: float) -> None:
        """Bound what was reused of a prompt by the time of the rest and its rate."""
        most = min(whole, int((seconds + HUNDREDTH) * (rate + HUNDREDTH)) + 1)
        least = max(1, int((seconds - HUNDREDTH) * (rate - HUNDREDTH)))
        low, high = whole - most, max(0, whole - least)
        self.cached_within = min(max(low, whole - round(seconds * rate)), high), low, high


@dataclass(frozen=True, slots=True)
class LogEvent:
    """An event of the server, in the order of the log."""

    what: Literal["launched", "cancelled", "released", "erased"]
    request: int = -1  # its number
    slot: int = -1
    line: int = 0
    made: tuple[
        tuple[int, int, int], ...
    ] = ()  # running requests: checkpoints, turns printed so far


@dataclass(slots=True)
class ServerLog:
    """A run of a server: from its start or the beginning of the log to its end."""

    first_line: int
    facts: dict[str, str] = field(default_factory=dict)  # what the start-up lines say
    styles: set[str] = field(default_factory=set)  # releases whose wording was seen
    requests: list[Observed] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)
    sizes: list[tuple[int, float]] = field(default_factory=list)  # tokens saved, MiB
    checkpoint_mib: list[tuple[int, float]] = field(default_factory=list)
    known_lines: int = 0
    begins_at_start: bool = False
    clock: float = 0.0  # by the server's own, when it was last printed
    went_back: int = 0  # so often the clock did, by a second or more
    retracted: int = 0  # requests of SGLang that started over
    foreign: set[str] = field(default_factory=set)  # other servers whose lines were seen
    mixed: bool = False  # counts of prompts and of drafts, or of two calls, are in one line

    @property
    def engine(self) -> str:
        """The engine of the lines; llama.cpp's have several styles."""
        return next((other for other in OTHERS if other in self.styles), LLAMA)

    @property
    def is_empty(self) -> bool:
        """True without requests."""
        return not self.requests

    def begin(self, line: int, slot: int = -1, task: int | None = None) -> Observed:
        """Add a request, first seen in a line."""
        task = -1 if task is None else task
        self.requests.append(Observed(len(self.requests), line, slot, task))
        return self.requests[-1]

    def holds_chats(self) -> None:
        """Treat every request as a chat, as later releases do not log it."""
        for request in self.requests:
            request.is_chat = True
