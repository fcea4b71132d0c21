"""The prefix cache of Ollama's MLX runner: states at fixed positions.

    prompt      0 .................. 8191 .... end - 5        with a drafter
    next one    0 ....................... x                   resumes at the last state before x

Attention could be cut anywhere; a recurrent state is that of one position. Follows `prefixCache`,
without eviction.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cachesim.engines.causes import Loss
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import some, write_rows
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    can_trim_prompt_cache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.store.lru_prompt_cache import UNLIMITED, Fetched, Key, LRUPromptCache
from cachesim.engines.mlx_lm.vocabulary import ONE_TOKEN_IS_FED
from cachesim.engines.ollama.rules import RunnerRules
from cachesim.engines.ollama.vocabulary import DRAFTER_LOOKAHEAD, STATES_ON_A_GRID
from cachesim.units import Count, Tokens

CHUNK: Final = 2048
"""Tokens of an append in prefill, independent of the request (`prefillChunkSize`)."""


def _equal(a: Key, b: Key) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


def overwrite(old: Sequence[LayerCache], new: Sequence[LayerCache], start: int, end: int) -> None:
    """Give `old` the keys and values that `new` has in a range of positions."""
    for into, of in zip(old, new, strict=True):
        if start < end and isinstance(into, KVCache) and isinstance(of, KVCache):
            write_rows(some(into.keys), start, end, some(of.keys)[:, :, start:end])
            write_rows(some(into.values), start, end, some(of.values)[:, :, start:end])


@dataclass(slots=True)
class _Snapshot:
    """Keys and values of `[start, len(key))`; a lazy one is still that range of the buffer."""

    key: Key
    start: int
    lazy: bool = True
    user: bool = False  # of a prompt, at a fixed position: its node does not grow


class LiveBuffer:
    """The live buffer of Ollama's MLX runner until 0.32.6; its snapshots are ranges of it.

        first chat   0 ........... 296 ... 300 ......... 500    snapshots [0, 296) and [296, 500)
        second one   0 .. 5 ............... 249|250 .... 450    resumes at 5, replies from 249 on

    Only the first append after a rewind, here [5, 249), copies snapshots out before it overwrites
    them: [0, 296). The reply is then written over [296, 450), and the first chat gets its keys.
    Follows `kvcache.go` with `switchToPath`, and `cache_trie.go`; rings copy all snapshots out
    before every write. Not simulated: until 0.33.0 a chat that grew may find less of itself
    (b315b3ee9, 81f9a394e).
    """

    def __init__(self) -> None:
        self.snapshots: list[_Snapshot] = []
        self.key: Key = ()
        self.prompt = 0  # its length
        self.checked = 0  # an append below this position has copied out what it overwrites

    def _take(self, key: Key, start: int = 0, *, user: bool = False) -> None:
        """Snapshot the part of `key` beyond others; split the one where it diverges.

        A reply's leaf grows, and is copied again as a whole.
        """
        for snapshot in list(self.snapshots):
            equal = _equal(snapshot.key, key)
            start = max(start, equal)
            if snapshot.start < equal < len(snapshot.key):
                self.snapshots.append(
                    _Snapshot(snapshot.key[:equal], snapshot.start, snapshot.lazy)
                )
                snapshot.start = equal
        stem = key[:start]
        above = [snapshot for snapshot in self.snapshots if snapshot.key == stem]
        at_end = [snapshot for snapshot in self.snapshots if snapshot.start == start]
        below = [snapshot for snapshot in at_end if snapshot.key[:start] == stem]
        if start == len(key):
            for snapshot in above:
                snapshot.user |= user
        # A reply's leaf grows, and is copied again as a whole.
        elif above and not (user or below or above[0].user):
            above[0].key, above[0].lazy = key, True
        else:
            self.snapshots.append(_Snapshot(key, start, user=user))

    def _copy_out(self, start: int, stop: int) -> None:
        for snapshot in self.snapshots:
            snapshot.lazy = snapshot.lazy and not (
                snapshot.start < stop and len(snapshot.key) > start
            )

    def resume(self, tokens: Key, matched: int, used: int) -> int:
        """Rewind, restore the snapshots of another path, and append the first chunk.

        Return the number of unchanged rows of the buffer.
        """
        live = offset = min(_equal(self.key, tokens), matched)
        if offset < len(self.key):
            self._take(self.key)
        rewound = True
        for snapshot in sorted(self.snapshots, key=lambda snapshot: snapshot.start):
            if min(_equal(snapshot.key, tokens), matched) > max(snapshot.start, offset):
                offset = min(len(snapshot.key), matched)
                # A lazy snapshot is still in the buffer: reaching it is a rewind, without a copy.
                rewound = snapshot.lazy
                if not snapshot.lazy:  # its rows are appended
                    self._copy_out(snapshot.start, len(snapshot.key))
        self.key, self.prompt, self.checked = tokens[:used], len(tokens), used
        # Only the first append after a rewind copies out what it overwrites.
        if rewound or used < offset:
            self.checked += max(min(CHUNK, len(tokens) - used - 1), 1)
            self._copy_out(used, self.checked)
        return min(live, used)

    def append(
        self,
        key: Key,
        cache: Sequence[LayerCache],
        entries: Iterable[tuple[Key, Sequence[LayerCache]]],
    ) -> None:
        """Overwrite the lazy snapshots in the way, which entries with their path restore."""
        begin, held = max(len(self.key), self.checked), list(entries)
        for snapshot in self.snapshots:
            # Trap: later appends overwrite lazy snapshots, which then have another chat's keys.
            start, stop = max(begin, snapshot.start), min(len(key), len(snapshot.key))
            if not snapshot.lazy or start >= stop:
                continue
            for path, layers in held:
                end = min(stop, _equal(path, snapshot.key))
                overwrite(layers, cache, start, end)
        if len(key) < self.prompt:
            self._take(key, start=len(self.key), user=True)
        self.key = key


class PrefixCache(LRUPromptCache):
    """Copies of a prompt's caches by position; a fetch returns the deepest usable one."""

    def __init__(self, rules: StoreRules, runner: RunnerRules) -> None:
        own = replace(rules, consumes=False, prunes="never", same_key="replaces")
        super().__init__(own, UNLIMITED)
        self.runner = runner
        self.live = LiveBuffer() if runner.lazy else None

    def positions(self, job: Job, key: Tokens, equal: int) -> list[int]:
        """Follows `schedulePrefillSnapshots` and `attachPrefillSnapshots`."""
        length, ahead = len(key), self.runner.lookahead
        places = {*range(self.runner.interval, length, self.runner.interval), equal}
        places.add(length - self.runner.before_end)
        # With a drafter a key names the token after its state, so the state is that much earlier.
        return sorted(at - ahead for at in places if int(job.cached or 0) < at - ahead < length)

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """Follows `begin` with `switchToPath`."""
        near = self.search(model, tokens)
        whole = near.exact is not None
        equal = Count(len(tokens) if whole else near.common_prefix)
        limit = min(equal - self.runner.lookahead, len(tokens) - 1)
        ends = [*self.trie.prefixes(model, tokens), *([len(tokens)] if whole else [])]
        used, key = max((end for end in ends if end <= limit), default=0), None
        longest = tokens if whole else near.longer
        entry = self.trie.get(model, longest) if longest is not None else None
        if entry is not None and limit > used and can_trim_prompt_cache(entry.prompt_cache):
            used, key = limit, longest
        elif used > 0:
            key = tokens[:used]
        losses: tuple[Loss, ...] = ()
        if used < equal:
            cause, detail = STATES_ON_A_GRID, {"used": used, "interval": self.runner.interval}
            if used == len(tokens) - 1:
                cause, detail = ONE_TOKEN_IS_FED, {"n_tokens": len(tokens)}
            elif used == limit:
                cause, detail = DRAFTER_LOOKAHEAD, {"used": used, "equal": equal}
            losses = (Loss(cause=cause, before=equal, after=Count(used), detail=detail),)
        cache = None if key is None else copy_prompt_cache(self.trie.get(model, key).prompt_cache)
        if cache is not None and key is not None and len(key) > used:
            trim_prompt_cache(cache, len(key) - used)
        if self.live is not None:
            last = self.live.key
            rows = self.live.resume(tuple(tokens), max(limit, 0), used)
            if cache is not None and rows and self.trie.holds(model, last):
                overwrite(cache, self.trie.get(model, last).prompt_cache, 0, rows)
        return Fetched.up_to(used, tokens, cache, key, equal, *losses)

    def insert_cache(
        self,
        model: Hashable,
        tokens: Key,
        prompt_cache: list[LayerCache],
        *,
        cache_type: str = "assistant",
    ) -> None:
        """Insert a copy; the live buffer overwrites snapshots first (`appendKV`)."""
        if self.live is not None:
            entries = [(tuple(key), entry.prompt_cache) for _, key, entry in self.trie.items()]
            self.live.append(tuple(tokens), prompt_cache, entries)
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
