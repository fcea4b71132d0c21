"""The server's store: lookups with their causes, insertions with a check of their state."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from cachesim.engines.causes import Ledger
from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import vocabulary
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import ChunkedKVCache, RotatingKVCache, SparseCache
from cachesim.engines.mlx_lm.caches.layer_cache import LayerCache, UpstreamRaise, name_of
from cachesim.engines.mlx_lm.generate.batch_generator import BatchGenerator, OldBatchGenerator
from cachesim.engines.mlx_lm.generate.shared import PromptCache, leaves
from cachesim.engines.mlx_lm.options import MlxOptions
from cachesim.engines.mlx_lm.rules import MlxRules
from cachesim.engines.mlx_lm.server.request import Job
from cachesim.engines.mlx_lm.store.lru_prompt_cache import CacheEntry, Fetched, LRUPromptCache
from cachesim.engines.mlx_lm.store.snapshot_prompt_cache import SnapshotPromptCache
from cachesim.engines.mlx_lm.vocabulary import Insertion, SnapshotTaken, StoreTrimmed
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import ContractError
from cachesim.model.arithmetic import LayerShape, Network
from cachesim.model.trace import NodeId, Traced
from cachesim.units import Count, Integers, Token, Tokens

# Check of stored states against their keys, by the marks of their rows.
#
# A `Traced` network keeps marks beside the real layers: the tokens of each row and each recurrent
# state, place by place.


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Content of the layers of one place, compared with a key.

    `tokens` is empty if the content is the key's.
    """

    place: str
    sound: bool
    tokens: Tokens


def holdings(network: Network, cache: PromptCache, key: Tokens) -> tuple[Holding, ...]:
    """An entry for each place of a traced network; none without a trace."""
    if not isinstance(network, Traced):
        return ()
    clean = network.histories.clean(key)
    marks = [pair for pair in zip(network.shapes, leaves(cache), strict=False) if pair[0].marks]
    return tuple(
        _holding(network, shape, layer, clean, place) for place, (shape, layer) in enumerate(marks)
    )


def is_sound(network: Network, cache: PromptCache, key: Tokens) -> bool | None:
    """Check whether a prompt cache holds exactly the key's tokens; None without a trace."""
    held = holdings(network, cache, key)
    return all(holding.sound for holding in held) if held else None


def _holding(
    network: Traced, shape: LayerShape, layer: LayerCache, key_nodes: list[NodeId], place: int
) -> Holding:
    if isinstance(layer, ArraysCache):
        state = layer[-1]
        node = 0 if state is None else int(state[0, 0])
        sound = node == key_nodes[-1]
        tokens = () if sound else network.histories.tokens(node, place)
        return Holding(place=shape.place, sound=sound, tokens=tokens)
    count = len(key_nodes) - 1
    positions, nodes = _cells(network, layer)
    needed = _visible_next(layer, count)
    newest = slice(len(nodes) - needed, None)
    expected = np.arange(count - needed, count)
    sound = bool(
        getattr(layer, "offset", None) == count
        and len(nodes) >= needed
        and np.array_equal(positions[newest], expected)
        and np.array_equal(nodes[newest], np.array(key_nodes)[expected + 1])
    )
    tokens = () if sound else tuple(network.histories.token(int(node)) for node in nodes)
    return Holding(place=shape.place, sound=sound, tokens=tokens)


def _visible_next(layer: LayerCache, count: int) -> int:
    if isinstance(layer, RotatingKVCache) or (isinstance(layer, SparseCache) and not layer.groups):
        return min(count, layer.max_size)
    return count % layer.chunk_size if isinstance(layer, ChunkedKVCache) else count


def _cells(network: Traced, layer: LayerCache) -> tuple[Integers, Integers]:
    """Positions and nodes of the used rows, oldest first.

    A ring may hold more rows than its window, padding included; no query sees them.
    """
    if isinstance(layer, RotatingKVCache) and layer.keys is not None:
        keys = layer.temporal_order(layer.keys)
    elif getattr(layer, "keys", None) is not None:
        keys, _ = layer.keys_and_values()
    else:
        keys = np.zeros((1, 1, 0, 2))
    rows = keys[0, 0].astype(np.int64)
    return rows[:, -1] - 1, network.nodes_of_births(rows[:, 0])


def described(network: Network, cache: PromptCache) -> tuple[dict[str, Any], ...]:
    """The real layers of a prompt cache as plain data, a draft model's last, without marks."""
    shapes = network.shapes
    pairs = zip_longest(shapes, leaves(cache))
    return tuple(_described(layer) for shape, layer in pairs if shape is None or not shape.marks)


def _described(layer: LayerCache) -> dict[str, Any]:
    entry: dict[str, Any] = {"class": layer.upstream_name or type(layer).__name__}
    if isinstance(layer, ArraysCache):
        entry["filled"] = [state is not None for state in layer.cache]
    else:
        keys = getattr(layer, "keys", None)
        entry["offset"] = int(getattr(layer, "offset", 0))
        entry["rows"] = 0 if keys is None else int(keys.shape[2])  # allocated ones
        if isinstance(layer, SparseCache):
            entry["rows"] = layer.window_rows
    entry["trimmable"] = layer.is_trimmable()
    entry["nbytes"] = nbytes_or_error(layer)
    return entry


def nbytes_or_error(layer: LayerCache) -> int | str:
    """Bytes by the layer's own count; releases before #906 have no such property."""
    try:
        return layer.nbytes
    except UpstreamRaise as error:
        return name_of(error)


