"""The prompt cache: whole conversations in host memory (`--cache-ram`)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Final

import numpy as np

from cachesim.engines.beginnings import Beginnings
from cachesim.engines.causes import Candidates, Cause
from cachesim.engines.events import Event
from cachesim.engines.llamacpp.rules import PromptCacheRules
from cachesim.engines.llamacpp.slot import Approximation, Checkpoint, SavedState
from cachesim.engines.llamacpp.vocabulary import causes, events
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Count, SeqId, Token

# Ratios as the server computes them: IEEE single precision, operand by operand.
#
# Several tests of the server are exactly on a bound (`> 0.1f`, `< 0.25f`, `< 0.5f`), where double
# precision has another result.

Float32 = np.float32


def ratio(part: int, whole: int) -> Float32:
    """`part / whole` in float32; 0/0 is NaN, as on the real machine."""
    return quotient(np.float32(part), np.float32(whole))


def quotient(part: Float32, whole: Float32) -> Float32:
    """The quotient of numbers in single precision."""
    if whole:
        return part / whole
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float32(part / whole)


HALF: Final = np.float32(0.5)
QUARTER: Final = np.float32(0.25)


def shown(value: Float32) -> float | None:
    """A ratio for events and JSON, which have no NaN."""
    number = float(value)
    return None if isnan(number) else number


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """An entry of the prompt cache; a failed load may leave its target blob empty."""

    tokens: list[Token]
    state: SavedState
    checkpoints: tuple[Checkpoint, ...]
    approximate: Approximation | None
    n_tokens: Count = field(init=False)
    number: int = 0  # of all that were stored
    size: int = field(init=False)  # bytes of the blobs and of all checkpoints

    def __post_init__(self) -> None:
        self.n_tokens = Count(len(self.tokens))  # no token is ever added
        self.size = self.state.size + sum(checkpoint.size for checkpoint in self.checkpoints)

    def empty(self) -> None:
        """Remove the target's blob after a failed load."""
        self.size -= self.state.size
        self.state = self.state.emptied()
        self.size += self.state.size


@dataclass(frozen=True, slots=True)
class Swap:
    """A query of the cache: the slot, and the candidates of the waiting request.

    There is no request when idle slots are saved. With `brief` there are no events of compared
    entries.
    """

    slot: SeqId
    emit: Callable[[Event], None]
    candidates: Candidates | None = None
    brief: bool = False

    def common(self, entry: Entry, prompt: Sequence[Token]) -> Count:
        """Tokens that an entry has in common with the request's prompt."""
        known = 0 if self.candidates is None else self.candidates.common(entry)
        return Count(known) if known else get_common_prefix(entry.tokens, prompt)

    def rule_out(self, entry: Entry, cause: Cause, **detail: Any) -> None:
        """Eliminate an entry for a cause."""
        if self.candidates is not None:
            self.candidates.rule_out(entry, cause, n_tokens=entry.n_tokens, **detail)


