"""The prompt cache of LM Studio's mlx-engine since July 2026: one in memory, and records on disk.

    request    taken from memory, and cut if all layers can be; or read from disk, if longer
    its end    kept in memory: prompt and reply; any next request takes it, and drops it

Follows `VlmPromptCacheCoordinator`, for requests that come one after the other.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from cachesim.engines.causes import Cause, Loss
from cachesim.engines.events import Event
from cachesim.engines.lm_studio.rules import DiskRules
from cachesim.engines.lm_studio.vocabulary import RECORD_MISSING, RecordEvicted, RecordStored
from cachesim.engines.mlx_lm import vocabulary
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache, CacheList
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache, RotatingKVCache
from cachesim.engines.mlx_lm.caches.layer_cache import (
    UpstreamRaise,
    UpstreamValueError,
    inherit_bytes,
    joined,
    rows_of,
)
from cachesim.engines.mlx_lm.caches.prompt_cache import LayerCache, trim_prompt_cache
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.store.lru_prompt_cache import (
    UNLIMITED,
    CacheEntry,
    Fetched,
    Key,
    LRUPromptCache,
)
from cachesim.engines.mlx_lm.vocabulary import PromptCacheConsumed
from cachesim.engines.tokens import get_common_prefix
from cachesim.units import Array, Count

Kind: TypeAlias = Literal["kv_delta", "rotating_delta", "state_checkpoint"]

WRITE_ORDER: Final[tuple[Kind, ...]] = ("kv_delta", "rotating_delta", "state_checkpoint")
"""Upstream: `RECORD_WRITE_ORDER`."""

RETENTION: Final[tuple[Kind, ...]] = ("rotating_delta", "kv_delta", "state_checkpoint")
"""Kinds of a chunk in the order of eviction; upstream: `_RECORD_RETENTION_PRIORITY`, reversed."""


class Chunk(NamedTuple):
    """Identity of a part of a prompt: its key covers all tokens up to `end`."""

    start: int
    end: int
    key: str


RecordKey: TypeAlias = tuple[str, Kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Layers of one kind for one chunk, by their index in the prompt cache."""

    chunk: Chunk
    kind: Kind
    layers: dict[int, LayerCache]
    nbytes: int


def extend_chunks(tokens: Sequence[int], chunks: list[Chunk], size: int) -> None:
    """Append the chunks that are complete. Follows `extend_prefix_cache_chunks`."""
    start, key = (chunks[-1].end, chunks[-1].key) if chunks else (0, "prompt-prefix-v1")
    while start + size <= len(tokens):
        text = f"{key}|{','.join(map(str, tokens[start : start + size]))}"
        key = hashlib.sha256(text.encode()).hexdigest()
        chunks.append(Chunk(start, start + size, key))
        start += size


def kind_of(layer: LayerCache) -> Kind:
    """Follows `record_kind_for_prompt_cache`, which compares names of classes."""
    if type(layer) is KVCache:
        return "kv_delta"
    if type(layer) is RotatingKVCache and layer.keep == 0:
        return "rotating_delta"
    return "state_checkpoint"


def _rows(layer: KVCache | RotatingKVCache) -> tuple[Array, Array]:
    """Used rows, oldest first."""
    keys, values = layer.keys_and_values()
    if isinstance(layer, RotatingKVCache):
        return layer.temporal_order(keys), layer.temporal_order(values)
    return keys, values


def _of_rows(like: KVCache | RotatingKVCache, keys: Array, values: Array, end: int) -> LayerCache:
    """A cache with these rows, the last of them at `end - 1`."""
    cache: KVCache | RotatingKVCache
    if isinstance(like, RotatingKVCache):
        meta = (like.max_size, end, keys.shape[2])
        cache = RotatingKVCache.from_state((keys, values), (like.keep, *meta), rules=like.rules)
    else:
        cache = KVCache.from_state((keys, values), rules=like.rules)
    inherit_bytes(cache, like)
    return cache