class ServerStore:
    """A `LRUPromptCache` with its events and causes."""

    def __init__(
        self,
        networks: Mapping[str, Network],
        options: MlxOptions,
        rules: MlxRules,
        emit: Callable[[Event], None],
        cache: LRUPromptCache,
    ) -> None:
        self._networks: Mapping[Any, Network] = networks  # by the key of their entries
        self._rules = rules
        self._emit = emit
        self._limit = options.prompt_cache_bytes
        self.number = 0
        self._snapshots: list[CacheEntry] = []
        self.watch: Callable[[Insertion, PromptCache], None] | None = None
        self.cache = cache
        self.cache.on_event = emit

    def look_up(
        self, job: Job, key: Tokens, pending: Iterable[Job] = ()
    ) -> tuple[PromptCache | None, Fetched]:
        """The cache to resume from; the job gets its number of cached tokens and its ledger."""
        self.cache.task = job.ticket
        in_flight = [
            (get_common_prefix(key, ((*request.prompt, *request.generated))), request)
            for request in pending
        ]
        ahead, other = max(in_flight, key=lambda pair: pair[0], default=(Count(0), None))
        fetched = self.cache.fetch(job.model, list(key))
        cached = Count(len(key) - len(fetched.rest))
        if ahead > fetched.equal and other is not None:
            job.ledger = Ledger(ahead, f"request {int(other.ticket)}, still running")
            job.ledger.apply(vocabulary.STILL_AT_WORK, fetched.equal, request=int(other.ticket))
        else:
            job.ledger = Ledger(fetched.equal, _in_words(fetched))
        for loss in fetched.losses:
            job.ledger.apply(loss.cause, loss.after, **loss.detail)
        if job.ledger.usable != cached:
            msg = f"{cached} tokens are cached, but the reasons say {job.ledger.usable}"
            raise ContractError(msg)
        job.cached = cached
        return fetched.prompt_cache, fetched

    def soundness(self, job: Job, cache: PromptCache | None, tokens: Tokens) -> bool | None:
        """Check whether a returned cache holds these tokens; None without a cache."""
        return None if cache is None else is_sound(self._networks[job.model], cache, tokens)

    def insert(
        self, job: Job, key: Sequence[Token], cache: PromptCache, cache_type: str = "assistant"
    ) -> None:
        """Store a state under a key, and report whether it is the key's."""
        self.cache.task = job.ticket
        if isinstance(self.cache, SnapshotPromptCache):
            self.cache.move_cache(
                job.model, list(key), cache, boundaries=job.boundaries, position=job.old_position
            )
        else:
            self.cache.insert_cache(job.model, list(key), cache, cache_type=cache_type)
        self.number += 1
        network, fed = self._networks[job.model], tuple(key)
        if job.images:  # whose ids in the key are no tokens of the model
            fed = (*job.prompt, *job.generated)[: len(key)]
        held = holdings(network, cache, fed)
        insertion = Insertion(
            task=job.ticket,
            number=self.number,
            type=self._rules.store.queue_of(cache_type),
            length=Count(len(key)),
            key=tuple(key),
            layers=described(network, cache),
            state_is_key=all(holding.sound for holding in held) if held else None,
            held={holding.place: holding.tokens for holding in held if not holding.sound},
        )
        self._emit(insertion)
        if self._rules.server.snapshots is not None:
            # Report the content of copies that an insertion under #923 made.
            for model, tokens, entry in self.cache.trie.items():
                if not entry.is_snapshot or any(entry is snapshot for snapshot in self._snapshots):
                    continue
                self._snapshots.append(entry)
                held = holdings(
                    self._networks[model], entry.prompt_cache, tuple(map(Token, tokens))
                )
                self._emit(
                    SnapshotTaken(
                        task=job.ticket,
                        length=Count(len(tokens)),
                        state_is_key=all(holding.sound for holding in held) if held else None,
                        held={
                            holding.place: holding.tokens for holding in held if not holding.sound
                        },
                    )
                )
        if self.watch is not None:
            self.watch(insertion, cache)

    def trim(self, job: Job, generator: BatchGenerator | OldBatchGenerator) -> None:
        """Evict entries so that they fit `--prompt-cache-bytes` beside the caches in use."""
        if self._limit is None:
            return
        self.cache.task = job.ticket
        before, active = self.cache.nbytes, generator.prompt_cache_nbytes
        self.cache.trim_to(n_bytes=self._limit - active)
        if self.cache.nbytes < before:
            limit = max(0, self._limit - active)
            after = self.cache.nbytes
            self._emit(StoreTrimmed(task=job.ticket, limit=limit, before=before, after=after))

    def entries(self) -> list[dict[str, Any]]:
        """The stored prompt caches, depth first; `checkpoints` is a field of other servers."""
        return [
            {
                "n_tokens": len(tokens),
                "checkpoints": 0,
                "type": entry.cache_type,
                "nbytes": entry.nbytes,
                "trimmable": all(layer.is_trimmable() for layer in entry.prompt_cache),
                **({"model": model} if model else {}),
            }
            for model, tokens, entry in self.cache.trie.items()
        ] + [*self.cache.on_disk()]


def _in_words(found: Fetched) -> str:
    if found.equal == 0:
        return "nothing"
    if found.key is None or len(found.key) < found.equal:
        return "a stored prompt that is not used"
    return f"a stored prompt of {len(found.key)} tokens"
