"""ik_llama.cpp's server: one iteration of `update_slots` at a time."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from cachesim.engines.base import ByteStore, Engine, Reply, Request, Ticket
from cachesim.engines.causes import Ledger
from cachesim.engines.events import Event, EventLog
from cachesim.engines.held import Amounts, Held, Texts
from cachesim.engines.ik_llama import vocabulary
from cachesim.engines.ik_llama.context import CANCELLED, BatchToken, Checkpoint, Context, Decoded
from cachesim.engines.ik_llama.observe import (
    amounts,
    books,
    check_companion,
    check_slots,
    held,
    snapshot,
)
from cachesim.engines.ik_llama.observe import texts as texts_held
from cachesim.engines.ik_llama.options import Options
from cachesim.engines.ik_llama.prepare import Preparation, Selection
from cachesim.engines.ik_llama.rules import Rules
from cachesim.engines.ik_llama.slot import (
    GONE,
    Command,
    PromptCache,
    SavedSlot,
    Slot,
    State,
    common_prefix,
    decode,
    discard,
    encode,
    texts,
)
from cachesim.engines.ik_llama.speculative import (
    AttentionCompanion,
    Companion,
    Speculation,
    StrictTailCompanion,
    WindowCompanion,
)
from cachesim.engines.tokens import as_rope, get_common_prefix
from cachesim.errors import BlobError, OptionError, TokenError, UpstreamAbort
from cachesim.units import Array, Count, Pos, SeqId, SlotId, Token

UNUSED: Final = Ticket(-1)
"""The task of a slot that had none, and is released with the others (`_release_all`)."""


class Checkpointing:
    """Checkpoints, only of models with recurrent rows; one switch for all slots.

    Upstream: `create_checkpoint`.
    """

    def __init__(
        self, rules: Rules, options: Options, primary: Context, record: list[Event]
    ) -> None:
        self._rules = rules
        self._options = options
        self._primary = primary
        self._record = record
        self.enabled = False

    def launched(self) -> None:
        """Set the switch by --ctx-checkpoints, when a completion is launched."""
        # Dense models never save any: their cells can be cut anywhere.
        if self._primary.hybrid or self._primary.recurrent:
            self.enabled = self._options.ctx_checkpoints > 0

    @property
    def tolerance(self) -> int:
        """Distance of a prefill's stop from the prompt's end, in tokens."""
        return self._options.ctx_checkpoints_tolerance

    def after_prefill(self, slot: Slot) -> None:
        """Save a checkpoint after a prefill batch: at the tolerance point, else by the interval."""
        # The batch was cut at the tolerance point, so this is the state just before the prompt's
        # end.
        if slot.do_checkpoint:
            self.create(slot)
        else:
            self.by_interval(slot)

    def after_sample(self, slot: Slot) -> None:
        """Save a checkpoint after a step without drafts (the first one: without tolerance
        point).
        """
        # Without a tolerance point the whole prompt is saved, when its first token is sampled.
        if slot.n_decoded == 1 and self.tolerance <= 0:
            self.create(slot)
        # Trap: steps with drafts never get here, so a reply with drafts gets no checkpoint until
        # its end.
        if slot.n_decoded > 1:
            self.by_interval(slot)

    def by_interval(self, slot: Slot) -> None:
        """Save a checkpoint every `interval` positions, checked once a batch."""
        interval = self._options.ctx_checkpoints_interval
        # 0 or less switches it off.
        if interval <= 0:
            return
        last = self._primary.cells.seq_pos_max(SeqId(slot.id))
        # Trap: `checkpoint_pos` starts at 0, whatever was saved at the tolerance point, so the
        # second sampled token of a longer prompt is saved too.
        reached = last + 1 if self._rules.interval_counts_tokens else last
        if slot.checkpoint_pos + interval <= reached and self.create(slot):
            slot.checkpoint_pos = last

    def create(self, slot: Slot) -> bool:
        """Save the sequence's current state, if all conditions hold (`create_checkpoint`)."""
        seq = SeqId(slot.id)
        pos_min = self._primary.cells.seq_pos_min(seq)
        n_tokens = Count(len(slot.cache_tokens))
        behind = bool(slot.checkpoints) and n_tokens <= slot.checkpoints[-1].n_tokens
        # Nothing is saved that does not reach beyond the newest checkpoint.
        if not self.enabled or pos_min < 0 or n_tokens < self._rules.minimum or behind:
            return False
        pos_max = self._primary.cells.seq_pos_max(seq)
        while len(slot.checkpoints) >= self._options.ctx_checkpoints:
            index = evicted_index(
                slot.checkpoints,
                self._options.ctx_checkpoints_eviction,
                keeps_earliest=self._rules.keeps_earliest,
            )
            erased = slot.checkpoints.pop(index)
            self._record.append(
                vocabulary.CheckpointErased(
                    slot=slot.id,
                    task=slot.id_task,
                    pos_max=erased.pos_max,
                    n_tokens=erased.n_tokens,
                    because="the list is full",
                )
            )
        checkpoint = Checkpoint(
            pos_min=pos_min,
            # By position in the memory, and by position in the prompt: the two differ where the
            # same text has other token boundaries.
            pos_max=pos_max,
            pos_min_prompt=Pos(pos_min + slot.n_past_offset),
            pos_max_prompt=Pos(pos_max + slot.n_past_offset),
            n_tokens=n_tokens,
            made_by=slot.id_task,
            # Partial: without keys and values, which are expected to be in the same cells at the
            # restore.
            state=self._primary.save(seq, partial=True),
        )
        slot.checkpoints.append(checkpoint)
        self._record.append(
            vocabulary.CheckpointCreated(
                slot=slot.id, task=slot.id_task, **checkpoint.as_dict(), size=checkpoint.size
            )
        )
        return True


