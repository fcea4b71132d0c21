"""Tasks in the server's queue: a request as the HTTP side prepared it, or a slot action."""

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from cachesim.engines.base import Ticket
from cachesim.engines.ledger import Ledger
from cachesim.model.adapters import Strengths
from cachesim.units import Count, Pos, Tokens

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
