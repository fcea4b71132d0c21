"""Saved states of an instance, and the caches that keep them (`llama_cache.py`)."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from numpy.lib.stride_tricks import sliding_window_view

from cachesim.engines.llamacpp.memory.blob import Blob
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Array, Count, Integers, Token, Tokens

DISK_BYTES: Final = 1 << 30
"""`size_limit` of `diskcache.Cache`: the oldest entry is deleted, at any capacity."""

CULLED: Final = 10
"""The most entries that one store deletes for it."""

DATABASE: Final = 32_768
"""Bytes of an empty database: a smaller capacity evicts every entry."""

LEAST_FILE: Final = 32_768
"""Bytes from which on an entry is a file of its own."""

PAGE: Final = 4096
PICKLED: Final = 330
"""Bytes of a pickled state beside its arrays, give or take ten."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """Return value of `save_state` (`LlamaState`)."""

    input_ids: Integers
    """The whole array of tokens, also behind those that the state holds."""

    n_tokens: Count
    scores: Array
    """Rows of logits, without content."""

    architecture: str
    blob: Blob
    size: int
    """Bytes of llama.cpp's state: all that a capacity in memory counts."""

    @property
    def held(self) -> Tokens:
        """The tokens that were evaluated."""
        return tuple(self.input_ids[: self.n_tokens].tolist())

    @property
    def on_disk(self) -> int:
        """Bytes of its file; of a small one, which is in the database, about those of pages."""
        whole = self.size + 4 * self.scores.size + 4 * len(self.input_ids) + PICKLED
        return whole if whole >= LEAST_FILE else -(-whole // PAGE) * PAGE


class StateCache:
    """`LlamaRAMCache`: states by prompt and reply, in the order of their last use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: dict[Tokens, State] = {}

    @property
    def size(self) -> int:
        """Bytes that the capacity is compared with."""
        return sum(entry.size for entry in self.entries.values())

    def _keys(self) -> Iterable[Tokens]:
        return self.entries

    def find(self, prompt: Sequence[Token]) -> Tokens | None:
        """The first key with the longest common prefix (`_find_longest_prefix_key`)."""
        longest, best = 0, None
        for key in self._keys():
            shared = get_common_prefix(key, prompt)
            # Strict: of equally long prefixes the first key wins, in the order of the last use.
            if shared > longest:
                longest, best = shared, key
        return best

    def take(self, prompt: Sequence[Token]) -> State | None:
        """The state under that key, which becomes the last to be evicted."""
        key = self.find(prompt)
        if key is None:
            return None
        # Read, and put back as the newest: the order of eviction is that of the last use.
        state = self.entries.pop(key)
        self.entries[key] = state
        return state

    def put(self, key: Tokens, state: State) -> list[State]:
        """Keep a state; return the evicted states, which may include it."""
        # A key that is kept again moves to the end.
        self.entries.pop(key, None)
        self.entries[key] = state
        return self._evict()

    def _evict(self) -> list[State]:
        evicted: list[State] = []
        # The new state goes too if it alone exceeds the capacity.
        while self.size > self.capacity and self.entries:
            evicted.append(self.entries.pop(next(iter(self.entries))))
        return evicted


class DiskCache(StateCache):
    """`LlamaDiskCache`: an entry is deleted when it is read, and none is refreshed."""

    @property
    def size(self) -> int:
        """Bytes that `volume()` counts."""
        return DATABASE + sum(entry.on_disk for entry in self.entries.values())

    def _keys(self) -> Iterable[Tokens]:
        """The keys in the order of their stored bytes (`iterkeys`)."""
        return sorted(self.entries, key=_stored)

    def take(self, prompt: Sequence[Token]) -> State | None:
        """The state under that key, which is no longer kept."""
        key = self.find(prompt)
        # Upstream reads with `pop`: what was loaded once is gone until the next call saves it.
        return None if key is None else self.entries.pop(key)

    def _evict(self) -> list[State]:
        evicted: list[State] = []
        # The database has a limit of its own, and removes a few entries at a time.
        while self.size > DISK_BYTES and len(self.entries) > 1 and len(evicted) < CULLED:
            evicted.append(self.entries.pop(next(iter(self.entries))))
        return evicted + super()._evict()


FRAME: Final = 1 << 16
"""Bytes after which a new frame of a stored key begins."""


def _stored(key: Tokens) -> bytes:
    """The bytes by which a disk cache sorts its keys: those of a pickled tuple, optimized.

    A tuple of up to three numbers ends with a code of its own, a longer one begins with a mark.
    """
    short = {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}
    numbers = [_stored_number(int(token)) for token in key]
    tail = short.get(len(numbers), b"t")
    codes = [*([] if len(numbers) in short else [b"("]), *numbers, tail, b"."]
    whole, frame = b"\x80\x05", b""
    for code in codes:
        if len(frame) >= FRAME:
            whole, frame = whole + _framed(frame), b""
        frame += code
    return whole + _framed(frame)


def _framed(codes: bytes) -> bytes:
    return b"\x95" + struct.pack("<Q", len(codes)) + codes if len(codes) >= 4 else codes


def _stored_number(number: int) -> bytes:
    if 0 <= number < 1 << 8:
        return b"K" + number.to_bytes(1, "little")
    if 0 <= number < 1 << 16:
        return b"M" + number.to_bytes(2, "little")
    return b"J" + number.to_bytes(4, "little", signed=True)


def lookup(tokens: Integers, most_ngram: int, most: int) -> list[Token]:
    """Draft what followed the last n-gram at its first place (`find_candidate_pred_tokens`)."""
    # The longest n-gram first; the first match ends the search.
    for size in range(min(most_ngram, len(tokens) - 1), 0, -1):
        # Without the last token, as the last window is the n-gram itself.
        windows = sliding_window_view(tokens[:-1], size)
        (starts,) = (windows == tokens[-size:]).all(axis=1).nonzero()
        if len(starts):
            first = starts[0] + size
            continued: list[Token] = tokens[first : first + most].tolist()
            return continued
    return []
