"""`Llama` as an engine: a completion after the other over one sequence (`llama.py`)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from cachesim.engines import base, job
from cachesim.engines.base import Ticket
from cachesim.engines.causes import Ledger
from cachesim.engines.held import Amounts, EntryHeld, Held, SlotHeld, Texts
from cachesim.engines.job import SlotlessEngine
from cachesim.engines.llama_cpp_python import causes, events
from cachesim.engines.llama_cpp_python.family import Rules
from cachesim.engines.llama_cpp_python.koboldcpp import (
    FRAGMENTATION,
    GENERATED,
    KoboldCpp,
    KoboldRules,
    SaveState,
)
from cachesim.engines.llama_cpp_python.options import Options
from cachesim.engines.llama_cpp_python.states import DiskCache, State, StateCache, lookup
from cachesim.engines.llamacpp.held import memory_amounts, memory_held, parts
from cachesim.engines.llamacpp.memory.batch import Batch
from cachesim.engines.llamacpp.memory.blob import ARCHITECTURES
from cachesim.engines.llamacpp.memory.context import OK
from cachesim.engines.llamacpp.memory.create import ContextParams, create_context
from cachesim.engines.llamacpp.memory.hybrid import HybridMemory, WindowPair
from cachesim.engines.llamacpp.server_context import END_OF_GENERATION
from cachesim.engines.tokens import PrefixTree, get_common_prefix
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.typed import Value, there_is
from cachesim.units import Array, Count, Token, Tokens

SEQ: Final = 0
"""The sequence of completions (`kv_cache_seq_rm(-1, ...)` names it too)."""

UNKNOWN: Final = -1
"""An element of the array of tokens that was never written."""

MAX_SEQ: Final = 256
"""`llama_max_parallel_sequences()`."""

ENDPOINT: Final = "endpoint"


class CallError(Exception):
    """An exception that the caller of the real package gets: its text, then its class."""

    def __init__(self, text: str, kind: str = "RuntimeError") -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


@dataclass(slots=True, kw_only=True)
class Job(job.Job):
    """A call: a completion, an embedding, or an action that a scenario names."""

    predict: int = 0
    sampled: list[Token] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    action: tuple[str, str] | None = None
    approximated: str | None = None
    truncated: bool = False

    @property
    def generated(self) -> Tokens:
        return tuple(self.sampled)


def account(one: job.Job, computed: PrefixTree, kept: Iterable[Sequence[Token]]) -> Ledger:
    """Compare the tokens of a prompt ever evaluated with those still held."""
    best, by = computed.find(np.array(one.prompt, np.int64), None)
    held = max(get_common_prefix(each, one.prompt) for each in kept)
    name = f"request {by}" if best else "nothing"
    if held > best:
        best, name = held, "an earlier request"
    one.ledger = Ledger(Count(best), name)
    if held < best:
        one.ledger.apply(causes.REPLACED, held, wanted=best, found=held)
    return one.ledger


class LlamaCppPython(SlotlessEngine[Rules, Options, Job]):
    """Instance of `Llama` with its cache and its draft model."""

    erasing = " (`reset`)"
    limit_flag = "max_tokens"

    def _set_up(self) -> None:
        self._computed = PrefixTree()
        self._states: dict[str, State] = {}  # those that the caller keeps
        self._disk = DiskCache(0)
        self._start()

    def _start(self) -> None:
        """Follows `Llama.__init__`, and `set_cache`."""
        options = self.options
        if options.embedding and "conv" in self.network.spec.layers:
            msg = "embedding has no rules here for LFM2: it has no logits then from 0.3.35 on"
            raise OptionError(msg)
        kobold = self.rules.koboldcpp
        small = kobold is not None and kobold.small_windows and not options.noswa
        more = FRAGMENTATION if kobold is not None else 0
        n_batch = min(options.n_ctx, options.n_batch)
        self.context = create_context(
            self.network,
            ContextParams(
                n_ctx=Count(options.n_ctx + more),
                n_batch=n_batch,
                n_ubatch=min(n_batch, options.n_ubatch),
                n_seq_max=min(n_batch, MAX_SEQ) if options.embedding else 1,
                kv_unified=options.embedding and self.rules.embeds_unified,
                swa_full=options.swa_full and not small,
                swa_padding=more,
                type_k=options.type_k,
                type_v=options.type_v,
            ),
            self.rules.memory,
        )
        self.context.all_outputs = options.embedding
        self.n_batch = n_batch
        self.n_tokens = 0
        self.input_ids = np.full(options.n_ctx, UNKNOWN, np.int64)
        rows = options.n_ctx if options.logits_all else options.n_batch
        # Shapes alone: NumPy refuses what does not fit, and no logits are kept.
        self.scores = np.empty((rows, self.network.spec.vocabulary), "V0")
        self._requires_eval = True
        self._last = 0  # tokens of the last batch
        self._drafts = options.draft_model != "none"
        self._all = options.logits_all or self._drafts
        self._has_states = any(shape.place == "recurrent" for shape in self.network.shapes)
        self._disk.capacity = options.capacity_bytes
        self.kobold = None if kobold is None else self._koboldcpp(kobold, small=small)
        kept = {"ram": StateCache(options.capacity_bytes), "disk": self._disk}
        self.cache = kept.get(options.cache)

    def _koboldcpp(self, rules: KoboldRules, *, small: bool) -> KoboldCpp:
        options, memory = self.options, self.context.memory
        pair = memory.attention if isinstance(memory, HybridMemory) else memory
        others = (options.embedding, not options.swa_full, options.cache != "none")
        if any(others) or options.draft_model != "none":
            msg = "KoboldCpp has no set_cache, draft_model, swa_full or embedding here"
            raise OptionError(msg)
        both = isinstance(memory, HybridMemory) and isinstance(pair, WindowPair)
        if both and not rules.windows_and_states:
            msg = "KoboldCpp of 2025 has no memory for windows beside states"
            raise OptionError(msg)
        named = not rules.architectures or self._architecture in rules.architectures
        return KoboldCpp(
            rules,
            options,
            self.context,
            self._emit,
            recurrent=self._has_states and named,
            window=pair.swa.streams.size if small and isinstance(pair, WindowPair) else 0,
        )

    # -- calls ---------------------------------------------------------------------------------

    def submit(self, request: base.Request) -> Ticket:
        embeds = self._fields(request).get(ENDPOINT) == "embedding"
        checked = replace(request, prompt=request.prompt or (Token(0),)) if embeds else request
        self._check(
            checked, drafts=request.drafts is not None, cache_prompt=not request.cache_prompt
        )
        if embeds:
            return self._act("embed", prompt=request.prompt)
        new = Job(
            ticket=self._jobs.ticket(),
            prompt=request.prompt,
            predict=request.predict,
            forced=request.reply,
        )
        if request.reply is not None:
            most = len(request.reply)
            new.predict = min(new.predict, most) if new.predict > 0 else most
            if most == 0:
                msg = f"{self.limit_flag} must be at least 1: let the request generate a token"
                raise OptionError(msg)
        self._jobs.append(new)
        return new.ticket

    def cancel(self, ticket: Ticket) -> None:
        if not self._jobs[ticket].done:
            self._jobs[ticket].end("cancelled")

    def slot_erase(self, slot: int) -> Ticket:
        del slot
        return self._act("reset")

    def slot_save(self, slot: int, name: str) -> Ticket:
        """Keep the return value of `save_state` under a name."""
        del slot
        return self._act("save", name)

    def slot_restore(self, slot: int, name: str) -> Ticket:
        """Call `load_state` with the state kept under a name."""
        del slot
        return self._act("load", name)

    def _act(self, what: str, name: str = "", prompt: Tokens = ()) -> Ticket:
        if self.kobold is not None and what == "embed":
            msg = "KoboldCpp has no embedding here"
            raise OptionError(msg)
        new = Job(ticket=self._jobs.ticket(), prompt=prompt, action=(what, name))
        self._jobs.append(new)
        return new.ticket

    def _blank(self, ticket: Ticket) -> Job:
        return Job(ticket=ticket, prompt=())

    def _empty(self) -> None:
        self._reset()

    def restart(self) -> None:
        """Close the instance and create a new one; the disk cache stays."""
        self._start()

    def reopen(self, options: Mapping[str, Value]) -> None:
        """Make a new instance with other arguments, as `LlamaProxy` does for another alias."""
        read = self.family.read(self.profile, options)
        self.options = replace(self.options, **{each: getattr(read, each) for each in options})
        self._start()

    def sleep(self) -> None:
        """Ignore it: the package has no idle state."""
        msg = "an instance never sleeps: write 'restart'"
        raise OptionError(msg)

    def step(self) -> bool:
        one = next((each for each in self._jobs if not each.done), None)
        if one is None:
            return False
        try:
            self._perform(one) if one.action else self._complete(one)
        except CallError as error:
            one.end(error.kind, error.text)
        except ValueError as error:  # NumPy's, as in the real arrays
            one.end("ValueError", str(error))
        one.done = True
        return True

    def _perform(self, one: Job) -> None:
        what, name = one.action or ("", "")
        one.cached, kobold = Count(0), self.kobold
        if kobold is not None:
            if not kobold.act(one.ticket, what, name):
                text = "load_state: the slot is empty"
                raise CallError(text)
        elif what == "reset":
            self._reset()
        elif what == "embed":
            self._embed(one)
        elif what == "save":
            self._states[name] = self._save(one)
        elif name not in self._states:
            text = f"no state was saved as {name!r}"
            raise CallError(text, "KeyError")
        else:
            self._load(one, self._states[name])

    def _embed(self, one: Job) -> None:
        """Follows `embed`, for a text.

        Trap: the memory is cleared first, and the number of tokens last: where `llama_decode`
        fails in between, the next prompt matches tokens that the memory has lost.
        """
        if not self.options.embedding:
            text = "Llama model must be created with embedding=True to call this method"
            raise CallError(text)
        self._emit(events.MemoryCleared(task=one.ticket, n_tokens=Count(self.n_tokens)))
        self.context.clear(data=True)
        self._decode(one, one.prompt[: self.n_batch], start=0)
        self.context.clear(data=True)
        self._reset(one)

    # -- create_completion ---------------------------------------------------------------------

    def _complete(self, one: Job) -> None:
        """Follows `_create_completion`."""
        prompt, n_ctx = list(one.prompt), self.context.n_ctx
        if self.kobold is not None:
            self._answer(one, self.kobold)
            return
        if len(prompt) >= n_ctx:
            text = f"Requested tokens ({len(prompt)}) exceed context window of {n_ctx}"
            raise CallError(text, "ValueError")
        most = one.predict if one.predict > 0 else n_ctx - len(prompt)
        most = min(most, n_ctx - len(prompt))
        self._account(one)
        if self.cache is not None:
            self._look_up(one, self.cache)
        completion = self._generate(one, prompt, most)
        if self.cache is not None:
            state = self._save(one)
            for each in self.cache.put((*one.prompt, *completion), state):
                n_tokens, size = each.n_tokens, each.size
                self._emit(events.StateEvicted(task=one.ticket, n_tokens=n_tokens, size=size))

    def _answer(self, one: Job, kobold: KoboldCpp) -> None:
        """Follows `gpttype_generate`: a prompt without room for the reply loses its start."""
        n_ctx = self.options.n_ctx
        least = max(1, min(n_ctx - 4, 16), int(n_ctx * 0.2))
        most = min(one.predict if one.predict > 0 else GENERATED, n_ctx - least)
        prompt = one.prompt[max(0, len(one.prompt) + most - n_ctx) :]

        def open_ledger(tokens: Tokens) -> Ledger:
            one.truncated, one.prompt = len(tokens) < len(one.prompt), tokens
            self._account(one)
            return one.ledger

        kobold.begin(one.ticket, prompt, most, open_ledger)
        one.cached, one.approximated = Count(kobold.n_past), kobold.approximated
        for piece in kobold.batches():
            self._advance(one, kobold, piece)
        while True:
            row = there_is(kobold.next_logits)
            token = Token(self._token(one, len(one.sampled), row))
            one.rows.append(row)
            one.sampled.append(token)
            kobold.current.append(token)
            if token in END_OF_GENERATION or len(one.sampled) >= most:
                break
            self._advance(one, kobold, [token])
        kobold.end()

    def _advance(self, one: Job, kobold: KoboldCpp, tokens: list[Token]) -> None:
        self._decode(one, tokens, start=kobold.n_past)
        kobold.evaluated(len(tokens), self.context.logits(len(tokens) - 1))
        known = np.array(kobold.current[: kobold.n_past])
        self._computed.learn(known, None, int(one.ticket))

    def _look_up(self, one: Job, cache: StateCache) -> None:
        """Load the cache's entry if it seems to hold more of the prompt than the instance does.

        Trap: the whole array of tokens is compared, also what was never evaluated, or was before
        the entry's own prompt.
        """
        state = cache.take(one.prompt)
        if state is None:
            return
        own = get_common_prefix(self.held_tokens, one.prompt)
        if get_common_prefix(state.input_ids.tolist(), one.prompt) > own:
            self._load(one, state)
        elif isinstance(cache, DiskCache):
            self._emit(events.StateTaken(task=one.ticket, n_tokens=state.n_tokens))
        left = get_common_prefix(self.held_tokens, one.prompt)
        if left < one.ledger.usable:
            one.ledger.apply(causes.LESS_LOADED, left, wanted=one.ledger.usable, found=left)

    @property
    def held_tokens(self) -> Tokens:
        """The tokens that the instance thinks it holds."""
        if self.kobold is not None:
            return self.kobold.held
        return tuple(self.input_ids[: self.n_tokens].tolist())

    # -- generate ------------------------------------------------------------------------------

    def _generate(self, one: Job, prompt: list[Token], most: int) -> list[Token]:
        """Follows `generate`, as far as the caller takes tokens; those it takes."""
        tokens = self._match(one, prompt)
        one.cached = Count(len(prompt) - len(tokens))
        sample_idx = self.n_tokens + len(tokens) - 1
        completion: list[Token] = []
        while True:
            self._eval(one, tokens)
            drafted = self.n_tokens - sample_idx - 1
            while sample_idx < self.n_tokens:
                row = self._logits(sample_idx - self.n_tokens)
                token = Token(self._token(one, len(one.sampled), row))
                one.rows.append(row)
                one.sampled.append(token)
                sample_idx += 1
                if token in END_OF_GENERATION:
                    return completion
                completion.append(token)
                if len(completion) >= most:
                    return completion
                tokens = [token]
                if sample_idx < self.n_tokens and token != self.input_ids[sample_idx]:
                    self._verified(one, drafted, drafted - (self.n_tokens - sample_idx))
                    self.n_tokens = sample_idx
                    self.context.seq_rm(SEQ, self.n_tokens, -1)
                    self._requires_eval = True
                    break
            else:
                self._verified(one, drafted, drafted)
            if self._drafts:
                tokens += self._draft(tokens)

    def _match(self, one: Job, prompt: list[Token]) -> list[Token]:
        """Tokens of a prompt to evaluate, after the memory was cut or the instance reset."""
        ledger = one.ledger
        if not self.n_tokens:
            self._reset(one)
            return prompt
        shared = get_common_prefix(self.held_tokens, prompt)
        whole = shared == len(prompt)
        exact = self.rules.whole_prompt_matches and whole and self.n_tokens == shared
        if exact and not self._requires_eval:
            self._emit(events.PromptHeld(task=one.ticket, n_tokens=Count(shared)))
            return []
        reuse = shared - 1 if whole else shared
        if self.rules.states_only_continue and self._has_states and reuse < self.n_tokens:
            ledger.apply(causes.STATE_BEHIND, 0, held=self.n_tokens)
            reuse = 0
        if reuse > 0:
            if self.context.seq_rm(SEQ, reuse, -1):
                if whole:
                    ledger.apply(causes.LAST_TOKEN, reuse, prompt_tokens=len(prompt))
                self.n_tokens = reuse
                self._requires_eval = True
                rest = prompt[reuse:]
                counts = {"n_tokens": Count(reuse), "remaining": Count(len(rest))}
                self._emit(events.PrefixMatched(task=one.ticket, **counts))
                return rest
            self._emit(events.CutRefused(task=one.ticket, n_tokens=Count(reuse)))
            ledger.apply(causes.CUT_REFUSED, 0, wanted=reuse)
        elif whole:
            ledger.apply(causes.LAST_TOKEN, 0, prompt_tokens=len(prompt))
        self._reset(one)
        return prompt

    def _reset(self, one: Job | None = None) -> None:
        if self.n_tokens:
            task = one.ticket if one else -1
            self._emit(events.InstanceReset(task=task, n_tokens=Count(self.n_tokens)))
        self.n_tokens = 0
        self._requires_eval = True
        if self.rules.reset_clears_states and self._has_states:
            self.context.clear(data=True)

    def _eval(self, one: Job, tokens: Sequence[Token]) -> None:
        """Follows `eval`.

        Traps: a refused cut of the memory is not checked; the array of tokens ends at `n_ctx`,
        where the context may be longer; and that of logits has `n_batch` rows where a draft model,
        and not the caller, requests those of every token.
        """
        self.context.seq_rm(SEQ, self.n_tokens, -1)
        for start in range(0, len(tokens), self.n_batch):
            piece = tokens[start : start + self.n_batch]
            self._decode(one, piece, start=self.n_tokens)
            self._last = len(piece)
            end = self.n_tokens + len(piece)
            self.input_ids[self.n_tokens : end] = piece
            if self._all:
                rows = self.scores[self.n_tokens : end]
                rows.reshape(-1)[:] = np.empty(len(piece) * rows.shape[1], "V0")
            self.n_tokens = end
            self._requires_eval = False
            self._computed.learn(self.input_ids[:end], None, int(one.ticket))

    def _decode(self, one: Job, tokens: Sequence[Token], start: int) -> None:
        batch = Batch.of(tokens, start=start, outputs=True if self._all else None)
        code = self.context.decode(batch)
        if code != OK:
            n_tokens = Count(self.n_tokens)
            self._emit(events.DecodeFailed(task=one.ticket, code=code, n_tokens=n_tokens))
            text = f"llama_decode returned {code}"
            raise CallError(text)

    def _logits(self, ridx: int) -> Array:
        row = self._last + ridx
        if row < 0:
            where = "llama_get_logits_ith"
            raise UpstreamAbort(where, f"{-ridx} tokens back in a batch")
        return self.context.logits(row)

    def _draft(self, tokens: list[Token]) -> list[Token]:
        """Follows the end of `generate`'s loop: the sampled token is appended first."""
        end = self.n_tokens + len(tokens)
        self.input_ids[self.n_tokens : end] = tokens
        most = min(self.options.num_pred_tokens, self.context.n_ctx - end)
        return lookup(self.input_ids[:end], self.options.max_ngram_size, most)

    def _verified(self, one: Job, drafted: int, accepted: int) -> None:
        if drafted > 0 and one.sampled:
            one.drafted += drafted
            one.accepted += accepted
            counts = {"drafted": Count(drafted), "accepted": Count(accepted)}
            self._emit(events.DraftVerified(task=one.ticket, **counts))

    # -- save_state and load_state -------------------------------------------------------------

    def _save(self, one: Job) -> State:
        """Follows `save_state`: the whole memory, behind the name of its architecture."""
        blob, architecture = self.context.state_write(-1), self._architecture
        state = State(
            input_ids=self.input_ids.copy(),
            n_tokens=Count(self.n_tokens),
            architecture=architecture,
            blob=blob,
            size=4 + len(architecture) + blob.size,
            scores=self.scores[: self.n_tokens].copy(),
        )
        self._emit(events.StateSaved(task=one.ticket, n_tokens=state.n_tokens, size=state.size))
        return state

    @property
    def _architecture(self) -> str:
        return ARCHITECTURES.get(frozenset(self.network.spec.layers), "")

    def _load(self, one: Job, state: State) -> None:
        """Follows `load_state`.

        Traps: llama.cpp begins its search for cells at the first one again, so that window layers
        take those that the window hides, even where they have a cell for every token (`swa_full`);
        and the tokens are replaced before llama.cpp refuses a state.
        """
        self.scores[: state.n_tokens] = state.scores
        self.input_ids = state.input_ids.copy()
        self.n_tokens = state.n_tokens
        self._requires_eval = True
        fits = state.architecture == self._architecture
        if not fits or self.context.state_read(state.blob, -1) != state.blob.size:
            self._emit(events.StateRefused(task=one.ticket, n_tokens=state.n_tokens))
            text = "Failed to set llama state data"
            raise CallError(text)
        self._emit(events.StateLoaded(task=one.ticket, n_tokens=state.n_tokens))

    # -- accounts ------------------------------------------------------------------------------

    def _account(self, one: Job) -> None:
        kept = (self.held_tokens, *(state.held for state in self._entries))
        account(one, self._computed, kept)

    def remember(self, most: int) -> None:
        self._computed.remember(most)

    def reply(self, ticket: Ticket) -> base.Reply | None:
        found = super().reply(ticket)
        one = self._jobs[ticket]
        if found is not None and self.kobold is not None:
            return replace(found, truncated=one.truncated, approximated=one.approximated)
        if found is None or not self._drafts or one.error is not None:
            return found
        return replace(found, drafted=Count(one.drafted), accepted=Count(one.accepted))

    @property
    def _entries(self) -> Collection[State | SaveState]:
        if self.kobold is not None:
            return [each for each in self.kobold.savestates if each.blob is not None]
        return () if self.cache is None else self.cache.entries.values()

    def snapshot(self) -> dict[str, Any]:
        return {**self.books(), "memory": parts(self.context)}

    def books(self) -> dict[str, Any]:
        return {
            "slots": [{"id": 0, "tokens": list(self.held_tokens)}],
            "prompt_cache": [
                {"n_tokens": each.n_tokens, "checkpoints": 0, "bytes": each.size}
                for each in self._entries
            ],
        }

    def held(self) -> Held:
        cells, rows = memory_held(self.context)
        return Held(
            slots=(SlotHeld(id=0, state="idle", tokens=self.held_tokens, checkpoints=()),),
            cells=cells,
            rows=rows,
            entries=tuple(
                EntryHeld(tokens=each.held, checkpoints=0, size=each.size) for each in self._entries
            ),
        )

    def texts(self) -> Texts:
        entries = tuple(each.held for each in self._entries)
        return Texts(slots=((0, self.held_tokens),), entries=entries)

    def amounts(self) -> Amounts:
        size = 0 if self.cache is None else self.cache.size
        return replace(memory_amounts(self.context), prompt_cache=size)

    def check_integrity(self) -> None:
        self.context.check_integrity()
