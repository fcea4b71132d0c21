"""KoboldCpp's rules over llama.cpp's memory; read in its source, not run.

They are those of `gpttype_generate` for a prompt without memory, media, guidance or drafts. A batch
that finds no cells is not tried again in pieces here, and no cut is refused but a hybrid's in 1.99.

    context shift    held      [ same | erased | longest in common | . ]
                     prompt    [ same | longest in common | new ]
    Smart Context    prompt    [ same | left out | second half of the rest ]
    small windows    prompt    [ kept | evaluated again: as many tokens as windows have cells ]

The last sampled token is held and not evaluated. A clock of one tick per request stands for
upstream's seconds.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cachesim.engines.causes import Ledger
from cachesim.engines.koboldcpp import vocabulary
from cachesim.engines.koboldcpp.options import KoboldOptions
from cachesim.engines.koboldcpp.rules import KoboldRules
from cachesim.engines.llama_cpp_python import vocabulary as instance
from cachesim.engines.llama_cpp_python.server import SEQ, Call, CallError, CallServer
from cachesim.engines.llama_cpp_python.vocabulary import PrefixMatched, StateLoaded
from cachesim.engines.llamacpp.memory.blob import ARCHITECTURES, Blob
from cachesim.engines.llamacpp.memory.hybrid import WindowPair, parts_of
from cachesim.engines.llamacpp.server_context import END_OF_GENERATION
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import OptionError
from cachesim.typed import there_is
from cachesim.units import Array, Count, Token, Tokens

NONE: Final = -1

GENERATED: Final = 1024
"""Default tokens of a reply (`--defaultgenamt`)."""

FRAGMENTATION: Final = 128
"""Cells beyond `--contextsize`, of window layers too (`extra_context_handle_fragmentation`)."""

SIMILAR: Final = 0.7
"""Share of the shorter of prompt and context that SmartCache wants equal."""

TINY: Final = 32
"""A context that is not longer is never saved by itself."""

SPACING: Final = 150
"""A checkpoint this close to another one of the same text replaces it, or is not taken."""

LIFEBOAT: Final = (2048, 65)
"""A checkpoint of its own for prompts from this length on, at this percentage."""


@dataclass(slots=True)
class SaveState:
    """A save slot (`savestate_data`); without a blob it is empty."""

    tokens: list[Token] = field(default_factory=list)
    blob: Blob | None = None
    end: int = 0
    logits: Array | None = None
    last_used: int = 0
    approximate: tuple[int, str] | None = None

    @property
    def held(self) -> Tokens:
        """The evaluated tokens."""
        return tuple(self.tokens[: self.end])

    @property
    def n_tokens(self) -> Count:
        return Count(self.end)

    @property
    def size(self) -> int:
        return 0 if self.blob is None else self.blob.size


class KoboldCpp(CallServer[KoboldRules, KoboldOptions]):
    """Held tokens (`current_context_tokens`), save slots, and their use by a prompt."""

    erasing = ""
    limit_flag = "max_length"

    def _start(self) -> None:
        """Follows `gpttype_load_model`: the memory, and as many save slots as it has uses for."""
        rules, options = self.rules, self.options
        small = rules.small_windows and not options.noswa
        self._make_memory(
            n_ctx=Count(options.n_ctx + FRAGMENTATION),
            swa_full=not small,
            swa_padding=FRAGMENTATION,
        )
        attention, states = parts_of(self.context.memory)
        if (
            isinstance(attention, WindowPair)
            and states is not None
            and not rules.windows_and_states
        ):
            raise OptionError("KoboldCpp of 2025 has no memory for windows beside states")
        architecture = ARCHITECTURES.get(frozenset(self.network.spec.layers), "")
        named = not rules.architectures or architecture in rules.architectures
        recurrent = self.recurrent = states is not None and named
        # Cells of window layers; 0 where they have one for every token.
        self.window = 0
        if isinstance(attention, WindowPair) and small:
            self.window = attention.swa.streams.size
        self.kobold, self.n_ctx = rules, options.n_ctx
        self.forwards = not options.nofastforward
        self.shifts = self.forwards and not options.noshift and not self.window
        self.current: list[Token] = []
        self._input: list[Token] = []
        self._smart: list[Token] = []
        self.n_past, self._task, self._clock = 0, -1, 0
        self.next_logits: Array | None = None  # those that the next token is sampled from
        self.approximate: tuple[int, str] | None = None  # from here on, by design
        limit = user = options.smartcache if options.smartcache > 1 else rules.slots
        self.smartcache = rules.smartcache and options.smartcache > 0 and self.forwards
        self._reusable = self._lifeboat = NONE
        if rules.checkpoints and recurrent and self.shifts:
            self.smartcache, self._reusable, limit = True, limit, limit + 1
            if user >= 4:
                self._lifeboat, limit = limit, limit + 1
        self.shifts = self.shifts and self.context.can_shift  # not with M-RoPE
        self.savestates = [SaveState() for _ in range(limit)]

    def _complete(self, one: Call) -> None:
        """Follows `gpttype_generate`: a prompt without room for the reply loses its start."""
        n_ctx = self.n_ctx
        least = max(1, min(n_ctx - 4, 16), int(n_ctx * 0.2))
        most = min(one.limit if one.limit > 0 else GENERATED, n_ctx - least)
        prompt = one.prompt[max(0, len(one.prompt) + most - n_ctx) :]
        self._begin(one, prompt, most)
        for piece in self._batches():
            self._evaluate(one, piece)
        while True:
            row = there_is(self.next_logits)
            token = Token(self._token(one, len(one.sampled), row))
            one.rows.append(row)
            one.sampled.append(token)
            self.current.append(token)
            if token in END_OF_GENERATION or len(one.sampled) >= most:
                break
            self._evaluate(one, [token])
        saves = self.smartcache and self.recurrent and not self.kobold.checkpoints
        if saves and len(self.current) > TINY:
            self._snapshot()

    def _evaluate(self, one: Call, tokens: list[Token]) -> None:
        self._decode(one, tokens, start=self.n_past, every=False)
        self.n_past += len(tokens)
        self.next_logits = self.context.logits(len(tokens) - 1)
        self._learn(self.current[: self.n_past], one.ticket)

    # -- before a prompt is evaluated ----------------------------------------------------------

    def _begin(self, one: Call, prompt: Tokens, predict: int) -> None:
        """Cut the memory to the part that a prompt reuses."""
        self._task, self._clock = one.ticket, self._clock + 1
        whole, ledger = list(prompt), self._read(one, prompt)
        if self.smartcache:
            self._switch(whole, predict)
        if not self.forwards:
            self._clear()
            ledger.apply(vocabulary.NOT_KEPT, 0, wanted=ledger.usable)
        elif self.recurrent:
            self._continue(whole, ledger)
        else:
            whole = self._rewind(one, predict)
        del self.current[self.n_past :]
        if self.approximate is not None and self.approximate[0] >= self.n_past:
            self.approximate = None
        one.cached = Count(self.n_past)
        one.approximated = None if self.approximate is None else self.approximate[1]
        self._input = whole[self.n_past :]
        counts = {"n_tokens": Count(self.n_past), "remaining": Count(len(self._input))}
        self._emit(PrefixMatched(task=one.ticket, **counts))

    def _read(self, one: Call, prompt: Tokens) -> Ledger:
        """Open the ledger of a prompt's remaining tokens."""
        one.truncated, one.prompt = len(prompt) < len(one.prompt), prompt
        return self._account(one)

    def _switch(self, prompt: list[Token], predict: int) -> None:
        """Save the context and load a slot that fits better, by SmartCache's thresholds.

        Trap: the first slot that is similar enough is taken, not the one that shares most.
        """
        held = [savestate.tokens for savestate in self.savestates]
        if self.recurrent:
            if contained(self.current, prompt):
                return
            fits = [i for i, tokens in enumerate(held) if contained(tokens, prompt)]
            best = max(fits, key=lambda i: len(held[i]), default=NONE)
        else:
            if self._fits(self.current, prompt, predict):
                return
            fits = [i for i, tokens in enumerate(held) if self._fits(tokens, prompt, predict)]
            best = fits[0] if fits else NONE
        if len(self.current) > TINY:
            self._keep(self._oldest(best))
        if best != NONE:
            self._load(best)

    def _fits(self, held: list[Token], prompt: list[Token], predict: int) -> bool:
        similar = get_common_prefix(held, prompt) / max(1, min(len(held), len(prompt)))
        enough = similar >= SIMILAR if held is self.current else similar > SIMILAR
        return enough or self._shift(held, prompt, predict) is not None

    def _continue(self, prompt: list[Token], ledger: Ledger) -> None:
        """Keep the states if the prompt contains all held tokens, else nothing."""
        held = len(self.current)
        if contained(self.current, prompt):
            behind = self.context.seq_pos_max(SEQ) + 2 == held
            replays = behind and (self.kobold.replays_last or held == len(prompt))
            self.n_past = held - replays
        else:
            self._clear()
        if self.smartcache:
            restored = self.n_past
            ledger.apply(
                vocabulary.CHECKPOINT_BEFORE, restored, wanted=ledger.usable, found=restored
            )
        elif not self.n_past:
            ledger.apply(instance.STATE_BEHIND, 0, held=held)

    def _rewind(self, one: Call, predict: int) -> list[Token]:
        """Shift the context, keep the prefix in common, refill small windows.

        Traps: small windows are refilled only where their lowest position is not below the rewind
        (less 4), though a whole window before it is needed. Full-size windows are not checked,
        though after a load or a shift llama.cpp searches for cells from the first one again, and
        takes those that the window hides.
        """
        prompt, ledger = list(one.prompt), one.ledger
        left = int(get_common_prefix(self.held_tokens, prompt))
        first = self.context.seq_pos_min(SEQ)
        if left < ledger.usable:
            ledger.apply(instance.LESS_LOADED, left, wanted=ledger.usable, found=left)
        goal = max(0, get_common_prefix(self.current, prompt) - 4)
        refill = self.window if first < 0 or goal <= first else 0
        shift = self._shift(self.current, prompt, predict)
        if shift is not None:
            start, erased = shift[0], shift[1] - shift[0]
            self._erase(*shift)
            kept = int(get_common_prefix(self.held_tokens, prompt))
            ledger.apply(vocabulary.CONTEXT_SHIFTED, kept, erased=erased, position=start)
        past = min(get_common_prefix(self.current, prompt), max(1, len(self.current) - 1))
        if past >= len(prompt) > 1:
            past = len(prompt) - 1
            ledger.apply(instance.LAST_TOKEN, past, prompt_tokens=len(prompt))
        if past < self.kobold.least:
            past = 0
            ledger.apply(vocabulary.NOT_KEPT, 0, wanted=ledger.usable)
        if refill and past > len(prompt) - refill:
            past = max(0, len(prompt) - refill)
            ledger.apply(vocabulary.WINDOW_REFILLED, past, refilled=len(prompt) - past)
        if refill and past:  # noted by the server: the windows before it lack tokens
            self.approximate = (past - 1, "window-refill")
        shorter = self._smart_context(prompt, past)
        if shorter is not None:
            dropped = len(prompt) - len(shorter[1])
            past, prompt = shorter
            self._read(one, tuple(prompt)).apply(vocabulary.SMART_CONTEXT, past, dropped=dropped)
        if past:
            self.context.seq_rm(SEQ, past, -1)
            self.n_past = past
        else:
            self._clear()
        return prompt

    @property
    def held_tokens(self) -> Tokens:
        """The tokens that a prompt may keep; after a failed batch some were never evaluated."""
        return tuple(self.current[: max(self.n_past, len(self.current) - 1)])

    def _clear(self) -> None:
        self.context.clear(data=True)
        self.n_past = 0

    def _shift(
        self, held: list[Token], prompt: list[Token], predict: int
    ) -> tuple[int, int] | None:
        """The tokens from one to the other can be erased (`DoContextShifting`), or None."""
        most = self.n_ctx
        shortfall, slack = 200 + min(most // 30, 140), 60 + min(most // 60, 70)
        start = int(get_common_prefix(held, prompt))
        rest = len(prompt) - start
        if not self.shifts or len(held) < 6 or rest < shortfall:
            return None
        least = max(min(rest - predict - slack, int(most * 0.45)), shortfall - slack)
        begin, size = longest_common(held[start:], prompt[start:])
        shared = held[start + begin :][:size]
        if size <= least or prompt[start : start + size] != shared:
            return None
        end = index_of(held, shared)
        return (start, end) if end > start else None

    def _erase(self, start: int, end: int) -> None:
        """Follows the end of `DoContextShifting`. Trap: a refused cut is shifted nevertheless."""
        erased = end - start
        if self.context.seq_rm(SEQ, start, end):
            before = self.approximate or (start, "")
            self.approximate = (min(start, before[0]), "context-shift")
        self.context.seq_add(SEQ, end, -1, -erased)
        del self.current[start:end]
        self.n_past -= erased
        self._emit(vocabulary.TokensErased(task=self._task, erased=Count(erased), position=start))

    def _smart_context(self, prompt: list[Token], past: int) -> tuple[int, list[Token]] | None:
        """Follows the second half of `ContextFastForward`: the tokens kept, and the shorter prompt.

        Traps: the last sampled token may be among those kept, though it was not evaluated; where
        the rests differ at once, tokens are compared at the places of the whole prompt.
        """
        smart, self._smart = self._smart, []
        if not past or not self.options.smartcontext or self.shifts:
            return None
        held, most, rest = self.current, self.n_ctx, prompt[past:]
        long = len(rest) >= int(most * 0.6)
        if smart and long:
            begin, size = longest_common(smart, rest)
            shared = smart[begin : begin + size]
            if size > int(32 + most * 0.05) and smart[:size] == shared:
                self._smart, start = smart, past
                rest = rest[index_of(rest, shared) :]
                skip = past if held[past] == rest[0] else 0
                while past < len(held) and held[past : past + 1] == rest[past - skip :][:1]:
                    past += 1
                    if past + 1 - skip >= len(rest):
                        break
                return past, held[:past] + rest[past - start :]
        if long and len(held) >= int(most * 0.8) and len(held) - past > int(most * 0.5):
            self._smart = rest[len(rest) // 2 :]
            return past, prompt[:past] + self._smart
        return None

    # -- while it is evaluated -----------------------------------------------------------------

    def _batches(self) -> Iterator[list[Token]]:
        """The batches of a prompt; states are saved between them.

        Trap: tokens are held before they are evaluated, and stay so if that fails.
        """
        n_batch, total = self.n_batch, self.n_past + len(self._input)
        target = total * LIFEBOAT[1] // 100
        checks = self.kobold.checkpoints and self.smartcache and self.recurrent
        boat = checks and total >= LIFEBOAT[0] and self.n_past <= target
        for start in range(0, len(self._input), n_batch):
            piece = self._input[start : start + n_batch]
            self.current += piece
            last = start + len(piece) == len(self._input)
            if checks and last and len(piece) > 1 and len(self._input) > 64:
                if len(piece) > 48:
                    yield piece[:-32]
                    piece = piece[-32:]
                self._snapshot()
            yield piece
            if boat and not last and self.n_past >= target:
                boat = False
                self._snapshot(self._lifeboat)
        if checks and len(self.current) > TINY:
            self._snapshot(self._reusable)

    # -- save slots ----------------------------------------------------------------------------

    def _snapshot(self, slot: int = NONE) -> None:
        """Follows `smartcache_quick_snapshot`."""
        current, near, held = (
            self.current,
            NONE,
            [savestate.tokens for savestate in self.savestates],
        )
        if slot == NONE and self.kobold.checkpoints and current not in held:
            texts = [  # close states of the same text, of which the shortest counts
                i
                for i, tokens in enumerate(held)
                if abs(len(tokens) - len(current)) <= SPACING
                and (contained(tokens, current) or contained(current, tokens))
            ]
            near = min(texts, key=lambda i: len(held[i]), default=NONE)
        if near == NONE:
            self._keep(self._oldest(NONE) if slot == NONE else slot)
        elif len(held[near]) > len(current):
            self._save(near)
        else:
            self.savestates[near].last_used = self._clock

    def _keep(self, slot: int) -> None:
        """Save the context into a slot, or note the use of one that holds it."""
        for savestate in self.savestates:
            if savestate.tokens == self.current:
                savestate.last_used = self._clock
                return
        self._save(slot)

    def _oldest(self, excluded: int) -> int:
        """The least recently used slot, of equals the last (`get_oldest_slot`).

        Trap: the slot for the newest prompt's own state is among them.
        """
        slots = (i for i in range(len(self.savestates)) if i not in {excluded, self._lifeboat})
        return min(slots, key=lambda i: (self.savestates[i].last_used, -i))

    def _save(self, slot: int) -> None:
        """Follows `gpttype_save_state_kv`.

        Trap: at most one token is kept that was not evaluated, and it must match as the others.
        """
        end = self.context.seq_pos_max(SEQ) + 1
        tokens = self.current[: end + 1] if end > 1 else list(self.current)
        self.savestates[slot] = SaveState(
            tokens=tokens,
            blob=self.context.state_write(-1),
            end=end,
            logits=self.next_logits,
            last_used=self._clock,
            approximate=self.approximate,
        )
        self._emit(vocabulary.SlotSaved(task=self._task, slot=slot, n_tokens=Count(len(tokens))))

    def _load(self, slot: int) -> bool:
        """Follows `gpttype_load_state_kv`; False if the slot is empty."""
        state = self.savestates[slot]
        if state.blob is None:
            return False
        self._clear()
        self.context.state_read(state.blob, -1)
        self.current, self.n_past = list(state.tokens), state.end
        self.approximate, self.next_logits = state.approximate, state.logits
        state.last_used = self._clock
        self._emit(StateLoaded(task=self._task, n_tokens=Count(len(state.tokens))))
        return True

    def _perform(self, one: Call, what: str, name: str) -> None:
        """Answer `save_state`, `load_state` or `clear_state`; the default slot is the first.

        Trap: a cleared context stays as it is, only the slots become empty.
        """
        self._task = one.ticket
        slot = int(name) if name.isdecimal() and int(name) < len(self.savestates) else 0
        if what == "save":
            self._save(slot)
        elif what == "reset":
            self.savestates = [SaveState() for _ in self.savestates]
        elif not self._load(slot):
            raise CallError("load_state: the slot is empty")

    @property
    def _entries(self) -> Collection[SaveState]:
        return [savestate for savestate in self.savestates if savestate.blob is not None]


def contained(tokens: list[Token], whole: list[Token]) -> bool:
    """True if a text begins with the other (`FullyContainedPrefix`)."""
    return bool(tokens) and whole[: len(tokens)] == tokens


def longest_common(one: Sequence[Token], other: Sequence[Token]) -> tuple[int, int]:
    """Start and length of the first longest run of tokens in common (`LongestCommonSubseq`)."""
    row, tokens = np.zeros(len(other) + 1, np.int64), np.array(other)
    end = best = 0
    for i, token in enumerate(one, 1):
        row[1:] = np.where(tokens == token, row[:-1] + 1, 0)
        longest = int(row.max())
        if longest > best:
            end, best = i, longest
    return end - best, best


def index_of(tokens: list[Token], run: list[Token]) -> int:
    """The first place of a run of tokens (`ArrFindIndexOf`), which is there."""
    places = (i for i, token in enumerate(tokens) if token == run[0])
    return next(i for i in places if tokens[i : i + len(run)] == run)
