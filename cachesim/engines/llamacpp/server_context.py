"""The server's state: rules, flags, memory, slots, cache, queue, log; a slot's next token."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cachesim.engines.base import Reply, Ticket
from cachesim.engines.events import Event, EventLog
from cachesim.engines.llamacpp import causes
from cachesim.engines.llamacpp.contexts import Contexts
from cachesim.engines.llamacpp.drafter import Drafter
from cachesim.engines.llamacpp.events import PromptCleared, RequestRefused, SlotReleased
from cachesim.engines.llamacpp.memory.capability import SeqRm
from cachesim.engines.llamacpp.ngram_cache import CACHED
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.prompt_cache import PromptCache
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.llamacpp.slot import Slot, SlotState
from cachesim.engines.llamacpp.task import Task
from cachesim.model.adapters import Adapted, Strengths, adapted_in
from cachesim.model.arithmetic import Network
from cachesim.units import Array, Count, Token

CANCELLED: Final = "cancelled"
"""The error of a request whose client went away."""


@dataclass(slots=True, kw_only=True)
class ServerContext:
    """The server's mutable whole (upstream: `server_context_impl`)."""

    rules: ServerRules
    options: Options
    network: Network
    contexts: Contexts
    seq_rm_type: SeqRm
    n_swa: int  # 0 without a window, and with `swa_full` since #22288
    can_shift: bool
    slots: list[Slot]
    cache: PromptCache | None
    lora: Strengths = ()  # of all who bring none (upstream: `params_base.lora_adapters`)
    drafter: Drafter | None = None
    companion_type: SeqRm = SeqRm.NO
    queue: deque[Task] = field(default_factory=deque)
    deferred: deque[Task] = field(default_factory=deque)
    events: EventLog = field(default_factory=EventLog)
    replies: dict[int, list[Reply]] = field(default_factory=dict)
    now: int = 0  # logical time: one tick per release
    n_empty_consecutive: int = 0
    given_up: list[Ticket] = field(default_factory=list)  # calls that were answered by an error
    next_task: int = 0
    most_turns: int = 1 << 30  # that may be taken as one
    n_batch: int = field(init=False)  # the options', asked for many times a turn
    n_ubatch: int = field(init=False)
    is_exact: bool = field(init=False)  # a state is usable only at the position it was saved at
    shifts_context: bool = field(init=False)  # context shift is on, and the memory can do it
    may_draft: bool = field(init=False)  # a companion or n-grams propose tokens
    adapters: Adapted | None = field(init=False)  # what strengths are set on

    def __post_init__(self) -> None:
        options = self.options
        self.n_batch, self.n_ubatch = options.n_batch, options.n_ubatch
        self.is_exact = self.seq_rm_type in {SeqRm.FULL, SeqRm.RS}
        self.shifts_context = options.context_shift and self.can_shift
        ngrams = options.maps_ngrams or options.spec_type == CACHED
        self.may_draft = self.drafter is not None or ngrams
        self.adapters = adapted_in(self.network)

    @property
    def is_busy(self) -> bool:
        """True while a slot is at work."""
        return any(slot.state is not SlotState.IDLE for slot in self.slots)

    @property
    def no_logits(self) -> Array:
        """The logits of a reply without tokens."""
        return np.empty((0, 0))

    def take_number(self) -> int:
        """The id of a new task."""
        self.next_task += 1
        return self.next_task - 1

    def emit(self, event: Event) -> None:
        """Something happened."""
        self.events.append(event)

    def prompt_clear(self, slot: Slot) -> None:
        """Empty a slot's memory and tokens (upstream: `server_slot::prompt_clear`).

        Older releases leave the checkpoints behind; the next prompt start sweeps them.
        """
        self.emit(PromptCleared(slot=slot.id, n_tokens=slot.prompt.n_tokens))
        self.contexts.seq_rm(slot.id, -1, -1)
        slot.prompt.tokens.clear()
        slot.prompt.approximate = None
        if self.rules.slots.clear_drops_checkpoints:
            slot.prompt.checkpoints.clear()

    def release(self, slot: Slot, stop: str) -> None:
        """A request leaves its slot (upstream: `server_slot::release`).

        One deferred task comes to the front of the queue: the oldest that is pinned to this slot,
        otherwise the oldest of all.
        """
        task = slot.running
        self.emit(
            SlotReleased(
                slot=slot.id,
                task=task.id,
                n_tokens=slot.prompt.n_tokens,
                truncated=slot.truncated,
                stop=stop,
            )
        )
        slot.t_last_used = self.now
        self.now += 1
        slot.move(SlotState.IDLE)
        if task.is_child:
            self.prompt_clear(slot)
        slot.reset()
        if self.rules.slots.processed_is_reset:
            slot.n_prompt_tokens_processed = 0
        slot.task = None
        self._pop_deferred(slot)

    def _pop_deferred(self, slot: Slot) -> None:
        if not self.deferred:
            return
        pinned = (task for task in self.deferred if task.id_slot == slot.id)
        task = next(pinned, self.deferred[0])
        self.deferred.remove(task)
        self.queue.appendleft(task)

    def answer(self, task: Task, slot: Slot | None, reply: Reply) -> None:
        """Keep a reply under its ticket; a parent's comes before its children's."""
        replies = self.replies.setdefault(task.ticket, [])
        if task.is_child or slot is None:
            replies.append(reply)
        else:
            replies.insert(0, reply)

    def finish(self, slot: Slot, stop: str, error: str | None = None, message: str = "") -> None:
        """Send the final response or an error, and release the slot."""
        task = slot.running
        cached = slot.n_prompt_tokens_cache
        if error is not None:
            self.emit(RequestRefused(slot=slot.id, task=task.id, error=error, message=message))
        if cached is None or (error is not None and error != CANCELLED):
            cached = None
            task.ledger.apply(causes.REQUEST_REFUSED, 0, error=error or stop)
            if task.is_parent and error != CANCELLED:
                self.given_up.append(task.ticket)
        self.answer(task, slot, self._reply(slot, cached, error, message))
        self.release(slot, stop)

    def _reply(self, slot: Slot, cached: Count | None, error: str | None, message: str) -> Reply:
        task = slot.running
        ledger = task.ledger
        return Reply(
            prompt=task.tokens,
            generated=tuple(slot.generated),
            logits=np.array(slot.rows) if slot.rows else self.no_logits,
            cached=cached,
            processed=None if cached is None else Count(slot.n_prompt_tokens_processed),
            equal=ledger.equal,
            equal_with=ledger.equal_with,
            losses=ledger.losses,
            slot=slot.id,
            truncated=slot.truncated,
            error=error,
            message=message,
            strengths=slot.lora,
            approximated=slot.approximated,
            drafted=Count(slot.n_draft_total),
            accepted=Count(slot.n_draft_accepted),
        )


