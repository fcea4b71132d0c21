"""The server's state: rules, flags, memory, slots, cache, queue, events; a slot's next token."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from cachesim.engines.base import Reply, Ticket
from cachesim.engines.events import Event, EventLog
from cachesim.engines.llamacpp.drafter import CACHED, Drafter, open_drafter
from cachesim.engines.llamacpp.memory.create import (
    ContextParams,
    SeqRm,
    create_context,
    seq_rm_type,
)
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.prompt_cache import PromptCache
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.engines.llamacpp.slot import Contexts, Slot, SlotState, Task
from cachesim.engines.llamacpp.vocabulary import causes
from cachesim.engines.llamacpp.vocabulary.events import (
    AdaptersChanged,
    AdaptersSet,
    PromptCleared,
    RequestRefused,
    SlotReleased,
)
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.model.adapters import Adapted, Strengths, adapted_in
from cachesim.model.arithmetic import Network
from cachesim.units import Array, Count, Token, Tokens

CANCELLED: Final = "cancelled"
"""The error of a request whose client disconnected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A child server's end: its model, the model asked for, the texts that were lost."""

    model: str
    asked: str
    held: tuple[Sequence[Token], ...]


@dataclass(slots=True, kw_only=True)
class ServerContext:
    """The server's mutable state (upstream: `server_context_impl`)."""

    rules: ServerRules
    options: Options
    network: Network
    contexts: Contexts
    seq_rm_type: SeqRm
    n_swa: int  # 0 without a window, and with `swa_full` since #22288
    can_shift: bool
    media: set[Tokens] = field(default_factory=set, kw_only=True)  # images of all requests
    slots: list[Slot]
    cache: PromptCache | None
    lora: Strengths = ()  # of requests without their own (upstream: `params_base.lora_adapters`)
    drafter: Drafter | None = None
    companion_type: SeqRm = SeqRm.NO
    queue: deque[Task] = field(default_factory=deque)
    deferred: deque[Task] = field(default_factory=deque)
    events: EventLog = field(default_factory=EventLog)
    replies: dict[int, list[Reply]] = field(default_factory=dict)
    ended: Ended | None = None  # the child of the same model before this one
    now: int = 0  # logical time: one tick per release
    n_empty_consecutive: int = 0
    given_up: list[Ticket] = field(default_factory=list)  # calls whose reply was an error
    next_task: int = 0
    brief: bool = False  # without events of prompt-cache entries that share nothing with a prompt
    most_turns: int = field(init=False)  # maximum decode steps run as one
    n_batch: int = field(init=False)  # the options', stored for speed
    n_ubatch: int = field(init=False)
    is_exact: bool = field(init=False)  # a state is usable only at the position it was saved at
    shifts_context: bool = field(init=False)  # context shift is on, and the memory supports it
    may_draft: bool = field(init=False)  # a companion or n-grams propose tokens
    adapters: Adapted | None = field(init=False)  # adapters of the network, whose strengths are set

    def __post_init__(self) -> None:
        options = self.options
        self.n_batch, self.n_ubatch = options.n_batch, options.n_ubatch
        self.most_turns = 1 if self.contexts.target.computes else 1 << 30
        # FULL and RS: recurrent and hybrid memories, whose state fits one position alone.
        self.is_exact = self.seq_rm_type in {SeqRm.FULL, SeqRm.RS}
        self.shifts_context = options.context_shift and self.can_shift
        ngrams = options.maps_ngrams or options.spec_type == CACHED
        self.may_draft = self.drafter is not None or ngrams
        self.adapters = adapted_in(self.network)

    @property
    def is_busy(self) -> bool:
        """True while a slot is processing."""
        for slot in self.slots:  # noqa: SIM110 - a generator takes longer than the states
            if slot.state is not SlotState.IDLE:
                return True
        return False

    @property
    def no_logits(self) -> Array:
        """The logits of a reply without tokens."""
        return np.empty((0, 0))

    def take_number(self) -> int:
        """The id of a new task."""
        self.next_task += 1
        return self.next_task - 1

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def prompt_clear(self, slot: Slot) -> None:
        """Clear a slot's memory and tokens (upstream: `server_slot::prompt_clear`)."""
        self.emit(PromptCleared(slot=slot.id, n_tokens=slot.prompt.n_tokens))
        self.contexts.seq_rm(slot.id, -1, -1)
        slot.prompt.tokens.clear()
        slot.prompt.approximate = None
        # Older releases keep the checkpoints. The next prompt erases them, except at position 0.
        if self.rules.slots.clear_drops_checkpoints:
            slot.prompt.checkpoints.clear()

    def release(self, slot: Slot, stop: str) -> None:
        """Release a slot from its request (upstream: `server_slot::release`)."""
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
        # Errors count too: a refused request makes its slot the most recently used one.
        slot.t_last_used = self.now
        self.now += 1
        slot.move(SlotState.IDLE)
        # Its tokens are a copy of its parent's.
        if task.is_child:
            self.prompt_clear(slot)
        slot.reset()
        # Older releases keep the number: an empty prompt then reports the one of the request before
        # it.
        if self.rules.slots.processed_is_reset:
            slot.n_prompt_tokens_processed = 0
        slot.task = None
        if not self.deferred:
            return
        # The oldest that is pinned to this slot, else the oldest of all; it goes before new
        # requests.
        pinned = (task for task in self.deferred if task.id_slot == slot.id)
        task = next(pinned, self.deferred[0])
        self.deferred.remove(task)
        self.queue.appendleft(task)

    def answer(self, task: Task, slot: Slot | None, reply: Reply) -> None:
        """Store a reply under its ticket; a parent's comes before its children's."""
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
        # A disconnected client's reply still reports its cached tokens, other errors none.
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
"""`</s>` and `<|im_end|>` of the simulated vocabulary."""


