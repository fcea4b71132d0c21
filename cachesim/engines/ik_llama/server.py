"""ik_llama.cpp's server: one turn of `update_slots` at a time."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from cachesim.engines.base import ByteStore, Engine, Reply, Request, Ticket
from cachesim.engines.events import Event, EventLog
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.engines.ik_llama import causes, events
from cachesim.engines.ik_llama.batching import Batching
from cachesim.engines.ik_llama.checkpointing import Checkpointing
from cachesim.engines.ik_llama.companion import (
    AttentionCompanion,
    Companion,
    StrictTailCompanion,
    WindowCompanion,
)
from cachesim.engines.ik_llama.context import Context
from cachesim.engines.ik_llama.held import amounts, held
from cachesim.engines.ik_llama.held import texts as texts_held
from cachesim.engines.ik_llama.matching import texts
from cachesim.engines.ik_llama.options import Options
from cachesim.engines.ik_llama.prepare import Preparation
from cachesim.engines.ik_llama.prompt_cache import PromptCache
from cachesim.engines.ik_llama.rules import Rules
from cachesim.engines.ik_llama.selection import Selection
from cachesim.engines.ik_llama.slot import GONE, Command, Slot, State
from cachesim.engines.ik_llama.slot_actions import SlotActions
from cachesim.engines.ik_llama.snapshot import books, snapshot
from cachesim.engines.ik_llama.speculative import Speculation
from cachesim.engines.ledger import Ledger
from cachesim.engines.rope import as_rope
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import ContractError, OptionError, TokenError
from cachesim.units import Count, SeqId, SlotId


class IkLlama(Engine):
    """The server: slots, one primary context, at most one companion, the RAM prompt cache.

    Upstream: `server_context`.
    """

    def _open(self, rules: Rules, options: Options, store: ByteStore | None) -> None:
        self.rules, self.options = rules, options
        opts, text_of = options, texts(options.chat_template)
        self._record = EventLog()
        self._replies: dict[Ticket, Reply] = {}
        self._queue: deque[tuple[Ticket, Request]] = deque()
        self._deferred: deque[tuple[Ticket, Request]] = deque()
        self._clock = 0
        self._next_ticket = 0
        self.primary = Context(
            self.network,
            n_ctx=opts.ctx_size,
            n_ubatch=min(opts.ubatch_size, opts.batch_size),
            n_seq_max=opts.parallel,
        )
        self.companion = self._companion()
        per_slot = Count(opts.ctx_size // opts.parallel)
        self.slots = [Slot(id=SlotId(i), n_ctx=per_slot) for i in range(opts.parallel)]
        limit = None if opts.cache_ram < 0 else opts.cache_ram << 20
        self.cache = PromptCache(limit=limit, text_of=text_of, tags=opts.tags)
        self.selection = Selection(self.rules, opts, self.primary, self.cache, self._record)
        self.checkpointing = Checkpointing(self.rules, opts, self.primary, self._record)
        preparation = Preparation(
            self.rules, self.primary, text_of, self._record, opts.cache_ram_n_min
        )
        self.speculation = Speculation(self.rules, opts, self.primary, self.companion, self._record)
        self.batching = Batching(self, preparation)
        self.actions = SlotActions(self, store)

    def _companion(self) -> Companion | None:
        opts = self.options
        match opts.companion:
            case "none":
                return None
            case "strict_tail":
                return StrictTailCompanion()
            case "window":
                return WindowCompanion(window=opts.companion_window, n_ubatch=opts.ubatch_size)
        head = self.network.companion()
        if head is None:
            msg = (
                f"option 'companion' is 'attn', but model {self.network.spec.name!r} has no MTP "
                "head; use a model with mtp_depth 1, such as hybrid-mtp"
            )
            raise OptionError(msg)
        return AttentionCompanion(head, n_ctx=opts.ctx_size, n_ubatch=opts.ubatch_size)

    # -- the outside -------------------------------------------------------------------------

    @property
    def events(self) -> Sequence[Event]:
        return self._record

    def record(self, event: Event) -> None:
        """Note one thing that happened."""
        self._record.append(event)

    def submit(self, request: Request) -> Ticket:
        vocabulary = self.network.spec.vocabulary
        names = as_rope(request.prompt) is not None  # of tokens, which no network looks up
        for token in () if names else request.prompt:
            if not 0 <= token < vocabulary:
                msg = f"token {token} is outside the vocabulary 0..{vocabulary - 1}"
                raise TokenError(msg)
        if not request.prompt:
            msg = "the prompt is empty: write at least one token"
            raise TokenError(msg)
        self._fields(request)
        ticket = self._ticket()
        self._queue.append((ticket, request))
        return ticket

    def slot_save(self, slot: int, name: str) -> Ticket:
        """Write an idle slot under a name."""
        return self._act(lambda ticket: self.actions.save(self._slot(slot), name, ticket))

    def slot_restore(self, slot: int, name: str) -> Ticket:
        """Read a slot back."""
        return self._act(lambda ticket: self.actions.restore(self._slot(slot), name, ticket))

    def slot_erase(self, slot: int) -> Ticket:
        """Forget a slot."""
        return self._act(lambda ticket: self.actions.erase(self._slot(slot), ticket))

    def _slot(self, index: int) -> Slot:
        return self.slots[index % len(self.slots)]

    def _act(self, action: Callable[[Ticket], Reply]) -> Ticket:
        self.run()  # upstream defers an action while the slot is busy
        ticket = self._ticket()
        self._replies[ticket] = action(ticket)
        return ticket

    def _ticket(self) -> Ticket:
        ticket = Ticket(self._next_ticket)
        self._next_ticket += 1
        return ticket

    def reply(self, ticket: Ticket) -> Reply | None:
        return self._replies.get(ticket)

    def forget(self, ticket: Ticket) -> None:
        self._record.clear()
        self._replies.pop(ticket, None)

    def cancel(self, ticket: Ticket) -> None:
        """The client goes away: a generating slot is released, a prefilling one goes on.

        What still waits is forgotten. The reply says `cancelled`.
        """
        message = "the client went away"
        for waiting in (self._queue, self._deferred):
            for entry in [each for each in waiting if each[0] == ticket]:
                waiting.remove(entry)
                prompt = entry[1].prompt
                self._replies[ticket] = Reply.empty(prompt, error=GONE, message=message)
        for slot in self.slots:
            if slot.ticket == ticket and slot.state is State.PROCESSING:
                self.finish(slot, GONE, message)
        if self.rules.stop_flag_stays and ticket in self._replies:
            self.primary.stopped = True  # Trap: nothing is decoded that could stop

    def step(self) -> bool:
        while self._queue:
            ticket, request = self._queue.popleft()
            self._process_task(ticket, request)
        self._release_marked()
        if all(slot.available for slot in self.slots):
            return bool(self._queue)
        self.batching.update()
        return True

    def _release_marked(self) -> None:
        for slot in self.slots:
            if slot.command is Command.RELEASE:
                slot.state, slot.command = State.IDLE, Command.NONE
                self._clock += 1
                slot.t_last_used = self._clock
                self.record(
                    events.SlotReleased(
                        slot=slot.id,
                        task=slot.id_task,
                        n_tokens=len(slot.cache_tokens),
                        truncated=slot.truncated,
                    )
                )
                self._queue.extend(self._deferred)
                self._deferred.clear()

    # -- tasks -------------------------------------------------------------------------------

    def _process_task(self, ticket: Ticket, request: Request) -> None:
        """Choose a slot and launch (`process_single_task`)."""
        ledger = self._ledger(request)
        if request.slot >= 0:
            named = self.slots[request.slot % len(self.slots)]
            slot = named if named.available else None
            if slot is not None:
                self.record(events.SlotSelected(slot=named.id, task=ticket, by="id"))
        else:
            slot = self.selection.choose(self.slots, request.prompt)
        if slot is None:
            self.record(events.TaskDeferred(task=ticket))
            self._deferred.append((ticket, request))
            return
        in_slot = get_common_prefix(slot.cache_tokens, request.prompt)
        moved_out = slot.list_moved_out and not slot.cache_tokens
        cause = causes.LIST_MOVED_OUT if moved_out else causes.SLOT_TOKENS
        ledger.apply(cause, in_slot, slot=slot.id)
        slot.ledger = ledger
        self._launch(slot, ticket, request)

    def _ledger(self, request: Request) -> Ledger:
        best, where = Count(0), "nothing"
        held = [(f"slot {slot.id}", slot.cache_tokens) for slot in self.slots]
        held += [(f"prompt cache entry {i}", e.tokens) for i, e in enumerate(self.cache.entries)]
        for name, tokens in held:
            equal = get_common_prefix(tokens, request.prompt)
            if equal > best:
                best, where = equal, name
        return Ledger(best, where)

    def _launch(self, slot: Slot, ticket: Ticket, request: Request) -> None:
        slot.reset(self.rules.interval_starts_at)
        slot.ticket, slot.request = ticket, request
        slot.prompt_tokens = list(request.prompt)
        asked = request.options or {}
        slot.n_keep = asked.get("n_keep", slot.n_keep)
        self.primary.ubatches_left = asked.get("cancel_after_ubatches")
        slot.command = Command.LOAD_PROMPT
        self.checkpointing.launched()

    def finish(self, slot: Slot, error: str | None = None, message: str = "") -> None:
        """Answer and mark the slot for release."""
        self._replies.setdefault(slot.id_task, slot.reply(error, message))
        if slot.state is State.PROCESSING:
            slot.command = Command.RELEASE

    # -- what it holds -----------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self)

    def books(self) -> dict[str, Any]:
        return books(self)

    def held(self) -> Held:
        return held(self)

    def texts(self) -> Texts:
        return texts_held(self)

    def amounts(self) -> Amounts:
        return amounts(self)

    def check_integrity(self) -> None:
        self.primary.cells.check_integrity()
        for slot in self.slots:
            held = len(self.primary.cells.of(SeqId(slot.id))) - slot.stray
            if slot.available and not self.primary.recurrent and held > len(slot.cache_tokens):
                msg = f"slot {slot.id}: {held} cells for {len(slot.cache_tokens)} tokens"
                raise ContractError(msg)