END_OF_GENERATION: Final = frozenset({Token(2), Token(260)})
"""The toy vocabulary's `</s>` and `<|im_end|>`."""


def next_token(server: ServerContext, slot: Slot, row: Array, *, ahead: int = 0) -> Token:
    """The forced token of a reply, or the greedy one; `ahead` tokens are not taken yet."""
    reply, index = slot.running.params.reply, len(slot.generated) + ahead
    if reply is not None and index < len(reply):
        return reply[index]
    return server.network.sample(row)


def process_token(server: ServerContext, slot: Slot, token: Token, row: Array) -> bool:
    """Note a token; False if it ended the request (upstream: `process_token`)."""
    slot.generated.append(token)
    slot.rows.append(row)
    slot.sampled = token
    stop = stop_reason(server, slot, token)
    if stop:
        server.finish(slot, stop)
    return not stop


def stop_reason(server: ServerContext, slot: Slot, token: Token) -> str:
    """The reason to stop after this token, tested in upstream's order; empty: none."""
    if not server.shifts_context and len(slot.prompt.tokens) + 1 >= slot.n_ctx:
        slot.truncated = True
        return "limit"
    left = budget_left(server, slot)
    if left is not None and left <= 0:
        return "limit"
    params = slot.running.params
    if token in END_OF_GENERATION and not params.ignore_eos and params.reply is None:
        return "eos"
    return ""


def budget_left(server: ServerContext, slot: Slot) -> int | None:
    """The number of tokens still to be generated; None without a limit (upstream: `has_budget`).

    The end of a forced reply ends the generation too.

    Trap: a number below -1 is a limit as well, and ends the reply with its first token.
    """
    params = slot.running.params
    most = params.n_predict if params.n_predict != -1 else server.options.predict
    if params.reply is not None and not -1 != most < len(params.reply):
        most = len(params.reply)
    return None if most == -1 else most - len(slot.generated)