def next_token(server: ServerContext, slot: Slot, row: Array, *, ahead: int = 0) -> Token:
    """The forced token of a reply, or the greedy one, `ahead` tokens after the generated ones."""
    reply, index = slot.running.params.reply, len(slot.generated) + ahead
    if reply is not None and index < len(reply):
        return reply[index]
    return server.network.sample(row)


def process_token(server: ServerContext, slot: Slot, token: Token, row: Array) -> bool:
    """Store a token; False if it ended the request (upstream: `process_token`)."""
    slot.generated.append(token)
    slot.rows.append(row)
    slot.sampled = token
    stop = stop_reason(server, slot, token)
    if stop:
        server.finish(slot, stop)
    return not stop


def stop_reason(server: ServerContext, slot: Slot, token: Token) -> str:
    """The reason to stop after this token, in upstream's order; empty without one."""
    # Without context shift the next token finds no place, though it has been sampled.
    if not server.shifts_context and len(slot.prompt.tokens) + 1 >= slot.n_ctx:
        slot.truncated = True
        return "limit"
    left = budget_left(server, slot)
    if left is not None and left <= 0:
        return "limit"
    params = slot.running.params
    # A forced reply may contain the token and continues after it.
    if token in END_OF_GENERATION and not params.ignore_eos and params.reply is None:
        return "eos"
    return ""


def budget_left(server: ServerContext, slot: Slot) -> int | None:
    """Number of tokens left to generate; None without a limit (upstream: `has_budget`)."""
    params = slot.running.params
    # Trap: a number below -1 is a limit as well, and ends the reply with its first token.
    most = params.n_predict if params.n_predict != -1 else server.options.predict
    # Ours: the end of a forced reply ends the generation too.
    if params.reply is not None and not -1 != most < len(params.reply):
        most = len(params.reply)
    return None if most == -1 else most - len(slot.generated)


# Adapters (LoRA) of llama-server, per request and for the whole server.
#
# Traps, observed on b9093, b9538 and b11549 alike. A request without `lora` uses the server's own
# set and keeps the tokens of its slot. So does a request whose set equals that of the slot's last
# request, although a prompt loaded into the slot since then was computed under another set. Neither
# the prompt cache nor slot files record adapters, and `POST /lora-adapters` clears nothing.


def parse_lora(given: object, names: Sequence[str]) -> Strengths | None:
    """Parse a set as the HTTP side does (upstream: `parse_lora_request`); None if it is empty.

    Adapters that are not named have strength 0. Trap: an empty list is the same as none.
    """
    if not isinstance(given, list | tuple) or not all(
        isinstance(adapter, Mapping) for adapter in given
    ):
        msg = "request field 'lora' is no list of tables; write [{ id = 0, scale = 1.0 }]"
        raise OptionError(msg)
    strengths = [0.0] * len(names)
    for adapter in given:
        number, scale = adapter.get("id"), adapter.get("scale", 0.0)
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(names):
            known = f"ids from 0 to {len(names) - 1}" if names else "no adapters: set option 'lora'"
            msg = f"request field 'lora' names adapter {number!r}; the server has {known}"
            raise OptionError(msg)
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise OptionError(
                f"request field 'lora': the scale of adapter {number} is {scale!r}; write a number"
            )
        strengths[number] = float(scale)
    return tuple(strengths) if given else None


def take_over(server: ServerContext, slot: Slot, task: Task) -> None:
    """Set a slot's adapters to its task's (upstream: `launch_slot_with_task`)."""
    wanted = task.params.lora
    # Trap: no field, no check: the slot keeps tokens of whatever adapters computed them.
    if wanted is None:
        slot.lora = server.lora
        return
    # Trap: compared with the slot's last request; a prompt loaded since then may have another set.
    if wanted == slot.lora:
        return
    server.emit(
        AdaptersChanged(slot=slot.id, task=task.id, n_tokens=slot.prompt.n_tokens, lora=wanted)
    )
    task.ledger.apply(causes.ADAPTERS_CHANGED, 0, slot=int(slot.id))
    # Tokens go now, their cells when the prompt starts and nothing of them matches.
    slot.prompt.tokens.clear()
    slot.prompt.approximate = None
    # Older releases keep the checkpoints of the other adapters.
    if server.rules.slots.clear_drops_checkpoints:
        slot.prompt.checkpoints.clear()
    slot.lora = wanted


