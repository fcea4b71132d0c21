"""Ollama's own runner until 0.24 (`runner/ollamarunner`), over llama.cpp's memory; read, not run.

    step   new requests take slots -> a batch is computed -> the next one is begun -> tokens sampled

A batch is begun before the tokens that it continues are known. Hybrids have checkpoints since
0.17.1. From 0.30 on Ollama starts llama-server.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from cachesim.engines import base
from cachesim.engines.base import NO_ANSWER, Ticket
from cachesim.engines.held import SlotHeld
from cachesim.engines.job import SampledJob
from cachesim.engines.llama_cpp_python.server import MemoryServer
from cachesim.engines.llama_cpp_python.vocabulary import (
    CUT_REFUSED,
    LAST_TOKEN,
    CutRefused,
    PrefixMatched,
)
from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.blob import Blob, CellList
from cachesim.engines.llamacpp.memory.context import OK
from cachesim.engines.llamacpp.memory.hybrid import caches_of, parts_of
from cachesim.engines.llamacpp.server_context import END_OF_GENERATION
from cachesim.engines.ollama_runner import vocabulary
from cachesim.engines.ollama_runner.options import RunnerOptions
from cachesim.engines.ollama_runner.rules import RunnerRules
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.units import Array, Count, Token

CHECKPOINTS: Final = 24
"""Checkpoints of a slot: the ring's next entry is overwritten."""

FIRST: Final = 16
"""No checkpoint is taken of a position before it."""

INTERVAL: Final = 1664
"""Positions from a checkpoint to the next, at least: it is taken at the end of a batch."""

ABSENT: Final = -1


@dataclass(slots=True)
class Checkpoint:
    """An entry of the ring: the position of the last token, and the state after it."""

    pos: int = ABSENT
    state: Blob | None = None


class RunnerCache:
    """Positions that `Causal` keeps of a window, and the checkpoints that `Recurrent` does.

    A request resumes where a sliding window, or a checkpoint of a hybrid, lets it:

        window     first kept .......... match - window .... match   may resume
        hybrid     16 .. checkpoint .... checkpoint .. match         resumes after the checkpoint

    llama.cpp's memory holds keys and states here, with every key of a window layer, which is more
    than Ollama keeps: only its rules decide what is reused.
    """

    def __init__(
        self, rules: RunnerRules, n_ctx: int, window: int | None, *, hybrid: bool, slots: int = 1
    ) -> None:
        self.window = window or 0
        # One more for the last token of a reply, which no prompt continues.
        most = max(rules.window, self.window + (slots > 1))
        self.memory = None if window is None or most >= n_ctx else most
        self.hybrid = hybrid
        self.clear()

    def clear(self) -> None:
        """Follows `Remove` from position 0 on."""
        self.first = self.end = 0
        self.entries = [Checkpoint() for _ in range(CHECKPOINTS if self.hybrid else 0)]
        self._next, self._last = 0, ABSENT

    def start_forward(self, start: int, count: int) -> Checkpoint | None:
        """Follows `StartForward` of a batch: `updateSlidingWindow`, and `planCheckpoints`.

        A batch without the slot has no tokens. A checkpoint's state is that after the batch.
        """
        if self.memory is not None:
            self.first = max(self.first, start - self.memory)
        self.end = start + count
        pos = self.end - 1
        due = self._last < 0 or pos - self._last >= INTERVAL
        if not (self.hybrid and pos >= FIRST and due):
            return None
        taken = self.entries[self._next] = Checkpoint(pos)
        self._next = (self._next + 1) % len(self.entries)
        self._last = pos
        return taken

    def can_resume(self, pos: int) -> bool:
        """Follows `CanResume` of a window."""
        if self.memory is None:
            return True
        return max(0, pos - self.window) >= self.first and pos <= self.end

    def best_index(self, pos: int) -> Checkpoint | None:
        """The last checkpoint before a position (`bestIndex`), or None.

        Trap: a prompt that continues all that is held is resumed from a checkpoint as well, never
        from the state of its last token; and a short prompt sent again has no checkpoint before its
        last token.
        """
        fit = (entry for entry in self.entries if ABSENT < entry.pos < pos)
        return max(fit, key=lambda checkpoint: checkpoint.pos, default=None)

    def copy_prefix(self, other: "RunnerCache", count: int) -> None:
        """Follows `CopyPrefix` of a window, which copies no key: it shares the cells."""
        self.clear()
        self.first, self.end = other.first, min(other.end, count)

    def remove(self, end: int) -> None:
        """Follows `Remove` up to the end, and `pruneAfter`."""
        self.end = end
        for entry in self.entries:
            if entry.pos >= end:
                entry.pos, entry.state = ABSENT, None
        self._settle(end - 1)

    def shift(self, keep: int, discard: int) -> None:
        """Follows `Remove` of a part, and `shiftRange`.

            before   [ keep | discard | rest )        after   [ keep | rest )

        Traps: the state of a moved checkpoint, as the live one, includes the discarded tokens; and
        a window spans keys of the first part that are gone (upstream's own TODO; here it has them).
        """
        self.end -= discard
        self.first = max(min(self.first, keep), self.first - discard)
        for entry in self.entries:
            if entry.pos >= keep + discard:
                entry.pos -= discard
                entry.state = entry.state and _moved(entry.state, discard)
            elif entry.pos >= keep:
                entry.pos, entry.state = ABSENT, None
        self._settle(max((entry.pos for entry in self.entries), default=ABSENT))

    def _settle(self, last: int) -> None:
        """The entry to overwrite next: the first free one, else the oldest."""
        if self.entries:
            free = (i for i, entry in enumerate(self.entries) if entry.pos == ABSENT)
            oldest = min(range(len(self.entries)), key=lambda i: self.entries[i].pos)
            self._next, self._last = next(free, oldest), last