def _sliced(layer: LayerCache, chunk: Chunk) -> LayerCache:
    """A layer's part of a record. Follows `prepare_prompt_cache_records_for_chunk`."""
    if not isinstance(layer, KVCache | RotatingKVCache):
        return layer.copy()
    keys, values = _rows(layer)
    first = layer.offset - keys.shape[2]
    # A ring may have lost rows of the chunk; then none of its records is written.
    if chunk.start < first or chunk.end > layer.offset:
        msg = f"cache snapshot covers [{first}, {layer.offset}), not [{chunk.start}, {chunk.end})"
        raise UpstreamValueError(msg)
    part = slice(chunk.start - first, chunk.end - first)
    return _of_rows(layer, keys[:, :, part].copy(), values[:, :, part].copy(), chunk.end)


def _assembled(parts: Sequence[LayerCache], end: int) -> LayerCache:
    """A layer of its parts. Follows `assemble_prompt_cache_chunks`."""
    last = parts[-1]
    if not isinstance(last, KVCache | RotatingKVCache):
        return last.copy()
    rows = [_rows(part) for part in parts if isinstance(part, KVCache | RotatingKVCache)]
    kept = slice(-last.max_size if isinstance(last, RotatingKVCache) else 0, None)
    keys, values = (joined([pair[at] for pair in rows])[:, :, kept].copy() for at in (0, 1))
    return _of_rows(last, keys, values, end)