def set_lora(server: ServerContext, task: Task) -> None:
    """Set the adapters of requests without any (`SERVER_TASK_TYPE_SET_LORA`)."""
    server.lora = task.strengths
    server.emit(AdaptersSet(lora=task.strengths))


def apply_lora(server: ServerContext, strengths: Strengths) -> None:
    """Set the adapters of the next decode (upstream: `common_set_adapter_lora`)."""
    if server.adapters is not None:
        server.adapters.strengths = strengths


def as_field(strengths: Sequence[float]) -> list[dict[str, Any]]:
    """Strengths as a field of a request."""
    return [{"id": number, "scale": scale} for number, scale in enumerate(strengths)]


MEBIBYTE = 1 << 20
RESERVE = "llama_context::graph_reserve"


def open_server(rules: ServerRules, network: Network, options: Options) -> ServerContext:
    """Start a server with a loaded model (upstream: `load_model` and `init`)."""
    if rules.loop.reserve_aborts:
        check_reserve(options)
    # Of the drafters only an MTP head makes the target keep planes for a rollback.
    n_rs_seq = options.spec_draft_n_max if options.spec_type == "draft-mtp" else 0
    params = context_params(options, n_rs_seq)
    target = create_context(network, params, rules.memory)
    lora = (1.0,) * len(options.adapters)
    slots = [Slot(number, options.n_ctx_slot) for number in range(options.n_parallel)]
    for slot in slots:
        slot.lora = lora
    drafter = open_drafter(options, params, network, rules)
    return ServerContext(
        rules=rules,
        options=options,
        network=network,
        contexts=Contexts(
            target,
            None if drafter is None else drafter.context,
            saves_companion=rules.slots.companion_is_saved,
            refused_cut_aborts=rules.loop.refused_cut_aborts,
        ),
        seq_rm_type=seq_rm_type(target),
        n_swa=n_swa(options, rules, network),
        can_shift=target.can_shift,
        slots=slots,
        lora=lora,
        cache=open_prompt_cache(options, rules),
        drafter=drafter,
        companion_type=SeqRm.NO if drafter is None else drafter.seq_rm_type,
    )


def check_reserve(options: Options) -> None:
    """Refuse flags with which the real process aborts at its start (`graph_reserve`)."""
    slots = options.n_parallel
    # A batch has a token of every slot; the largest graph does not fit its outputs otherwise.
    if options.n_batch < slots:
        why = f"{options.n_batch} tokens of a batch for {slots} slots (n_outputs_max)"
        raise UpstreamAbort(RESERVE, why)
    averages = options.embedding and options.pooling == "mean"
    # Averaged embeddings need equal numbers of tokens of all slots in an ubatch.
    if averages and options.n_ubatch % slots:
        why = f"--pooling mean: {slots} slots do not divide an ubatch of {options.n_ubatch} tokens"
        raise UpstreamAbort(RESERVE, f"{why} (ggml_can_mul_mat)")


def context_params(options: Options, n_rs_seq: int = 0) -> ContextParams:
    """The parameters of a context."""
    return ContextParams(
        n_ctx=Count(options.context),
        n_batch=options.batch,
        n_ubatch=options.ubatch_size,
        n_seq_max=options.n_parallel,
        kv_unified=options.unified,
        swa_full=options.swa_full,
        n_rs_seq=n_rs_seq,
        type_k=options.cache_type_k,
        type_v=options.cache_type_v,
    )


def n_swa(options: Options, rules: ServerRules, network: Network) -> int:
    """The server's window."""
    # #22288: with `--swa-full` the depth test does not count the window.
    hidden = options.swa_full and rules.reuse.swa_full_hides_window
    return 0 if hidden else window_of(network)


def window_of(network: Network) -> int:
    """The model's sliding window; 0 without one."""
    windowed = any(shape.place == "window" for shape in network.shapes)
    return network.spec.window if windowed else 0


def open_prompt_cache(options: Options, rules: ServerRules) -> PromptCache | None:
    """The prompt cache of `--cache-ram`; None for 0."""
    # Trap: -1 lifts the limit of bytes only; the tokens stay limited to the context.
    if options.cache_ram == 0:
        return None
    limit = max(0, options.cache_ram) * MEBIBYTE
    return PromptCache(rules.cache, limit_size=limit, limit_tokens=options.n_ctx)