class PromptCache:
    """An ordered list of entries, oldest first (upstream: `server_prompt_cache`).

    An entry's age is the time of its save: a comparison does not refresh it, a load removes it.
    """

    def __init__(self, rules: PromptCacheRules, *, limit_size: int, limit_tokens: int) -> None:
        """`limit_size` in bytes; 0 for no limit."""
        self.rules = rules
        self.limit_size = limit_size
        self.limit_tokens = limit_tokens
        self.entries: list[Entry] = []
        self.size = 0  # bytes of all entries
        self.n_tokens = 0  # and their tokens
        self._stored = 0
        self._beginnings: Beginnings[Entry] = Beginnings()

    def add(self, entry: Entry) -> None:
        """Append an entry, as the newest."""
        self._stored += 1
        entry.number = self._stored
        self.entries.append(entry)
        self.size += entry.size
        self.n_tokens += entry.n_tokens
        self._beginnings.add(entry)

    def remove(self, entry: Entry) -> None:
        """Take an entry out."""
        self.entries.remove(entry)
        self.size -= entry.size
        self.n_tokens -= entry.n_tokens
        self._beginnings.remove(entry)

    def empty(self, entry: Entry) -> None:
        """Remove an entry's target blob after a failed load."""
        self.size -= entry.size
        entry.empty()
        self.size += entry.size

    def common(self, tokens: Sequence[Token]) -> dict[Entry, Count]:
        """The entries with tokens in common, oldest first, and how many these are."""
        counts: dict[Entry, Count] = {}
        for count, entries in self._beginnings.shared(tokens)[1:]:
            counts.update(dict.fromkeys(entries, count))
        return counts

    def contains(self, tokens: Sequence[Token]) -> bool:
        """True if a prompt equals an entry or is a prefix of one."""
        count, entries = self._beginnings.shared(tokens)[-1]
        return count == len(tokens) and bool(entries)

    def alloc(self, entry: Entry, swap: Swap) -> bool:
        """Append an entry unless another one contains it (upstream: `alloc`); False if not."""
        # A prompt inside a longer entry is not saved. Trap: the state of a hybrid slot is lost
        # then; the longer entry helps only with its checkpoints.
        if self.contains(entry.tokens):
            swap.emit(events.PromptAlreadyCached(slot=swap.slot, n_tokens=entry.n_tokens))
            return False
        # #25070: one entry beyond the whole limit is refused; before, it was stored and the limits
        # kept it.
        if self.rules.save_makes_room and 0 < self.limit_size < entry.size:
            swap.emit(
                events.CacheEntryTooLarge(slot=swap.slot, size=entry.size, limit=self.limit_size)
            )
            return False
        # The new entry contains these, so they are dropped. Trap: their checkpoints go with them.
        self._drop_prefixes_of(entry.tokens, swap)
        # #25070. Trap: room is made before the search, so the entry that the new request needs may
        # go.
        if self.rules.save_makes_room and self.limit_size > 0:
            while self.entries and self.size + entry.size > self.limit_size:
                oldest = self._drop_oldest(swap, "room", self.limit_size)
                swap.rule_out(oldest, causes.CACHE_MAKING_ROOM, size=oldest.size)
        self.add(entry)
        return True

    def _drop_prefixes_of(self, tokens: Sequence[Token], swap: Swap) -> None:
        common = self.common(tokens)
        for entry in [entry for entry, count in common.items() if count == entry.n_tokens]:
            swap.emit(events.CacheEntryObsolete(slot=swap.slot, n_tokens=entry.n_tokens))
            swap.rule_out(entry, causes.CACHE_OBSOLETE_ENTRY)
            self.remove(entry)

    def find(self, held: Sequence[Token], prompt: Sequence[Token], swap: Swap) -> Entry | None:
        """The entry that exceeds the slot's own tokens in both ratios (the head of `load`)."""
        lcp = get_common_prefix(held, prompt)
        # An empty slot has nothing to lose: any entry exceeds -1.
        best_keep = ratio(lcp, len(held)) if held else np.float32(-1.0)
        best_sim = ratio(lcp, len(prompt))
        swap.emit(
            events.CacheSearchBegun(slot=swap.slot, f_keep=shown(best_keep), f_sim=shown(best_sim))
        )
        best: Entry | None = None
        waiting = self._waiting(prompt, lcp, swap)
        while (entry := next(waiting, None)) is not None:
            lcp = swap.common(entry, prompt)
            keep, sim = ratio(lcp, entry.n_tokens), ratio(lcp, len(prompt))
            ratios = {"f_keep": shown(keep), "f_sim": shown(sim)}
            if not swap.brief:
                swap.emit(
                    events.CacheEntryCompared(
                        slot=swap.slot,
                        n_tokens=entry.n_tokens,
                        lcp=lcp,
                        f_keep=ratios["f_keep"],
                        f_sim=ratios["f_sim"],
                    )
                )
            # Trap: however long the shared prefix is, an entry of which less than a quarter would
            # stay is never loaded.
            if keep < QUARTER:
                swap.rule_out(entry, causes.CACHE_KEEP, f_keep=ratios["f_keep"], below=0.25)
            # Oldest first, and each better entry raises both limits. Trap: an older entry with a
            # high f_keep and a low similarity blocks a younger one.
            elif self._beats(keep, sim, best_keep, best_sim):
                if best is not None:
                    swap.rule_out(best, causes.CACHE_BETTER_ENTRY, **ratios)
                best, best_keep, best_sim = entry, keep, sim
                if swap.brief:
                    waiting = self._waiting(prompt, lcp, swap, entry)
            else:
                bests = {"best_keep": shown(best_keep), "best_sim": shown(best_sim)}
                swap.rule_out(entry, causes.CACHE_NOT_BETTER, **ratios, **bests)
        return best

    def _waiting(
        self, prompt: Sequence[Token], lcp: Count, swap: Swap, last: Entry | None = None
    ) -> Iterator[Entry]:
        """All entries (the loop of `load`); in brief those that can change the outcome."""
        candidates = swap.candidates
        if not swap.brief or candidates is None:
            yield from self.entries
            return
        # Only an entry that shares more tokens than the slot or the best entry so far can win.
        more = (entries for count, entries in self._beginnings.shared(prompt) if count > lcp)
        for entry in next(more, {}):
            if last is not None and entry.number <= last.number:
                continue
            # Where less than a quarter would be kept, only the last of the best has a cause to
            # report.
            if not candidates.drop(entry, entry.n_tokens / 5):
                yield entry

    def _beats(self, keep: Float32, sim: Float32, best_keep: Float32, best_sim: Float32) -> bool:
        # #24035, later form: similarity alone, so that a short slot prompt cannot block an entry.
        if self.rules.best_by_reuse:
            return bool(best_sim < sim)
        return bool(best_keep < keep and best_sim < sim)

    def update(self, swap: Swap) -> None:
        """Apply both limits, oldest first (upstream: `update`)."""
        # Until #25070 one entry stays, however large it is.
        least = 1 if self.rules.limits_keep_one else 0
        while 0 < self.limit_size < self.size and len(self.entries) > least:
            self._drop_oldest(swap, "size", self.limit_size)
        estimate = self.token_limit()
        while self.n_tokens > estimate and len(self.entries) > least:
            self._drop_oldest(swap, "tokens", estimate)

    def _drop_oldest(self, swap: Swap, reason: str, limit: int) -> Entry:
        entry = self.entries[0]
        self.remove(entry)
        swap.emit(
            events.CacheEntryDropped(
                slot=swap.slot, reason=reason, n_tokens=entry.n_tokens, size=entry.size, limit=limit
            )
        )
        return entry

    def token_limit(self) -> int:
        """The limit of cached tokens: the context, or the number that fits on average."""
        if self.limit_size <= 0:
            # Trap: `--cache-ram -1` lifts the limit of bytes, not that of tokens: the context's.
            return self.limit_tokens
        # Trap: an empty cache counts one byte per token, so the estimate is the limit in bytes.
        per_token = max(np.float32(1.0), ratio(self.size, max(1, self.n_tokens)))
        return max(self.limit_tokens, int(np.float32(self.limit_size) / per_token))