def _moved(state: Blob, count: int) -> Blob:
    fields = (
        part._replace(positions=part.positions - count) if isinstance(part, CellList) else part
        for part in state.fields
    )
    return replace(state, fields=tuple(fields))


@dataclass(slots=True)
class Slot:
    """`InputCacheSlot`: the inputs that a sequence of the memory holds."""

    id: int
    cache: RunnerCache
    inputs: list[Token] = field(default_factory=list)
    in_use: bool = False
    last_used: int = ABSENT
    moved_from: int | None = None  # position of the first key computed in another context


SAMPLED: Final = Token(-1)
"""The place of a token that is sampled before the batch is computed."""

NOBODY: Final = -1

MOST: Final = 10
"""Contexts that a reply may fill (`NumPredict`)."""


@dataclass(slots=True, kw_only=True)
class Sequence(SampledJob):
    """A request, and the inputs that it has yet to evaluate."""

    keep: int = 0
    inputs: list[Token] = field(default_factory=list)
    slot: Slot | None = None
    truncated: bool = False
    shifted: bool = False

    def reply(self) -> base.Reply:
        return replace(
            SampledJob.reply(self),
            slot=None if self.slot is None else self.slot.id,
            truncated=self.truncated,
            approximated="context-shift" if self.shifted else None,
        )


@dataclass(slots=True, kw_only=True)
class Part:
    """The inputs of one sequence in a batch."""

    one: Sequence
    slot: Slot
    tokens: list[Token]
    start: int
    checkpoint: Checkpoint | None = None
    early: bool = False  # computed while the token before is still unknown


