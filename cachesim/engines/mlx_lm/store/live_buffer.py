"""The live buffer of Ollama's MLX runner until 0.32.6, and the snapshots that are ranges of it.

    first chat    0 ........... 296 ... 300 ......... 500     snapshots [0, 296) and [296, 500)
    second one    0 .. 5 ............... 249|250 .... 450     resumes at 5, and replies from 249 on

Only the first append after a rewind, here [5, 249), copies snapshots out before it overwrites
them: [0, 296). The reply is then written over [296, 450), and the first chat gets its keys.
Follows `KVCache` with `switchToPath`; rings copy all snapshots out before every write. Not
simulated: until 0.33.0 a chat that grew may find less of itself (b315b3ee9, 81f9a394e).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache, some, write_rows
from cachesim.engines.mlx_lm.store.lru_prompt_cache import Key

CHUNK: Final = 2048
"""Tokens of an append in prefill, whatever the request asks for (`prefillChunkSize`)."""


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
    """The keys and values of one path at a time. Follows `kvcache.go` and `cache_trie.go`."""

    def __init__(self) -> None:
        self.snapshots: list[_Snapshot] = []
        self.key: Key = ()
        self.prompt = 0  # its length
        self.checked = 0  # an append below this position has copied out what it overwrites

    def _take(self, key: Key, start: int = 0, *, user: bool = False) -> None:
        """Keep what `key` has beyond other snapshots; split the one that it leaves midway.

        A node of a reply that has no further one below it grows, and is all taken anew.
        """
        for each in list(self.snapshots):
            equal = _equal(each.key, key)
            start = max(start, equal)
            if each.start < equal < len(each.key):
                self.snapshots.append(_Snapshot(each.key[:equal], each.start, each.lazy))
                each.start = equal
        stem = key[:start]
        above = [each for each in self.snapshots if each.key == stem]
        at_end = [each for each in self.snapshots if each.start == start]
        below = [each for each in at_end if each.key[:start] == stem]
        if start == len(key):
            for each in above:
                each.user |= user
        elif above and not (user or below or above[0].user):
            above[0].key, above[0].lazy = key, True
        else:
            self.snapshots.append(_Snapshot(key, start, user=user))

    def _copy_out(self, start: int, stop: int) -> None:
        for each in self.snapshots:
            each.lazy = each.lazy and not (each.start < stop and len(each.key) > start)

    def resume(self, tokens: Key, matched: int, used: int) -> int:
        """Rewind, restore the snapshots of another path, and append the first chunk.

        Return how many rows of the buffer stayed as they were.
        """
        live = offset = min(_equal(self.key, tokens), matched)
        if offset < len(self.key):
            self._take(self.key)
        rewound = True
        for each in sorted(self.snapshots, key=lambda each: each.start):
            if min(_equal(each.key, tokens), matched) > max(each.start, offset):
                offset = min(len(each.key), matched)
                rewound = each.lazy
                if not each.lazy:  # its rows are appended
                    self._copy_out(each.start, len(each.key))
        self.key, self.prompt, self.checked = tokens[:used], len(tokens), used
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
        for each in self.snapshots:
            start, stop = max(begin, each.start), min(len(key), len(each.key))
            if not each.lazy or start >= stop:
                continue
            for path, layers in held:
                end = min(stop, _equal(path, each.key))
                overwrite(layers, cache, start, end)
        if len(key) < self.prompt:
            self._take(key, start=len(self.key), user=True)
        self.key = key
