"""`Llama` as an engine: one completion at a time over one sequence (`llama.py`)."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from cachesim.engines import base
from cachesim.engines.base import Ticket
from cachesim.engines.held import Amounts
from cachesim.engines.llama_cpp_python import vocabulary
from cachesim.engines.llama_cpp_python.options import Options
from cachesim.engines.llama_cpp_python.rules import Rules
from cachesim.engines.llama_cpp_python.server import SEQ, Call, CallError, CallServer
from cachesim.engines.llama_cpp_python.states import DiskCache, State, StateCache, lookup
from cachesim.engines.llamacpp.memory.blob import ARCHITECTURES
from cachesim.engines.llamacpp.server_context import END_OF_GENERATION
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import OptionError, UpstreamAbort
from cachesim.units import Array, Count, Token, Tokens

UNKNOWN: Final = -1
"""An element of the array of tokens that was never written."""

MAX_SEQ: Final = 256
"""`llama_max_parallel_sequences()`."""


class LlamaCppPython(CallServer[Rules, Options]):
    """Instance of `Llama` with its cache and its draft model."""

    erasing = " (`reset`)"
    limit_flag = "max_tokens"

    def _set_up(self) -> None:
        self._states: dict[str, State] = {}  # those that the caller keeps
        self._disk = DiskCache(0)
        super()._set_up()

    def _start(self) -> None:
        """Follows `Llama.__init__`, and `set_cache`."""
        options = self.options
        if options.embedding and "conv" in self.network.spec.layers:
            msg = "embedding with LFM2 is not simulated: newer releases keep no logits then"
            raise OptionError(msg)
        sequences = min(options.n_ctx, options.n_batch, MAX_SEQ) if options.embedding else 1
        unified = options.embedding and self.rules.embeds_unified
        self._make_memory(n_seq_max=sequences, kv_unified=unified, swa_full=options.swa_full)
        self.context.all_outputs = options.embedding
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
        kept = {"ram": StateCache(options.capacity_bytes), "disk": self._disk}
        self.cache = kept.get(options.cache)

    # -- calls ---------------------------------------------------------------------------------

    def _perform(self, one: Call, what: str, name: str) -> None:
        if what == "reset":
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

    def _embed(self, one: Call) -> None:
        """Follows `embed`, for a text."""
        if not self.options.embedding:
            raise CallError("Llama model must be created with embedding=True to call this method")
        self._emit(vocabulary.MemoryCleared(task=one.ticket, n_tokens=Count(self.n_tokens)))
        # Trap: the memory is cleared first, and the number of tokens last: where `llama_decode`
        # fails in between, the next prompt matches tokens that the memory has lost.
        self.context.clear(data=True)
        self._decode(one, one.prompt[: self.n_batch], start=0, every=self._all)
        self.context.clear(data=True)
        self._reset(one)

    # -- create_completion ---------------------------------------------------------------------

    def _complete(self, one: Call) -> None:
        """Follows `_create_completion`."""
        prompt, n_ctx = list(one.prompt), self.context.n_ctx
        # `>=`: a place has to stay free for the first token of the reply.
        if len(prompt) >= n_ctx:
            text = f"Requested tokens ({len(prompt)}) exceed context window of {n_ctx}"
            raise CallError(text, "ValueError")
        most = one.limit if one.limit > 0 else n_ctx - len(prompt)
        most = min(most, n_ctx - len(prompt))
        self._account(one)
        if self.cache is not None:
            self._look_up(one, self.cache)
        completion = self._generate(one, prompt, most)
        if self.cache is not None:
            # Trap: the key has the whole reply, whose last token may never have been evaluated.
            state = self._save(one)
            for evicted in self.cache.put((*one.prompt, *completion), state):
                n_tokens, size = evicted.n_tokens, evicted.size
                self._emit(vocabulary.StateEvicted(task=one.ticket, n_tokens=n_tokens, size=size))

    def _look_up(self, one: Call, cache: StateCache) -> None:
        """Load the cache's entry if it seems to hold more of the prompt than the instance does."""
        state = cache.take(one.prompt)
        if state is None:
            return
        own = get_common_prefix(self.held_tokens, one.prompt)
        # Trap: the whole array of tokens is compared, also what was never evaluated, or was before
        # the entry's own prompt.
        if get_common_prefix(state.input_ids.tolist(), one.prompt) > own:
            self._load(one, state)
        # An entry of a disk cache is deleted when it is read, even if it is not loaded.
        elif isinstance(cache, DiskCache):
            self._emit(vocabulary.StateTaken(task=one.ticket, n_tokens=state.n_tokens))
        left = get_common_prefix(self.held_tokens, one.prompt)
        if left < one.ledger.usable:
            one.ledger.apply(vocabulary.LESS_LOADED, left, wanted=one.ledger.usable, found=left)

    @property
    def held_tokens(self) -> Tokens:
        """The tokens that the instance thinks it holds."""
        return tuple(self.input_ids[: self.n_tokens].tolist())

    # -- generate ------------------------------------------------------------------------------

    def _generate(self, one: Call, prompt: list[Token], most: int) -> list[Token]:
        """Follows `generate`, as far as the caller takes tokens; those it takes."""
        tokens = self._match(one, prompt)
        one.cached = Count(len(prompt) - len(tokens))
        sample_idx = self.n_tokens + len(tokens) - 1
        completion: list[Token] = []
        while True:
            self._eval(one, tokens)
            # Of what was just evaluated, everything after the sampled token is a draft.
            drafted = self.n_tokens - sample_idx - 1
            while sample_idx < self.n_tokens:
                row = self._logits(sample_idx - self.n_tokens)
                token = Token(self._token(one, len(one.sampled), row))
                one.rows.append(row)
                one.sampled.append(token)
                sample_idx += 1
                # The end mark is not part of the completion, and is never evaluated.
                if token in END_OF_GENERATION:
                    return completion
                completion.append(token)
                if len(completion) >= most:
                    return completion
                tokens = [token]
                # The first draft that differs from the sampled token ends the match: the rest is
                # cut from the memory.
                if sample_idx < self.n_tokens and token != self.input_ids[sample_idx]:
                    self._verified(one, drafted, drafted - (self.n_tokens - sample_idx))
                    self.n_tokens = sample_idx
                    self.context.seq_rm(SEQ, self.n_tokens, -1)
                    # The cut memory has no logits for the next token, so an equal prompt has to
                    # evaluate again.
                    self._requires_eval = True
                    break
            else:
                self._verified(one, drafted, drafted)
            # A draft is appended to the sampled token, and evaluated with it.
            if self._drafts:
                tokens += self._draft(tokens)

    def _match(self, one: Call, prompt: list[Token]) -> list[Token]:
        """Tokens of a prompt to evaluate, after the memory was cut or the instance reset."""
        ledger = one.ledger
        # Nothing is held; since #2108 the reset clears a recurrent memory all the same.
        if not self.n_tokens:
            self._reset(one)
            return prompt
        shared = get_common_prefix(self.held_tokens, prompt)
        whole = shared == len(prompt)
        exact = self.rules.whole_prompt_matches and whole and self.n_tokens == shared
        # #2306: a prompt that equals all tokens held needs no evaluation at all.
        if exact and not self._requires_eval:
            self._emit(vocabulary.PromptHeld(task=one.ticket, n_tokens=Count(shared)))
            return []
        # At least one token has to be evaluated; otherwise there are no logits to sample from.
        reuse = shared - 1 if whole else shared
        # #2108 to #2306: a state includes all of its tokens, so only a prompt that continues it may
        # reuse them.
        if self.rules.states_only_continue and self._has_states and reuse < self.n_tokens:
            ledger.apply(vocabulary.STATE_BEHIND, 0, held=self.n_tokens)
            reuse = 0
        if reuse > 0:
            # A refused cut leaves the memory as it was; the instance starts again.
            if self.context.seq_rm(SEQ, reuse, -1):
                if whole:
                    ledger.apply(vocabulary.LAST_TOKEN, reuse, prompt_tokens=len(prompt))
                self.n_tokens = reuse
                self._requires_eval = True
                rest = prompt[reuse:]
                counts = {"n_tokens": Count(reuse), "remaining": Count(len(rest))}
                self._emit(vocabulary.PrefixMatched(task=one.ticket, **counts))
                return rest
            self._emit(vocabulary.CutRefused(task=one.ticket, n_tokens=Count(reuse)))
            ledger.apply(vocabulary.CUT_REFUSED, 0, wanted=reuse)
        elif whole:
            ledger.apply(vocabulary.LAST_TOKEN, 0, prompt_tokens=len(prompt))
        self._reset(one)
        return prompt

    def _reset(self, one: Call | None = None) -> None:
        if self.n_tokens:
            task = one.ticket if one else -1
            self._emit(vocabulary.InstanceReset(task=task, n_tokens=Count(self.n_tokens)))
        self.n_tokens = 0
        self._requires_eval = True
        # #2108; before, the number of tokens was reset, and the state stayed.
        if self.rules.reset_clears_states and self._has_states:
            self.context.clear(data=True)

    def _eval(self, one: Call, tokens: Sequence[Token]) -> None:
        """Follows `eval`."""
        # Trap: a refused cut of the memory is not checked.
        self.context.seq_rm(SEQ, self.n_tokens, -1)
        for start in range(0, len(tokens), self.n_batch):
            piece = tokens[start : start + self.n_batch]
            self._decode(one, piece, start=self.n_tokens, every=self._all)
            self._last = len(piece)
            end = self.n_tokens + len(piece)
            # Trap: the array of tokens ends at `n_ctx`, where the context may be longer.
            self.input_ids[self.n_tokens : end] = piece
            # Trap: the array of logits has `n_batch` rows where a draft model, and not the caller,
            # requests those of every token.
            if self._all:
                rows = self.scores[self.n_tokens : end]
                rows.reshape(-1)[:] = np.empty(len(piece) * rows.shape[1], "V0")
            self.n_tokens = end
            self._requires_eval = False
            self._learn(self.input_ids[:end], one.ticket)

    def _logits(self, ridx: int) -> Array:
        row = self._last + ridx
        # Only the last batch has logits: a draft that was evaluated in several batches reaches
        # before it.
        if row < 0:
            where = "llama_get_logits_ith"
            raise UpstreamAbort(where, f"{-ridx} tokens back in a batch")
        return self.context.logits(row)

    def _draft(self, tokens: list[Token]) -> list[Token]:
        """Follows the end of `generate`'s loop: the sampled token is appended first."""
        # The sampled token is appended first: the lookup continues from it.
        end = self.n_tokens + len(tokens)
        self.input_ids[self.n_tokens : end] = tokens
        # A draft never exceeds the context; nothing checks the limit of the reply here.
        most = min(self.options.num_pred_tokens, self.context.n_ctx - end)
        return lookup(self.input_ids[:end], self.options.max_ngram_size, most)

    def _verified(self, one: Call, drafted: int, accepted: int) -> None:
        if drafted > 0 and one.sampled:
            one.drafted += drafted
            one.accepted += accepted
            counts = {"drafted": Count(drafted), "accepted": Count(accepted)}
            self._emit(vocabulary.DraftVerified(task=one.ticket, **counts))

    # -- save_state and load_state -------------------------------------------------------------

    def _save(self, one: Call) -> State:
        """Follows `save_state`: the whole memory, after the name of its architecture."""
        blob, architecture = self.context.state_write(-1), self._architecture
        state = State(
            input_ids=self.input_ids.copy(),
            n_tokens=Count(self.n_tokens),
            architecture=architecture,
            blob=blob,
            size=4 + len(architecture) + blob.size,
            scores=self.scores[: self.n_tokens].copy(),
        )
        self._emit(vocabulary.StateSaved(task=one.ticket, n_tokens=state.n_tokens, size=state.size))
        return state

    @property
    def _architecture(self) -> str:
        return ARCHITECTURES.get(frozenset(self.network.spec.layers), "")

    def _load(self, one: Call, state: State) -> None:
        """Follows `load_state`."""
        # Trap: the tokens are replaced before llama.cpp refuses a state.
        self.scores[: state.n_tokens] = state.scores
        self.input_ids = state.input_ids.copy()
        self.n_tokens = state.n_tokens
        self._requires_eval = True
        fits = state.architecture == self._architecture
        # Trap: llama.cpp begins its search for cells at the first one again, so that window layers
        # take those that the window hides, even where they have a cell for every token
        # (`swa_full`).
        if not fits or self.context.state_read(state.blob, -1) != state.blob.size:
            self._emit(vocabulary.StateRefused(task=one.ticket, n_tokens=state.n_tokens))
            raise CallError("Failed to set llama state data")
        self._emit(vocabulary.StateLoaded(task=one.ticket, n_tokens=state.n_tokens))

    # -- accounts ------------------------------------------------------------------------------

    def reply(self, ticket: Ticket) -> base.Reply | None:
        replied = super().reply(ticket)
        one = self._jobs[ticket]
        if replied is None or not self._drafts or one.error is not None:
            return replied
        return replace(replied, drafted=Count(one.drafted), accepted=Count(one.accepted))

    @property
    def _entries(self) -> Collection[State]:
        return () if self.cache is None else self.cache.entries.values()

    def amounts(self) -> Amounts:
        size = 0 if self.cache is None else self.cache.size
        return replace(super().amounts(), prompt_cache=size)