def evicted_index(checkpoints: list[Checkpoint], policy: str, *, keeps_earliest: bool) -> int:
    """The index of the checkpoint to evict from a full list (#2020)."""
    count = len(checkpoints)
    if policy == "fifo":
        # #1877: the earliest checkpoint serves every prompt with this start.
        return 1 if keeps_earliest and count > 1 else 0
    if count < 3:
        return 0
    if count == 3:
        return 1
    # `variance` (#2020): the first and the last stay, the interior one with the closest neighbours
    # goes, the first of equals.
    at = [checkpoint.pos_max for checkpoint in checkpoints]
    return min(
        range(1, count - 1), key=lambda i: (at[i] - at[i - 1]) * (at[i + 1] - at[i]) / at[-1]
    )


class IkLlama(Engine):
    """The server: slots, one primary context, at most one companion, the RAM prompt cache.

    Upstream: `server_context`.
    """

    def _open(self, rules: Rules, options: Options, store: ByteStore | None) -> None:
        self.rules, self.options = rules, options
        opts, text_of = options, texts(options.chat_template)
        self._record = EventLog()
        self._store = store
        self._batch: list[BatchToken] = []
        self._replies: dict[Ticket, Reply] = {}
        self._queue: deque[tuple[Ticket, Request]] = deque()
        self._deferred: deque[tuple[Ticket, Request]] = deque()
        self._clock = 0
        self._next_ticket = 0
        self._clean_kv_cache: bool | None = None  # None: no task yet, and not idle either
        self.primary = Context(
            self.network,
            n_ctx=opts.n_ctx,
            n_ubatch=min(opts.ubatch_size, opts.n_batch),
            n_seq_max=opts.parallel,
        )
        self.companion = self._companion()
        per_slot = Count(opts.n_ctx_slot)
        self.slots = [Slot(id=SlotId(i), n_ctx=per_slot) for i in range(opts.parallel)]
        limit = None if opts.cache_ram < 0 else opts.cache_ram << 20
        self.cache = PromptCache(limit=limit, text_of=text_of, tags=opts.tags)
        self.selection = Selection(self.rules, opts, self.primary, self.cache, self._record)
        self.checkpointing = Checkpointing(self.rules, opts, self.primary, self._record)
        self.preparation = Preparation(
            self.rules, self.primary, text_of, self._record, opts.cache_ram_n_min
        )
        self.speculation = Speculation(self.rules, opts, self.primary, self.companion, self._record)

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
            raise OptionError(
                f"option 'companion' is 'attn', but model {self.network.spec.name!r} has no MTP "
                "head; use a model with mtp_depth 1, such as hybrid-mtp"
            )
        return AttentionCompanion(head, n_ctx=opts.n_ctx, n_ubatch=opts.ubatch_size)

    # -- interface ---------------------------------------------------------------------------

    @property
    def events(self) -> Sequence[Event]:
        return self._record

    def record(self, event: Event) -> None:
        self._record.append(event)

    def submit(self, request: Request) -> Ticket:
        vocabulary = self.network.spec.vocabulary
        names = as_rope(request.prompt) is not None  # token ids of a rope exceed every vocabulary
        for token in () if names else request.prompt:
            if not 0 <= token < vocabulary:
                raise TokenError(f"token {token} is outside the vocabulary 0..{vocabulary - 1}")
        if not request.prompt:
            raise TokenError("the prompt is empty: write at least one token")
        self._fields(request)
        ticket = self._ticket()
        self._queue.append((ticket, request))
        return ticket

    def slot_save(self, slot: int, name: str) -> Ticket:
        """Save an idle slot under a name."""
        return self._act(lambda ticket: self._save(self._slot(slot), name, ticket))

    def slot_restore(self, slot: int, name: str) -> Ticket:
        return self._act(lambda ticket: self._restore(self._slot(slot), name, ticket))

    def slot_erase(self, slot: int) -> Ticket:
        return self._act(lambda ticket: self._erase(self._slot(slot), ticket))

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
        """Cancel a request: a generating slot is released, a prefilling one continues."""
        message = "the client disconnected"
        # A queued request is removed; its reply has the error `cancelled`.
        for waiting in (self._queue, self._deferred):
            for entry in [entry for entry in waiting if entry[0] == ticket]:
                waiting.remove(entry)
                prompt = entry[1].prompt
                self._replies[ticket] = Reply.empty(prompt, error=GONE, message=message)
        for slot in self.slots:
            # Trap: upstream's release acts on a generating slot only.
            if slot.ticket == ticket and slot.state is State.PROCESSING:
                self.finish(slot, GONE, message)
        if self.rules.stop_flag_stays and ticket in self._replies:
            self.primary.stopped = True  # Trap: it stays set, as no decode is running

    def step(self) -> bool:
        while self._queue:
            ticket, request = self._queue.popleft()
            self._process_task(ticket, request)
        for slot in self.slots:
            if slot.command is Command.RELEASE:
                slot.state, slot.command = State.IDLE, Command.NONE
                self._clock += 1
                slot.t_last_used = self._clock
                self.record(
                    vocabulary.SlotReleased(
                        slot=slot.id,
                        task=UNUSED if slot.ticket is None else slot.ticket,
                        n_tokens=len(slot.cache_tokens),
                        truncated=slot.truncated,
                    )
                )
                # All deferred requests are tried again, in their order, not only the next one.
                self._queue.extend(self._deferred)
                self._deferred.clear()
        if all(slot.available for slot in self.slots):
            self._idle_at_first()
            return bool(self._queue)
        self._batch = []
        # Before the batch: a slot that is full now has no place for its sampled token.
        for slot in self._generating():
            self._shift(slot)
        # Sampled tokens and drafts come first; prompts get the rest of the batch.
        for slot in self._generating():
            slot.drafted = self.speculation.draft(slot)
            slot.i_batch = len(self._batch)
            self._append(slot, (slot.sampled, *slot.drafted), output=True)
        for slot in self.slots:
            if slot.prefilling:
                self._add_prompt(slot)
        if self._batch:
            self._process()
        return True

    def _idle_at_first(self) -> None:
        """Empty the memory, the first time that all slots are idle (`slots_idle`)."""
        # Usually nothing is there, as a server is idle before its first request. A client whose
        # connection has waited for the model to load may be faster. Trap: the token lists stay.
        if self._clean_kv_cache:
            self.primary.clear()
            self._clear_companion()
            for slot in self.slots:
                if slot.cache_tokens:
                    n_tokens = len(slot.cache_tokens)
                    self.record(
                        vocabulary.MemoryCleared(slot=slot.id, task=slot.id_task, n_tokens=n_tokens)
                    )
        self._clean_kv_cache = False

    # -- tasks -------------------------------------------------------------------------------

    def _process_task(self, ticket: Ticket, request: Request) -> None:
        """Choose a slot and launch (`process_single_task`)."""
        best, where = Count(0), "nothing"
        held = [(f"slot {slot.id}", slot.cache_tokens) for slot in self.slots]
        for name, tokens in held:
            equal = get_common_prefix(tokens, request.prompt)
            if equal > best:
                best, where = equal, name
        common = self.cache.common(request.prompt)
        entry = max(common, key=common.__getitem__, default=None)
        if entry is not None and common[entry] > best:
            best, where = common[entry], f"prompt cache entry {self.cache.entries.index(entry)}"
        ledger = Ledger(best, where)
        # Trap: a slot that the request names is taken as it is: nothing is saved, nothing is
        # loaded.
        if request.slot >= 0:
            named = self.slots[request.slot % len(self.slots)]
            slot = named if named.available else None
            if slot is not None:
                self.record(vocabulary.SlotSelected(slot=named.id, task=ticket, by="id"))
        else:
            slot = self.selection.choose(self.slots, request.prompt)
        if slot is None:
            self.record(vocabulary.TaskDeferred(task=ticket))
            self._deferred.append((ticket, request))
            return
        in_slot = get_common_prefix(slot.cache_tokens, request.prompt)
        moved_out = slot.list_moved_out and not slot.cache_tokens
        cause = vocabulary.LIST_MOVED_OUT if moved_out else vocabulary.SLOT_TOKENS
        ledger.apply(cause, in_slot, slot=slot.id)
        slot.ledger = ledger
        slot.reset(self.rules.interval_starts_at)
        slot.ticket, slot.request = ticket, request
        slot.prompt_tokens = list(request.prompt)
        options = request.options or {}
        # A request without the field keeps the number of the slot's request before.
        slot.n_keep = options.get("n_keep", slot.n_keep)
        self.primary.ubatches_left = options.get("cancel_after_ubatches")
        if self._clean_kv_cache is None:
            self._clean_kv_cache = options.get("before_first_idle", False)
        slot.command = Command.LOAD_PROMPT
        self.checkpointing.launched()

    def finish(self, slot: Slot, error: str | None = None, message: str = "") -> None:
        """Reply, and mark the slot for release."""
        self._replies.setdefault(slot.id_task, slot.reply(error, message))
        # A prefilling slot is not released here: upstream's `release` acts on generating ones
        # alone.
        if slot.state is State.PROCESSING:
            slot.command = Command.RELEASE

    def _generating(self) -> list[Slot]:
        return [
            slot
            for slot in self.slots
            if slot.state is State.PROCESSING and slot.command is Command.NONE
        ]

    # -- context shift -----------------------------------------------------------------------

    @property
    def _shifts(self) -> bool:
        """True if a full context is shifted: never on models with recurrent rows."""
        primary = self.primary
        return self.options.context_shift and not (primary.hybrid or primary.recurrent)

    def _shift(self, slot: Slot) -> None:
        """Discard tokens of a full context (`context_shift`).

        [0, keep)              stays
        [keep, keep + drop)    removed
        [keep + drop, n_past)  moved down by `drop`
        """
        # One place stays free for the token that is decoded next.
        if slot.n_past < slot.n_ctx - 1:
            return
        if not self._shifts:
            slot.truncated = True
            self.finish(slot, "server_error", "context shift is disabled")
            return
        # A negative number keeps the whole prompt.
        keep = len(slot.prompt_tokens) if slot.n_keep < 0 else slot.n_keep
        keep = min(keep, slot.n_ctx - 4)
        drop = (slot.running.options or {}).get("n_discard", 0) or (slot.n_past - keep) // 2
        # Trap: if the prompt is shorter than `keep`, the block reaches from its end over the
        # slot's: the memory loses the tokens after `keep`, the list none of them.
        kept, from_cache = self._in_cache(slot, keep, drop)
        self._discard(slot, kept, from_cache, end=slot.n_past)
        slot.n_past -= from_cache
        slot.n_kept_prompt, slot.n_discarded_prompt = keep, slot.n_discarded_prompt + drop
        slot.truncated = True
        slot.shifted = self._drops_tokens(slot)  # else an error of the release, not by design
        if slot.shifted:
            slot.approximate = kept if slot.approximate is None else min(kept, slot.approximate)
        self.record(
            vocabulary.ContextShifted(
                slot=slot.id,
                task=slot.id_task,
                n_keep=keep,
                n_discard=drop,
                n_past=slot.n_past,
                removed=from_cache,
            )
        )

    # -- batch -------------------------------------------------------------------------------

    def _append(self, slot: Slot, tokens: Iterable[Token], *, output: bool) -> None:
        start, seq = len(slot.cache_tokens), SeqId(slot.id)
        self._batch += [
            BatchToken(token, Pos(pos), seq, output) for pos, token in enumerate(tokens, start)
        ]
        slot.cache_tokens += tokens
        slot.n_past = len(slot.cache_tokens)

    def _add_prompt(self, slot: Slot) -> None:
        """Add a part of a prompt to the batch (`batch_pending_prompt`).

        Upstream's loop appends one token at a time, and checks after each.
        """
        if not slot.prepared and not self._prepare(slot):
            return
        slot.n_past = max(slot.n_past, 0)
        del slot.cache_tokens[slot.n_past :]
        # Remove [p0, end) on both contexts before every pass: the reset site (#1860, #1889).
        p0 = len(slot.cache_tokens)
        seq = SeqId(slot.id)
        primary = self.primary.cells.seq_rm(seq, p0, -1)
        companion: bool | None = None
        # A later release trims the companion only after the primary; before, both are tried.
        if self.companion is not None and (primary or self.rules.trims_companion_always):
            companion = self.companion.seq_rm(p0, -1)
        self.record(
            vocabulary.SequenceTrimmed(
                slot=slot.id, task=slot.id_task, p0=p0, primary=primary, companion=companion
            )
        )
        # #1889: a companion that refuses loses its own content, and the primary's match stays.
        if primary and companion is False and self.rules.companion_reset == "companion only":
            self._clear_companion()
            self.record(vocabulary.CompanionReset(slot=slot.id, task=slot.id_task, p0=p0))
        # #1860: one refusal is enough to drop everything, a state restored just before too.
        elif not primary or companion is False:
            self.primary.cells.seq_rm(SeqId(slot.id), -1, -1)
            self._clear_companion()
            slot.cache_tokens.clear()
            slot.shifted, slot.approximate = False, None
            slot.n_past = slot.n_past_prompt = slot.n_past_offset = 0
            slot.n_kept_prompt = slot.n_discarded_prompt = 0
            slot.n_prompt_tokens_cache = 0
            slot.checkpoints.clear()
            who = "companion" if primary else "primary"
            slot.ledger.apply(vocabulary.FULL_RESET, 0, p0=p0, who=who)
            self.record(vocabulary.FullReset(slot=slot.id, task=slot.id_task, p0=p0))
        n_batch = self.options.n_batch
        prompt, checkpointing = slot.prompt_tokens, self.checkpointing
        start = slot.n_past_prompt
        # Other slots' tokens take their room first.
        end = max(start, min(len(prompt), start + n_batch - len(self._batch)))
        # The state is saved `tolerance` tokens before the end. Trap: the test follows the token, so
        # a pass that starts at that point or after it never stops there.
        saves_at = len(prompt) - checkpointing.tolerance
        if checkpointing.enabled and start < saves_at <= end:
            end, slot.do_checkpoint = saves_at, True
        if end > start:
            self._append(slot, prompt[start:end], output=False)
        slot.n_past_prompt = end
        slot.n_prompt_tokens_processed += end - start
        if slot.n_past_prompt == len(prompt):
            slot.state, slot.command = State.PROCESSING, Command.NONE
            slot.i_batch = len(self._batch) - 1
            last = self._batch[-1]
            self._batch[-1] = last._replace(output=True)

    def _prepare(self, slot: Slot) -> bool:
        if len(slot.prompt_tokens) >= slot.n_ctx:
            if self._shifts:
                self._truncate(slot)
                if len(slot.prompt_tokens) >= slot.n_ctx:  # Trap: n_keep leaves nothing to drop
                    where = "server_context::batch_pending_prompt"
                    raise UpstreamAbort(where, "GGML_ASSERT(slot.n_prompt_tokens < slot.n_ctx)")
            else:
                # Trap: the slot is not released. Its prefill continues from position 0, without
                # `apply_checkpoint`: checkpoints of the former prompt stay.
                slot.prepared = True
                if self.rules.releases_refused:
                    slot.state = State.PROCESSING
                message = "the request exceeds the available context size"
                self.finish(slot, "server_error", message)
                slot.n_past = slot.n_past_prompt = 0
                return False
        else:
            slot.n_discarded_prompt = 0
        self.preparation.prepare(slot)
        return True

    def _truncate(self, slot: Slot) -> None:
        """Drop whole blocks after n_keep until the prompt fits (`context_shift_prompt`).

        slot     [128 ................ 325)            it was shifted by 128
        prompt   [0 ............................ 426)  loses three blocks of 64
        kept             [192 ........ 325)            the slot loses one: the two agree again
        """
        keep = max(0, slot.n_keep)
        block = (slot.running.options or {}).get("n_discard", 0) or (slot.n_ctx - keep) // 2
        slot.truncated = True
        if block <= 0:
            return
        dropped = 0
        while len(slot.prompt_tokens) - dropped >= slot.n_ctx:
            dropped += block
        # The memory loses one block (`context_shift_find_n_tokens`), however many the prompt loses.
        kept, from_cache = self._in_cache(slot, keep, block)
        from_cache = min(from_cache, max(len(slot.cache_tokens) - kept, 0))
        if from_cache > 0:
            # Trap: `n_past` is 0 at this point, so the cells after the block are not moved: the
            # token list and the memory disagree from here on.
            self._discard(slot, kept, from_cache, end=0)
        slot.n_kept_prompt, slot.n_discarded_prompt = keep, dropped
        slot.prompt_tokens = list(discard(slot.prompt_tokens, keep, dropped))
        slot.ledger.apply(
            vocabulary.PROMPT_TRUNCATED, min(slot.ledger.usable, keep), dropped=dropped
        )

    def _in_cache(self, slot: Slot, keep: int, count: int) -> tuple[int, int]:
        """A range of the prompt, in tokens of the slot's list (`context_shift_find_n_tokens`)."""
        start, end = (
            common_prefix(slot.prompt_tokens[:n], slot.cache_tokens, self.cache.text_of)
            for n in (keep, keep + count)
        )
        # The two differ where the same text has other token boundaries.
        kept = start.right - (start.left - keep)
        taken = end.right - start.right - (end.left - (keep + count))
        return keep if kept < 0 else kept, count if taken < 0 else taken

    def _discard(self, slot: Slot, keep: int, count: int, *, end: int) -> None:
        """Remove [keep, keep + count), move the rest down (`discard_n_kv_and_cache_tokens`)."""
        seq = SeqId(slot.id)
        self.primary.cells.seq_rm(seq, keep, keep + count)
        if keep + count < end:
            self.primary.cells.seq_add(seq, keep + count, end, -count)
        if self.companion is not None:
            self.companion.seq_rm(keep, keep + count)
            if keep + count < end:
                self.companion.seq_add(keep + count, end, -count)
        # If the list keeps tokens that the memory lost, `n_past` is the list's length again after
        # the next token, so that every token causes a shift (an oddity until #2459).
        if self._drops_tokens(slot):
            slot.cache_tokens = list(discard(slot.cache_tokens, keep, count))

    def _drops_tokens(self, slot: Slot) -> bool:
        return slot.running.cache_prompt or self.rules.shift_always_drops_tokens

    def _clear_companion(self) -> None:
        if self.companion is not None:
            self.companion.seq_rm(0, -1)

    # -- decode ------------------------------------------------------------------------------

    def _process(self) -> None:
        """Decode the batch, halved as often as there is no room (`process_batch_tokens`)."""
        n_batch, first = self.options.n_batch, 0
        while first < len(self._batch):
            view = self._batch[first : first + n_batch]
            # States of single steps are kept only while a draft is verified.
            drafted = any(slot.drafted for slot in self.slots)
            decoded = self.primary.decode(view, keep_steps=self.speculation.steps if drafted else 0)
            if decoded.code == CANCELLED:
                self.primary.ubatches_left = None
                # Whole ubatches survive a disconnect: each list is cut to what is in memory.
                for slot in self.slots:
                    held = self.primary.cells.seq_pos_max(SeqId(slot.id)) + 1
                    del slot.cache_tokens[held:]
                    slot.n_past = len(slot.cache_tokens)
                # Every slot, not only the one whose client is gone.
                self._release_all(GONE, "the client disconnected")
                return
            if decoded.code:
                # These tokens are decoded again, into further cells; the first ones stay as they
                # are.
                for entry in view[: decoded.placed]:
                    self.slots[entry.seq].stray += 1  # decoded again, into further cells
                if n_batch == 1:  # token lists stay (an oddity)
                    self._release_all("server_error", "the context has no room for the batch")
                    return
                n_batch //= 2
                self.record(vocabulary.BatchRetried(n_batch=n_batch))
                continue
            self._handle(view, first, decoded)
            first += len(view)

    def _release_all(self, error: str, message: str) -> None:
        """Release every slot after a failed decode, idle ones too."""
        for slot in self.slots:
            idle = slot.available
            slot.state = State.PROCESSING
            # Trap: idle slots become the most recently used, in the order of their numbers, so the
            # next request without a similar slot goes to slot 0.
            if idle:
                slot.command = Command.RELEASE
            else:
                self.finish(slot, error, message)

    def _handle(self, view: list[BatchToken], first: int, decoded: Decoded) -> None:
        reading = any(
            slot.prefilling or slot.n_decoded == 0 for slot in self.slots if not slot.warmup_failed
        )
        fed = self.speculation.feed(view, decoded, reading=reading)
        # A later release: no drafts once the companion has refused a part of the prompt.
        if not fed and self.rules.warmup_failure_ends_drafts:
            self.slots[0].warmup_failed = True  # a companion serves one slot
        for slot in self.slots:
            if slot.prefilling:
                self.checkpointing.after_prefill(slot)
        for slot in self._generating():
            at = slot.i_batch - first
            if not 0 <= at < len(view):
                continue
            # An empty draft is verified as well; steps without drafts save checkpoints.
            if slot.drafting:
                slot.stray += max(0, at + len(slot.drafted) + 1 - len(view))
                kept, rows = self.speculation.accept(slot, decoded, at)
                slot.i_batch = -1
                self._emit_all(slot, kept, rows)
            else:
                slot.i_batch = -1
                logits = decoded.logits[at]
                token = self.speculation.target_token(slot, 0, logits)
                slot.n_decoded += 1
                self.checkpointing.after_sample(slot)
                self._emit(slot, token, logits)

    def _emit_all(self, slot: Slot, tokens: list[Token], rows: list[Array]) -> None:
        """Process the accepted tokens of a draft (`speculative_decoding_accept`).

        n_predict 16   12 tokens sent, then a draft of three is accepted: four more
        counted        12 + 4 = 16, the limit, before token 13 is sent
        reply          13 tokens; 14 and 15 stay in the slot's list, 16 is the sampled token
        """
        # Trap: until #2358 all of them are counted before the first one is sent. If that reaches
        # `n_predict`, the reply ends with the first, and the slot keeps the others.
        if self.rules.counts_whole_drafts:
            slot.n_decoded += len(tokens)
        for token, row in zip(tokens, rows, strict=True):
            if not self.rules.counts_whole_drafts:
                slot.n_decoded += 1
            self._emit(slot, token, row)
            if slot.command is Command.RELEASE:
                return

    def _emit(self, slot: Slot, token: Token, logits: Array) -> None:
        """Process a sampled token, which may end the generation (`process_token`)."""
        slot.sampled = token
        slot.generated.append(token)
        slot.logits.append(logits)
        reply, predict = slot.running.reply, slot.running.predict
        ended = reply is not None and len(slot.generated) >= len(reply)
        if ended or (predict >= 0 and slot.n_decoded >= predict):
            self.finish(slot)
            # After the final response, and of what is in memory: the last sampled token is not.
            self.checkpointing.create(slot)

    # -- slot actions (`process_single_task`); the companion is part of none ---------------------

    def _save(self, slot: Slot, name: str, ticket: Ticket) -> Reply:
        saved = SavedSlot(
            tokens=tuple(slot.cache_tokens),
            state=self.primary.save(SeqId(slot.id), partial=False),
            checkpoints=tuple(slot.checkpoints),
            approximate=slot.approximate,
        )
        self._place().put(name, encode(saved))
        self._note("save", slot, name, ticket)
        return _done(slot)

    def _restore(self, slot: Slot, name: str, ticket: Ticket) -> Reply:
        data = self._place().get(name)
        if data is None:
            return _done(slot, error="invalid_request_error", message=f"no slot file {name!r}")
        try:
            saved = decode(data)
            has_room = self.primary.restore(SeqId(slot.id), saved.state)
        except BlobError as error:
            return _done(slot, error="invalid_request_error", message=str(error))
        if not has_room:
            return _done(slot, error="invalid_request_error", message="no room for the state")
        # The companion's cells stay those of its former conversation.
        slot.cache_tokens, slot.approximate = list(saved.tokens), saved.approximate
        slot.checkpoints[:] = saved.checkpoints
        self._note("restore", slot, name, ticket)
        return _done(slot)

    def _erase(self, slot: Slot, ticket: Ticket) -> Reply:
        self.primary.cells.seq_rm(SeqId(slot.id), -1, -1)
        slot.cache_tokens.clear()
        slot.approximate = None
        slot.checkpoints.clear()
        self._note("erase", slot, "", ticket)
        return _done(slot)

    def _place(self) -> ByteStore:
        if self._store is None:
            msg = "saving a slot needs a place for bytes: create the engine with store=..."
            raise OptionError(msg)
        return self._store

    def _note(self, action: str, slot: Slot, name: str, ticket: Ticket) -> None:
        self.record(
            vocabulary.SlotAction(
                slot=slot.id, task=ticket, action=action, file=name, n_tokens=len(slot.cache_tokens)
            )
        )

    # -- inspection --------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return snapshot(self.slots, self.primary, self.cache, self.companion)

    def books(self) -> dict[str, Any]:
        return books(self.slots, self.cache)

    def held(self) -> Held:
        return held(self.slots, self.primary, self.cache)

    def texts(self) -> Texts:
        return texts_held(self.slots, self.cache)

    def amounts(self) -> Amounts:
        return amounts(self.slots, self.primary, self.cache)

    def check_integrity(self) -> None:
        check_slots(self.slots, self.primary, self.cache, self.options)
        check_companion(self.companion)


def _done(slot: Slot, *, error: str | None = None, message: str = "") -> Reply:
    return Reply.empty(slot=slot.id, error=error, message=message)