class Ollama(MemoryServer[RunnerRules, RunnerOptions, Sequence]):
    """Follows `Server` of the runner: the sequences of one model."""

    erasing = " (unloads the model)"
    limit_flag = "num_predict"

    def _start(self) -> None:
        """Follows `NewInputCache`, for the model's caches.

        Models with a state get one slot, whatever is asked for (`server/sched.go`).
        """
        for one in self._jobs:
            if not one.done:
                one.end(NO_ANSWER)
        rules, options = self.rules, self.options
        places = {shape.place for shape in self.network.shapes}
        self._llama = rules.llama
        hybrid = "recurrent" in places and not rules.llama
        if hybrid and places != {"recurrent", "attention"}:
            raise OptionError("Ollama's own caches have states beside full attention only")
        if hybrid and not options.num_keep:
            msg = "a hybrid that keeps no token in a shift has no rules here: write num_keep = 1"
            raise OptionError(msg)
        slots = 1 if hybrid else options.num_parallel
        self._make_memory(
            n_ctx=Count(options.n_ctx * slots),
            n_batch=min(options.n_ctx, options.n_batch) * slots,
            n_seq_max=slots,
            kv_unified=not rules.llama,
            swa_full=True,
        )
        for cache in self._caches():  # Ollama takes the first cells that are free
            cache.streams.reclaims &= rules.llama
        window = self.network.spec.window if "window" in places and not rules.llama else None
        self.slots = [
            Slot(i, RunnerCache(rules, options.n_ctx, window, hybrid=hybrid, slots=slots))
            for i in range(slots)
        ]
        self.seqs: list[Sequence | None] = [None] * slots
        self._ahead: list[Part] = []
        self._next_seq = self._clock = 0

    def _caches(self) -> Iterable[AttentionCache]:
        return caches_of(parts_of(self.context.memory)[0]).values()

    # -- requests ------------------------------------------------------------------------------

    def submit(self, request: base.Request) -> Ticket:
        self._is_embedding(request)
        ticket = self._jobs.ticket()
        limit = self._limit(request, MOST * self.options.n_ctx)
        new = Sequence(ticket=ticket, prompt=request.prompt, limit=limit, forced=request.reply)
        self._jobs.append(new)
        self._truncate(new)
        return ticket

    def _truncate(self, one: Sequence) -> None:
        """Follows `NewSequence`: the first `num_keep` tokens and the end of a prompt too long."""
        n_ctx, prompt, keep = self.options.n_ctx, one.prompt, self.options.num_keep
        one.keep = min(len(prompt) if keep < 0 else keep, n_ctx - 1)
        if len(prompt) <= n_ctx:
            return
        if not self.options.truncate:
            one.end("BadRequest", "the input length exceeds the context length")
            return
        one.prompt = prompt[: one.keep] + prompt[len(prompt) - n_ctx + one.keep :]
        one.truncated = True

    def cancel(self, ticket: Ticket) -> None:
        one = self._jobs[ticket]
        if not one.done:
            one.end("cancelled")
            self._remove(one)

    def _blank(self, ticket: Ticket) -> Sequence:
        return Sequence(ticket=ticket, prompt=())

    def sleep(self) -> None:
        """Refuse it: an idle model is unloaded."""
        raise OptionError("an idle model is unloaded: write 'restart'")

    def step(self) -> bool:
        self._admit()
        if not any(self.seqs):
            return False
        rows = self._compute(self._ahead or self._forward())
        self._ahead = [] if self._llama else self._forward()
        if not (self._ahead or self._llama) and any(self.seqs):
            self._ahead = [replace(part, early=True) for part in self._forward()]
        for one, row in rows:
            if one in self.seqs:
                self._sample(one, row)
        if not any(self.seqs):
            self._ahead = []
        return True

    def _remove(self, one: Sequence) -> None:
        """Follows `removeSequence`."""
        one.done = True
        if one in self.seqs:
            self.seqs[self.seqs.index(one)] = None
        if one.slot is not None:
            one.slot.in_use = False

    # -- slots ---------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give waiting requests a slot, in order of arrival."""
        waiting = (job for job in self._jobs if not job.done and job.slot is None)
        for index, seq in enumerate(self.seqs):
            one = next(waiting, None) if seq is None else None
            if one is not None:
                self._load_cache_slot(one)
                self.seqs[index] = one

    def _load_cache_slot(self, one: Sequence) -> None:
        """Follows `LoadCacheSlot`."""
        prompt = one.prompt
        ledger = self._account(one)
        best = max(self.slots, key=lambda slot: get_common_prefix(slot.inputs, prompt))
        slot, past = self._find(one)
        slot.in_use, self._clock = True, self._clock + 1
        slot.last_used, one.slot = self._clock, slot
        ledger.apply(vocabulary.SLOT_BUSY, past, slot=best.id)
        if past == len(prompt):
            past -= 1
            ledger.apply(LAST_TOKEN, past, prompt_tokens=len(prompt))
        cache = slot.cache
        entry = cache.best_index(past)
        if cache.hybrid:
            restored = 0 if entry is None else entry.pos + 1
            ledger.apply(vocabulary.CHECKPOINT_BEFORE, restored, wanted=past, found=restored)
            past = restored
        elif past and not cache.can_resume(past):
            ledger.apply(vocabulary.WINDOW_GONE, 0, wanted=past, first=cache.first)
            past = 0
        elif not self.context.seq_rm(slot.id, past, -1):
            self._emit(CutRefused(task=one.ticket, n_tokens=Count(past)))
            ledger.apply(CUT_REFUSED, 0, wanted=past)
            past = 0
        if entry is not None and entry.state is not None:
            self.context.state_read(entry.state, slot.id, partial=True)
        self._cut(slot, past, one.ticket)
        one.shifted = slot.moved_from is not None
        one.cached = Count(past)
        one.inputs = list(prompt[past:])
        if past:
            counts = {"n_tokens": Count(past), "remaining": Count(len(one.inputs))}
            self._emit(PrefixMatched(task=one.ticket, **counts))

    def _cut(self, slot: Slot, end: int, task: int) -> None:
        """Follows `Remove` up to the end."""
        self.context.seq_rm(slot.id, end, -1)
        if end:
            slot.cache.remove(end)
        else:
            slot.cache.clear()
            if slot.inputs:
                n_tokens = Count(len(slot.inputs))
                self._emit(vocabulary.SlotCleared(task=task, slot=slot.id, n_tokens=n_tokens))
        del slot.inputs[end:]
        if slot.moved_from is not None and slot.moved_from >= end:
            slot.moved_from = None

    def _find(self, one: Sequence) -> tuple[Slot, int]:
        """Follows `findLongestCacheSlot`, or `findBestCacheSlot`; the slot, its matching tokens.

        The first takes the free slot that matches best. The second leaves a slot that would lose
        tokens as it is, and shares the matching ones with the slot that was used longest ago.
        """
        matches = [int(get_common_prefix(slot.inputs, one.prompt)) for slot in self.slots]
        free = [slot for slot in self.slots if not slot.in_use]
        if not self.options.multiuser_cache:
            slot = max(free, key=lambda slot: matches[slot.id])
            return slot, matches[slot.id]
        longest = max(self.slots, key=lambda slot: matches[slot.id])
        count = matches[longest.id]
        if count == len(longest.inputs) and not longest.in_use:
            return longest, count
        oldest = min(free, key=lambda slot: slot.last_used)
        if count and oldest is not longest:
            self._copy_prefix(longest, oldest, count, one.ticket)
        return oldest, count

    def _copy_prefix(self, longest: Slot, oldest: Slot, count: int, task: int) -> None:
        """Follows `CopyPrefix`: the cells are shared."""
        self._cut(oldest, 0, task)
        self.context.seq_cp(longest.id, oldest.id, 0, count)
        oldest.cache.copy_prefix(longest.cache, count)
        oldest.inputs, oldest.moved_from = longest.inputs[:count], longest.moved_from
        slots = {"slot": oldest.id, "other": longest.id}
        self._emit(vocabulary.PrefixShared(task=task, n_tokens=Count(count), **slots))

    # -- batches -------------------------------------------------------------------------------

    def _forward(self) -> list[Part]:
        """Follows `forwardBatch`: one batch for all sequences, in turn from `nextSeq`.

        Traps: the memory of windows moves, and a checkpoint is taken, also for a reply that ends
        with the token before; and where the context is full, that token is never sampled.
        """
        batch: list[Part] = []
        room, resume, index = self.n_batch, NOBODY, self._next_seq - 1
        for _ in self.seqs:
            index = (index + 1) % len(self.seqs)
            one = self.seqs[index]
            if one is None or one.slot is None:
                continue
            slot = one.slot
            room = self.n_batch if self._llama else room
            if not room:
                resume = index if resume == NOBODY else resume
                continue
            if len(slot.inputs) >= self.options.n_ctx:
                if not self.options.shift:
                    self._remove(one)
                    continue
                if not self._shift(one, slot):
                    continue
            count = min(room, self.options.n_ctx - len(slot.inputs), len(one.inputs))
            tokens, one.inputs = one.inputs[:count], one.inputs[count:]
            batch.append(Part(one=one, slot=slot, tokens=tokens, start=len(slot.inputs)))
            room -= count
        self._next_seq = index + 1 if resume == NOBODY else resume
        counts = {part.slot.id: len(part.tokens) for part in batch}
        taken = {
            slot.id: slot.cache.start_forward(
                len(slot.inputs) if slot.id in counts else slot.cache.end, counts.get(slot.id, 0)
            )
            for slot in (self.slots if batch else ())
        }
        return [replace(part, checkpoint=taken[part.slot.id]) for part in batch]

    def _shift(self, one: Sequence, slot: Slot) -> bool:
        """Follows `ShiftCacheSlot`; False if the kept inputs have to be processed again.

            before   [ keep | discard | rest )        after   [ keep | rest )

        Qwen 3-Next and 3.5 refuse, and cells that another slot shares.
        """
        keep = one.keep
        discard = max((self.options.n_ctx - keep) // 2, 1)
        end = keep + discard
        one.shifted = True
        counts = {"n_keep": Count(keep), "n_discard": Count(discard)}
        if self._llama:
            memory = self.context.memory
            refused = not (memory.can_shift and memory.seq_rm(slot.id, keep, end))
        else:
            refused = "delta" in self.network.spec.layers or self._shares(slot, end)
        if refused:
            self._emit(vocabulary.ShiftRefused(task=one.ticket, n_discard=Count(discard)))
            one.inputs = slot.inputs[:keep] + slot.inputs[end:] + one.inputs
            self._cut(slot, 0, one.ticket)
            return False
        self._emit(vocabulary.ContextShifted(task=one.ticket, **counts))
        attention, recurrent = parts_of(self.context.memory)
        if attention is not None:
            attention.seq_rm(slot.id, keep, end)
            attention.seq_add(slot.id, end, -1, -discard)
        if recurrent is not None:
            recurrent.seq_add(slot.id, 0, -1, -discard)
        slot.cache.shift(keep, discard)
        del slot.inputs[keep:end]
        slot.moved_from = keep if slot.moved_from is None else min(slot.moved_from, keep)
        return True

    def _shares(self, slot: Slot, start: int) -> bool:
        """True if another slot shares cells of this one from a position on."""
        streams = [cells for cache in self._caches() for cells in cache.streams.cells]
        return any(
            cells.seqs_among(cells.select(slot.id, start, self.options.n_ctx))
            not in ([], [slot.id])
            for cells in streams
        )

    def _compute(self, batch: list[Part]) -> list[tuple[Sequence, Array]]:
        """Follows `computeBatch` up to its outputs: the inputs of a batch enter their slots.

        Trap: a batch that was begun early, after a refused shift, has token 0 in place of the one
        that is not sampled yet; the slot names the right one.
        """
        live = [part for part in batch if part.one in self.seqs]
        batches = []
        for part in live:
            known = part.one.sampled[-1:] * part.tokens.count(SAMPLED)
            held = [token for token in part.tokens if token != SAMPLED] + known
            given = [
                Token(0) if part.early and token == SAMPLED else token for token in part.tokens
            ]
            sent = given if part.early else held
            part.slot.inputs += held
            batches.append(Batch.of(sent, start=part.start, seq=part.slot.id))
        if live:
            code = self.context.decode(Batch.joined(batches))
            if code != OK:
                where = "Ollama's runner"
                raise UpstreamAbort(where, f"llama_decode returned {code}")
        logits, row = [], -1
        for part in live:
            one, slot = part.one, part.slot
            row += len(part.tokens)
            if part.checkpoint is not None:
                part.checkpoint.state = self.context.state_write(slot.id, partial=True)
            self._learn(slot.inputs, one.ticket)
            if not one.inputs:
                one.inputs = [SAMPLED]
                logits.append((one, self.context.logits(row)))
        return logits

    def _sample(self, one: Sequence, row: Array) -> None:
        """Follows the end of `computeBatch`."""
        token = Token(self._token(one, len(one.sampled), row))
        one.rows.append(row)
        one.sampled.append(token)
        if token in END_OF_GENERATION or len(one.sampled) >= one.limit:
            self._remove(one)

    # -- accounts ------------------------------------------------------------------------------

    def _slots(self) -> tuple[SlotHeld, ...]:
        return tuple(
            SlotHeld(
                id=slot.id,
                state="processing" if slot.in_use else "idle",
                tokens=tuple(slot.inputs),
                checkpoints=(),
            )
            for slot in self.slots
        )