class RecordStore:
    """Records of prompts on disk, as LM Studio's mlx-engine keeps them since #326 and #352.

        prompt     0 ........ 256 ........ 512 ........ 768 ... end    chunks of 256 tokens
        kv         [  record  ][  record  ][  record  ]                all of a prefix are needed
        rotating   [  record  ][  record  ][  record  ]                those that its window reaches
        state                             |                            one at the prefix's own end

    Follows `VlmPromptCacheStore` with `PromptCacheRestorePlanner`, `records.py` and `chunks.py`,
    but for images. A record's bytes are those of its arrays, without a header; a quarter of the
    free disk is no limit; the thread that writes is never behind.
    """

    def __init__(self, rules: DiskRules, emit: Callable[[Event], None]) -> None:
        self.rules, self._emit = rules, emit
        self.task = -1
        self.records: OrderedDict[RecordKey, Record] = OrderedDict()
        self.total_bytes = 0
        self.max_bytes = rules.provisional_bytes
        self._final = rules.max_kv_size is None  # the budget is that of a context
        self._layout: tuple[Kind, ...] = ()
        self._window = 0

    def chunks(self, tokens: Sequence[int]) -> list[Chunk]:
        """Follows `build_prefix_cache_chunks`."""
        chunks: list[Chunk] = []
        extend_chunks(tokens, chunks, self.rules.interval)
        return chunks

    def matched(self, chunks: Sequence[Chunk]) -> int:
        """End of the last chunk with a record of any kind."""
        held = (chunk.end for chunk in reversed(chunks) if any(self._of(chunk)))
        return next(held, 0)

    def _of(self, chunk: Chunk) -> Iterator[RecordKey]:
        return ((chunk.key, kind) for kind in WRITE_ORDER if (chunk.key, kind) in self.records)

    def plan(self, chunks: Sequence[Chunk]) -> list[list[RecordKey]] | None:
        """Records for a prefix of these chunks, or None if one is missing.

        Follows `restore_record_keys_for_chunk_chain`.
        """
        plan: list[list[RecordKey]] = []
        for chunk in chunks:
            keys: list[RecordKey] = []
            for kind in WRITE_ORDER:
                # A state is needed at the prefix's own end alone, a ring's rows only as far as its
                # window reaches.
                last = chunk.key == chunks[-1].key
                beyond = chunk.end <= chunks[-1].end - self._window
                passed = (kind == "state_checkpoint" and not last) or (
                    kind == "rotating_delta" and beyond
                )
                if kind not in self._layout or passed:
                    continue
                # One missing record is enough: layers of different lengths are no prefix.
                if (chunk.key, kind) not in self.records:
                    return None
                keys.append((chunk.key, kind))
            plan.append(keys)
        return plan

    def longest(self, tokens: Sequence[int]) -> tuple[int, list[list[RecordKey]]]:
        """Length and records of the longest prefix; the prompt's last token is never in it.

        Follows `plan_longest_prefix_restore`.
        """
        # The prompt's last token is fed, so a chunk that ends with it is of no use.
        chunks = [chunk for chunk in self.chunks(tokens) if chunk.end < len(tokens)]
        # The longest prefix first; a record that was evicted leaves only shorter ones.
        for count in range(len(chunks) if self._layout else 0, 0, -1):
            plan = self.plan(chunks[:count])
            if plan is not None:
                return chunks[count - 1].end, plan
        return 0, []

    def load(self, end: int, plan: Sequence[Sequence[RecordKey]]) -> list[LayerCache]:
        """The prompt cache of a plan, whose records are newest. Follows `load_restore_plan`."""
        parts: list[list[LayerCache]] = [[] for _ in self._layout]
        for key in (key for keys in plan for key in keys):
            for index, layer in self.records[key].layers.items():
                parts[index].append(layer)
        self._touch(plan)
        return [_assembled(part, end) for part in parts]

    def save(
        self, cache: Sequence[LayerCache], chunks: Sequence[Chunk], first: int, length: int
    ) -> None:
        """Write records of the chunks from `first` on; states only of one that ends at `length`.

        Follows `save_prompt_cache_snapshot` and `commit_pending_save`.
        """
        kinds = tuple(map(kind_of, cache))
        for at in range(first, len(chunks)):
            chunk = chunks[at]
            try:
                layers = [_sliced(layer_cache, chunk) for layer_cache in cache]
            # This chunk alone is left out; later ones may be complete in the ring.
            except UpstreamValueError:
                continue
            if not self._layout:
                rings = [
                    layer_cache.max_size
                    for layer_cache in cache
                    if isinstance(layer_cache, RotatingKVCache)
                ]
                self._layout, self._window = kinds, max(rings, default=0)
            for kind in WRITE_ORDER:
                # The state is that of `length` tokens, so only a chunk that ends there can have it.
                if kind in kinds and (kind != "state_checkpoint" or chunk.end == length):
                    own = {i: layers[i] for i, other in enumerate(kinds) if other == kind}
                    self._put(chunk, kind, own)
            self._touch_longest_that_fits(chunks[: at + 1])
            self._evict_if_needed()

    def _put(self, chunk: Chunk, kind: Kind, layers: dict[int, LayerCache]) -> None:
        key = (chunk.key, kind)
        if key not in self.records:
            nbytes = sum(layer.nbytes for layer in layers.values())
            record = Record(chunk=chunk, kind=kind, layers=layers, nbytes=nbytes)
            self.records[key] = record
            self.total_bytes += nbytes
            self._report(RecordStored, record)
        self.records.move_to_end(key)

    def _touch(self, plan: Sequence[Sequence[RecordKey]]) -> None:
        """Follows `_ordered_record_keys_for_touch`: a prefix outlives what follows it."""
        # A prefix outlives what follows it, because nothing after a missing chunk can be used.
        for keys in reversed(plan):
            for key in sorted(keys, key=lambda item: RETENTION.index(item[1])):
                self.records.move_to_end(key)

    def _touch_longest_that_fits(self, chunks: Sequence[Chunk]) -> None:
        """Follows `_touch_longest_budget_fit_restore_chain`."""
        for count in range(len(chunks), 0, -1):
            plan = self.plan(chunks[:count])
            if plan is None:
                continue
            if sum(self.records[key].nbytes for keys in plan for key in keys) <= self.max_bytes:
                self._touch(plan)
                return

    def observe(self, cache: Sequence[LayerCache]) -> None:
        """Set the budget by the first finished request. Follows `final_cache_store_budget_bytes`.

        It is that of one context: rows for `max_kv_size` tokens, rings too, and a state per chunk.
        """
        context = self.rules.max_kv_size
        # The budget is set once, by the first finished request.
        if self._final or context is None:
            return
        self._final, self.max_bytes = True, 0
        for layer in cache:
            if isinstance(layer, KVCache | RotatingKVCache):
                keys, values = layer.keys_and_values()
                used = _of_rows(layer, keys, values, layer.offset)
                rows = rows_of(keys)
                self.max_bytes += -(-used.nbytes * max(context, rows) // rows)
            elif isinstance(layer, ArraysCache):
                self.max_bytes += max(1, context // self.rules.interval) * layer.nbytes
        self._evict_if_needed()

    def _evict_if_needed(self) -> None:
        while self.total_bytes > self.max_bytes and self.records:
            _, record = self.records.popitem(last=False)
            self.total_bytes -= record.nbytes
            self._report(RecordEvicted, record)

    def problems(self) -> Iterator[str]:
        """Records of whole chunks, whose bytes are counted and within the budget."""
        total = sum(record.nbytes for record in self.records.values())
        if total != self.total_bytes:
            yield f"the records take {total} bytes, the counter says {self.total_bytes}"
        if total > self.max_bytes:
            yield f"the records take {total} bytes, {self.max_bytes} are allowed"
        for record in self.records.values():
            if record.chunk.end - record.chunk.start != self.rules.interval:
                yield f"a record covers {record.chunk.start} to {record.chunk.end}"
            if record.nbytes != sum(layer.nbytes for layer in record.layers.values()):
                yield f"a record of {record.nbytes} bytes has layers of another size"

    def _report(self, event: type[RecordStored | RecordEvicted], record: Record) -> None:
        start, end = Count(record.chunk.start), Count(record.chunk.end)
        kind, nbytes = record.kind, record.nbytes
        self._emit(event(task=self.task, start=start, n_tokens=end, cache_type=kind, nbytes=nbytes))


Reason: TypeAlias = tuple[int, Cause, Mapping[str, Any]]
"""Matching tokens of a source, and the cause if fewer of them are used."""


class DiskPromptCache(LRUPromptCache):
    """The entry of the last finished request of a model, and the model's records."""

    def __init__(self, rules: StoreRules, disk: DiskRules) -> None:
        own = replace(rules, consumes=True, prunes="never", same_key="replaces")
        super().__init__(own, UNLIMITED)
        self.disk = disk
        self.stores: dict[Hashable, RecordStore] = {}

    def store(self, model: Hashable) -> RecordStore:
        """The records of a model; they are lost when its process ends."""
        store = self.stores.setdefault(model, RecordStore(self.disk, self.on_event))
        store.task = self.task
        return store

    def _take_hot(self, model: Hashable) -> tuple[Key, CacheEntry] | None:
        """Follows `_take_hot_entry`: used or not, the entry is removed."""
        for owner, key, entry in self.trie.items():
            if owner == model:
                self.trie.pop(model, key)
                self.order.remove(model, key)
                self._uncount(entry)
                self._emit(PromptCacheConsumed, key, entry)
                return key, entry
        return None

    def on_disk(self) -> Iterator[dict[str, Any]]:
        """The records as entries, the next one to evict first."""
        for model, store in self.stores.items():
            for record in store.records.values():
                state = record.kind == "state_checkpoint"
                entry = {"n_tokens": record.chunk.end, "checkpoints": 0, "type": record.kind}
                owner = {"model": model} if model else {}
                yield {**entry, "nbytes": record.nbytes, "trimmable": not state, **owner}

    def problems(self) -> Iterator[str]:
        """One conversation in memory, and the records of each model."""
        if len(self) > 1:
            yield f"{len(self)} conversations are in memory, one is allowed"
        for store in self.stores.values():
            yield from store.problems()

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """The longer of both matches. Follows `_restore_best_prefix`."""
        most, store, hot = len(tokens) - 1, self.store(model), self._take_hot(model)
        key, cache = ((), None) if hot is None else (hot[0], hot[1].prompt_cache)
        common = get_common_prefix(tokens, key)
        used = min(common, most)
        surplus = len(key) - used
        matched = store.matched(store.chunks(tokens))
        on_disk, plan = (0, []) if used == most and not surplus else store.longest(tokens)
        hot_reason: Reason = (common, vocabulary.ONE_TOKEN_IS_FED, {"n_tokens": len(tokens)})
        frozen = [i for i, layer in enumerate(cache or ()) if not layer.is_trimmable()]
        if cache is not None and frozen:
            name = type(cache[frozen[0]]).__name__
            detail = {"entry": len(key), "layer": frozen[0], "cache": name}
            hot_reason = (common, vocabulary.NOT_TRIMMABLE, detail)
        # The records win if they reach further, or if the entry cannot be cut as far as needed.
        if cache is None or not used or on_disk > used or trim(cache, surplus) != surplus:
            used, key = on_disk, tokens[:on_disk]
            cache = store.load(used, plan) if used else None
        return Fetched(
            prompt_cache=cache,
            rest=tokens[used:],
            kind="shorter" if used else "miss",
            key=key if used else None,
            equal=Count(max(common, matched)),
            losses=_losses(len(tokens), used, matched, hot_reason),
        )


def _losses(length: int, used: int, matched: int, hot: Reason) -> tuple[Loss, ...]:
    """Causes in `_restore_best_prefix`: of the longer match, then of the other one."""
    disk: Reason = (matched, RECORD_MISSING, {"matched": matched, "used": used})
    reasons = sorted((hot, disk), key=itemgetter(0), reverse=True)
    if used == length - 1:
        reasons = [(reasons[0][0], vocabulary.ONE_TOKEN_IS_FED, {"n_tokens": length})]
    losses = []
    for index, (before, cause, detail) in enumerate(reasons):
        after = max(used, reasons[index + 1][0] if index + 1 < len(reasons) else 0)
        if after < before:
            losses.append(
                Loss(cause=cause, before=Count(before), after=Count(after), detail=detail)
            )
    return tuple(losses)


def trim(cache: list[LayerCache], surplus: int) -> int:
    """The number of tokens that were cut. Follows `_load_hot_restore_plan`."""
    return trim_prompt_cache(cache, surplus) if surplus > 0 else 0


class Saver:
    """Chunks of a request that are still to be saved (`_PrefixCacheSaveState`)."""

    def __init__(self, store: RecordStore, prompt: Key, cached: int) -> None:
        self._store, self._size = store, store.rules.interval
        self._chunks = store.chunks(prompt)
        self._next = cached // self._size

    def after_call(self, cache: Sequence[LayerCache], tokens: Key, length: int) -> None:
        """Save what is complete after `length` of the tokens; an error is not reported.

        Follows `_emit_cache_save_snapshots` of prompts, `_emit_cache_save_snapshot` of replies.
        """
        extend_chunks(tokens, self._chunks, self._size)
        first, end = self._next, length // self._size
        if first < end:
            self._next = end
            with suppress(UpstreamRaise):
                self._store.save(extracted(cache), self._chunks[:end], first, length)


def extracted(cache: Sequence[LayerCache]) -> list[LayerCache]:
    """The caches of a row, as they are unless they have a batch's methods. Follows `extract_cache`.

    Trap: a list of caches has them, and the attention in it does not.
    """
    batched = (ArraysCache, CacheList)
    return [
        layer_cache.extract(0) if isinstance(layer_cache, batched) else layer_cache
        for layer_cache in cache
    ]
