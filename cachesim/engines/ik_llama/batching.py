"""One pass of the server: shift, collect tokens, read prompts, decode, sample (`update_slots`)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cachesim.engines.ik_llama import causes, events
from cachesim.engines.ik_llama.context import CANCELLED, BatchToken, Decoded
from cachesim.engines.ik_llama.matching import discard
from cachesim.engines.ik_llama.prepare import Preparation
from cachesim.engines.ik_llama.slot import GONE, Command, Slot, State
from cachesim.units import Array, Pos, SeqId, Token

if TYPE_CHECKING:
    from cachesim.engines.ik_llama.server import IkLlama


class Batching:
    """Fills one batch with what all slots have to decode, and handles what comes back.

    Upstream: `batch_pending_prompt`.
    """

    def __init__(self, server: "IkLlama", preparation: Preparation) -> None:
        self._server = server
        self._preparation = preparation
        self._batch: list[BatchToken] = []

    def update(self) -> None:
        """One pass (`update_slots`, from the context shift on)."""
        self._batch = []
        for slot in self._generating():
            self._shift(slot)
        for slot in self._generating():
            self._add_sampled(slot)
        for slot in self._server.slots:
            if slot.prefilling:
                self._add_prompt(slot)
        if self._batch:
            self._process()

    def _generating(self) -> list[Slot]:
        return [
            slot
            for slot in self._server.slots
            if slot.state is State.PROCESSING and slot.command is Command.NONE
        ]

    # -- context shift -----------------------------------------------------------------------

    @property
    def _shifts(self) -> bool:
        """Launching a request on a model with recurrent rows switches the shift off for all."""
        primary = self._server.primary
        return self._server.options.context_shift and not (primary.hybrid or primary.recurrent)

    def _shift(self, slot: Slot) -> None:
        """Make room in a full context (`context_shift`).

        [0, keep)              stays
        [keep, keep + drop)    removed
        [keep + drop, n_past)  moved down by `drop`
        """
        if slot.n_past < slot.n_ctx - 1:
            return
        if not self._shifts:
            slot.truncated = True
            self._server.finish(slot, "server_error", "context shift is disabled")
            return
        keep = len(slot.prompt_tokens) if slot.n_keep < 0 else slot.n_keep
        keep = min(keep, slot.n_ctx - 4)
        drop = (slot.running.options or {}).get("n_discard", 0) or (slot.n_past - keep) // 2
        self._discard(slot, keep, drop, end=slot.n_past)
        slot.n_past -= drop
        slot.n_kept_prompt, slot.n_discarded_prompt = keep, slot.n_discarded_prompt + drop
        slot.truncated = True
        slot.shifted = self._drops_tokens(slot)
        self._server.record(
            events.ContextShifted(
                slot=slot.id,
                task=slot.id_task,
                n_keep=keep,
                n_discard=drop,
                n_past=slot.n_past,
            )
        )

    # -- what goes into the batch ------------------------------------------------------------

    def _append(self, slot: Slot, tokens: Iterable[Token], *, output: bool) -> None:
        start, seq = len(slot.cache_tokens), SeqId(slot.id)
        self._batch += [
            BatchToken(token, Pos(pos), seq, output) for pos, token in enumerate(tokens, start)
        ]
        slot.cache_tokens += tokens
        slot.n_past = len(slot.cache_tokens)

    def _add_sampled(self, slot: Slot) -> None:
        """The last sampled token, and a draft behind it (`add_sampled_tokens`)."""
        slot.drafted = self._server.speculation.draft(slot)
        slot.i_batch = len(self._batch)
        self._append(slot, (slot.sampled, *slot.drafted), output=True)

    def _add_prompt(self, slot: Slot) -> None:
        """One pass over a prompt (`batch_pending_prompt`).

        Upstream's loop appends one token after another; after each it asks for room, and whether
        `tolerance` tokens are left, where the state is saved.
        """
        if not slot.prepared and not self._prepare(slot):
            return
        slot.n_past = max(slot.n_past, 0)
        del slot.cache_tokens[slot.n_past :]
        self._trim(slot)
        n_batch = self._server.options.batch_size
        prompt, checkpointing = slot.prompt_tokens, self._server.checkpointing
        start = slot.n_past_prompt
        end = max(start, min(len(prompt), start + n_batch - len(self._batch)))
        saves_at = len(prompt) - checkpointing.tolerance
        if checkpointing.enabled and start < saves_at <= end:
            end, slot.do_checkpoint = saves_at, True
        if end > start:
            self._append(slot, prompt[start:end], output=False)
        slot.n_past_prompt = end
        slot.n_prompt_tokens_processed += end - start
        if slot.n_past_prompt == len(prompt):
            self._begin_generating(slot)

    def _prepare(self, slot: Slot) -> bool:
        if len(slot.prompt_tokens) >= slot.n_ctx:
            if self._shifts:
                self._truncate(slot)
            else:
                slot.prepared = True  # the slot is not released: it goes on reading (an oddity)
                message = "the request exceeds the available context size"
                self._server.finish(slot, "exceed_context_size_error", message)
                slot.n_past = slot.n_past_prompt = 0
                return False
        else:
            slot.n_discarded_prompt = 0
        self._preparation.prepare(slot)
        return True

    def _truncate(self, slot: Slot) -> None:
        """Drop whole blocks behind n_keep until the prompt fits (`context_shift_prompt`).

        The same block leaves the slot's memory, but `n_past` is 0 at this point, so the cells
        behind it are not moved: token list and memory disagree from here on.
        """
        keep = max(0, slot.n_keep)
        block = (slot.running.options or {}).get("n_discard", 0) or (slot.n_ctx - keep) // 2
        slot.truncated = True
        if block <= 0:
            return
        dropped = 0
        while len(slot.prompt_tokens) - dropped >= slot.n_ctx:
            dropped += block
        from_cache = min(dropped, max(len(slot.cache_tokens) - keep, 0))
        if from_cache > 0:
            self._discard(slot, keep, from_cache, end=0)
        slot.n_kept_prompt, slot.n_discarded_prompt = keep, dropped
        slot.prompt_tokens = list(discard(slot.prompt_tokens, keep, dropped))
        slot.ledger.apply(causes.PROMPT_TRUNCATED, min(slot.ledger.usable, keep), dropped=dropped)

    def _discard(self, slot: Slot, keep: int, count: int, *, end: int) -> None:
        """Remove [keep, keep + count), move the rest down (`discard_n_kv_and_cache_tokens`).

        Where the token list keeps what the memory lost, `n_past` is the list's length again after
        the next token, so the shift fires on every one of them (an oddity until #2459).
        """
        seq, server = SeqId(slot.id), self._server
        server.primary.cells.seq_rm(seq, keep, keep + count)
        if keep + count < end:
            server.primary.cells.seq_add(seq, keep + count, end, -count)
        if server.companion is not None:
            server.companion.seq_rm(keep, keep + count)
            if keep + count < end:
                server.companion.seq_add(keep + count, end, -count)
        if self._drops_tokens(slot):
            slot.cache_tokens = list(discard(slot.cache_tokens, keep, count))

    def _drops_tokens(self, slot: Slot) -> bool:
        return slot.running.cache_prompt or self._server.rules.shift_always_drops_tokens

    def _begin_generating(self, slot: Slot) -> None:
        slot.state, slot.command = State.PROCESSING, Command.NONE
        slot.i_batch = len(self._batch) - 1
        last = self._batch[-1]
        self._batch[-1] = last._replace(output=True)

    def _trim(self, slot: Slot) -> None:
        """Remove [p0, end) on both contexts before every pass: the reset site (#1860, #1889)."""
        server, p0 = self._server, len(slot.cache_tokens)
        seq = SeqId(slot.id)
        primary = server.primary.cells.seq_rm(seq, p0, -1)
        companion: bool | None = None
        if server.companion is not None and (primary or server.rules.trims_companion_always):
            companion = server.companion.seq_rm(p0, -1)
        server.record(
            events.SequenceTrimmed(
                slot=slot.id, task=slot.id_task, p0=p0, primary=primary, companion=companion
            )
        )
        if primary and companion is False and server.rules.companion_reset == "companion only":
            self._clear_companion()
            server.record(events.CompanionReset(slot=slot.id, task=slot.id_task, p0=p0))
        elif not primary or companion is False:
            self._reset_everything(slot, p0, refused_by_primary=not primary)

    def _clear_companion(self) -> None:
        if self._server.companion is not None:
            self._server.companion.seq_rm(0, -1)

    def _reset_everything(self, slot: Slot, p0: int, *, refused_by_primary: bool) -> None:
        server = self._server
        server.primary.cells.seq_rm(SeqId(slot.id), -1, -1)
        self._clear_companion()
        slot.cache_tokens.clear()
        slot.n_past = slot.n_past_prompt = slot.n_past_offset = 0
        slot.n_kept_prompt = slot.n_discarded_prompt = 0
        slot.n_prompt_tokens_cache = 0
        slot.checkpoints.clear()
        who = "primary" if refused_by_primary else "companion"
        slot.ledger.apply(causes.FULL_RESET, 0, p0=p0, who=who)
        server.record(events.FullReset(slot=slot.id, task=slot.id_task, p0=p0))

    # -- decode ------------------------------------------------------------------------------

    def _process(self) -> None:
        """Decode the batch, in halves where there is no room (`process_batch_tokens`)."""
        n_batch, first = self._server.options.batch_size, 0
        while first < len(self._batch):
            view = self._batch[first : first + n_batch]
            decoded = self._server.primary.decode(view, keep_steps=self._steps())
            if decoded.code == CANCELLED:
                self._cancelled()
                return
            if decoded.code:
                if n_batch == 1:
                    self._fail()
                    return
                n_batch //= 2
                self._server.record(events.BatchRetried(n_batch=n_batch))
                continue
            self._handle(view, first, decoded)
            first += len(view)

    def _steps(self) -> int:
        """Recurrent states are kept token by token where the batch holds a draft."""
        drafted = any(slot.drafted for slot in self._server.slots)
        return self._server.speculation.steps if drafted else 0

    def _cancelled(self) -> None:
        server = self._server
        server.primary.ubatches_left = None
        for slot in server.slots:
            held = server.primary.cells.seq_pos_max(SeqId(slot.id)) + 1
            del slot.cache_tokens[held:]
            slot.n_past = len(slot.cache_tokens)
            if slot.ticket is not None and not slot.available:
                slot.state = State.PROCESSING
                server.finish(slot, GONE, "the client went away")

    def _fail(self) -> None:
        """Every slot is answered and released, idle ones too; token lists stay (an oddity)."""
        for slot in self._server.slots:
            if slot.ticket is not None and not slot.available:
                slot.state = State.PROCESSING
                message = "the context has no room for the batch"
                self._server.finish(slot, "server_error", message)

    def _handle(self, view: list[BatchToken], first: int, decoded: Decoded) -> None:
        server = self._server
        server.speculation.feed(view, decoded, reading=self._reading())
        for slot in server.slots:
            if slot.prefilling:
                server.checkpointing.after_prefill(slot)
        for slot in self._generating():
            at = slot.i_batch - first
            if not 0 <= at < len(view):
                continue
            if slot.drafted:
                slot.stray += max(0, at + len(slot.drafted) + 1 - len(view))
                kept, rows = server.speculation.accept(slot, decoded, at)
                slot.i_batch = -1
                self._emit_all(slot, kept, rows)
            else:
                slot.i_batch = -1
                self._sample(slot, decoded.logits[at])

    def _reading(self) -> bool:
        return any(slot.prefilling or slot.n_decoded == 0 for slot in self._server.slots)

    # -- sample ------------------------------------------------------------------------------

    def _sample(self, slot: Slot, logits: Array) -> None:
        token = self._server.speculation.target_token(slot, 0, logits)
        slot.n_decoded += 1
        self._server.checkpointing.after_sample(slot)
        self._emit(slot, token, logits)

    def _emit_all(self, slot: Slot, tokens: list[Token], rows: list[Array]) -> None:
        for token, row in zip(tokens, rows, strict=True):
            slot.n_decoded += 1
            self._emit(slot, token, row)
            if slot.command is Command.RELEASE:
                return

    def _emit(self, slot: Slot, token: Token, logits: Array) -> None:
        """Take a token and see whether the generation ends (`process_token`)."""
        slot.sampled = token
        slot.generated.append(token)
        slot.logits.append(logits)
        reply, predict = slot.running.reply, slot.running.predict
        ended = reply is not None and len(slot.generated) >= len(reply)
        if ended or (predict >= 0 and slot.n_decoded >= predict):
            self._server.finish(slot)
            self._server.checkpointing.create(slot)
