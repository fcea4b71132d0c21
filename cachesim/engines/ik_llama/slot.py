"""A slot: the server's place for one conversation, with upstream's fields and lifetimes."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np

from cachesim.engines.base import Reply, Request, Ticket
from cachesim.engines.ik_llama.state import Checkpoint
from cachesim.engines.ledger import Ledger
from cachesim.errors import ContractError
from cachesim.units import Array, Count, SlotId, Token

GONE: Final = "cancelled"
"""The error of a request whose client went away."""


class State(Enum):
    """The state of a slot."""

    IDLE = "idle"
    PROCESSING = "processing"


class Command(Enum):
    """The next command of a slot."""

    NONE = "none"
    LOAD_PROMPT = "load-prompt"
    RELEASE = "release"


@dataclass(slots=True, kw_only=True)
class CachedPrompt:
    """The prompt that a slot parks and takes over (server_prompt), with its checkpoints."""

    tokens: list[Token] = field(default_factory=list)
    n_kept_prompt: int = 0
    n_discarded_prompt: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Slot:
    """The place of a conversation: `cache_tokens` are in memory as the server believes."""

    id: SlotId
    n_ctx: Count
    state: State = State.IDLE
    command: Command = Command.NONE
    t_last_used: int = -1

    cache_tokens: list[Token] = field(default_factory=list)
    cached_prompt: CachedPrompt = field(default_factory=CachedPrompt)
    list_moved_out: bool = False  # not upstream's: why the list is empty

    ticket: Ticket | None = None
    request: Request | None = None
    prompt_tokens: list[Token] = field(default_factory=list)
    prepared: bool = False
    n_past: int = 0  # cache-token space
    n_past_prompt: int = 0  # prompt-token space
    n_past_offset: int = 0  # not touched by reset(): stale where nothing was matched (an oddity)
    n_prompt_tokens_cache: int = 0
    n_prompt_tokens_processed: int = 0
    n_kept_prompt: int = 0
    n_discarded_prompt: int = 0
    n_keep: int = 0  # survives requests (an oddity)
    checkpoint_pos: int = 0
    do_checkpoint: bool = False
    i_batch: int = -1
    stray: int = 0  # cells of rejected drafts that a batch too small decoded all the same
    sampled: Token = Token(0)
    n_decoded: int = 0
    generated: list[Token] = field(default_factory=list)
    logits: list[Array] = field(default_factory=list)
    truncated: bool = False
    shifted: bool = False
    drafted: list[Token] = field(default_factory=list)
    follow_up: Token | None = None  # the draft the last commit left behind
    draft_step: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def running(self) -> Request:
        """The request in a slot that is known to be busy."""
        if self.request is None:
            msg = f"slot {self.id} is {self.state.value} without a request"
            raise ContractError(msg)
        return self.request

    @property
    def id_task(self) -> Ticket:
        """The task of a slot that has had one."""
        if self.ticket is None:
            msg = f"slot {self.id} has had no task"
            raise ContractError(msg)
        return self.ticket

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The live list, oldest first."""
        return self.cached_prompt.checkpoints

    @property
    def available(self) -> bool:
        """Idle, and told nothing."""
        return self.state is State.IDLE and self.command is Command.NONE

    @property
    def prefilling(self) -> bool:
        """Still reading its prompt."""
        return self.state is State.IDLE and self.command is Command.LOAD_PROMPT

    def reset(self, interval_starts_at: int) -> None:
        """Forget the last request, not the conversation (server_slot::reset)."""
        self.prompt_tokens = []
        self.prepared = False
        self.n_past = self.n_past_prompt = 0
        self.n_prompt_tokens_cache = self.n_prompt_tokens_processed = 0
        self.n_kept_prompt = self.n_discarded_prompt = 0
        self.checkpoint_pos = interval_starts_at
        self.do_checkpoint = False
        self.i_batch = -1
        self.n_decoded = 0
        self.generated, self.logits = [], []
        self.truncated = self.shifted = False
        self.drafted = []
        self.follow_up = None
        self.draft_step = 0

    def reply(self, error: str | None = None, message: str = "") -> Reply:
        """The reply to the client."""
        unread = error == GONE and not self.generated
        refused = error not in {None, GONE} or unread
        return Reply(
            prompt=self.running.prompt,
            generated=tuple(self.generated),
            logits=np.stack(self.logits) if self.logits else np.zeros((0, 0)),
            cached=None if refused else Count(self.n_prompt_tokens_cache),
            processed=None if refused else Count(self.n_prompt_tokens_processed),
            equal=self.ledger.equal,
            equal_with=self.ledger.equal_with,
            losses=self.ledger.losses,
            slot=self.id,
            truncated=self.truncated,
            error=error,
            message=message,
            approximated="context-shift" if self.shifted else None,
        )
