"""`LRUPromptCache`: whole conversations kept for later, in the generations that upstream had."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cachesim.engines.causes import Cause, Loss
from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import causes
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    can_trim_prompt_cache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.caches.raised import (
    UpstreamAttributeError,
    UpstreamIndexError,
    UpstreamValueError,
)
from cachesim.engines.mlx_lm.events import (
    PromptCacheChange,
    PromptCacheConsumed,
    PromptCacheEvicted,
    PromptCacheInserted,
    PromptCachePruned,
    PromptCacheRefused,
    PromptCacheReplaced,
)
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.store.trie import Key, PromptTrie, PromptTrieResult
from cachesim.units import Count


class CacheOrder:
    """A queue per type of entry, the least worth keeping first."""

    def __init__(self, rules: StoreRules) -> None:
        self._rules = rules
        self.queues: dict[str, deque[tuple[Hashable, Key]]] = {
            name: deque() for name in rules.queues
        }

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def push(self, model: Hashable, tokens: Key, queue: str) -> None:
        """Put a key at the end of its queue."""
        self.queues[queue].append((model, tokens))

    def remove(self, model: Hashable, tokens: Key) -> None:
        """Take a key out of the first queue that has it; follows `CacheOrder.remove`."""
        for queue in self.queues.values():
            if (model, tokens) in queue:
                queue.remove((model, tokens))
                return
        if not self._rules.forgives_lost_keys:
            msg = "deque.remove(x): x not in deque"
            raise UpstreamValueError(msg)

    def pop(self) -> tuple[Hashable, Key]:
        """The next to go; follows `CacheOrder.pop`.

        A queue is taken from if it is at least as long as the one after it, else that one is asked.
        """
        names: Sequence[str] = self._rules.queues
        for one, two in pairwise(names):
            queue, following = self.queues[one], self.queues[two]
            if len(queue) >= len(following) and (queue or not self._rules.passes_empty_queues):
                return self._first(queue)
        return self._first(self.queues[names[-1]])

    @staticmethod
    def _first(queue: deque[tuple[Hashable, Key]]) -> tuple[Hashable, Key]:
        if not queue:
            msg = "pop from an empty deque"
            raise UpstreamIndexError(msg)
        return queue.popleft()


UNLIMITED = 1 << 63


@dataclass(slots=True, kw_only=True)
class CacheEntry:
    """A prompt cache: the very list that was inserted. Bytes are counted once, then."""

    prompt_cache: list[LayerCache]
    nbytes: int
    cache_type: str
    count: int = 1
    is_snapshot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Result of a lookup, and the cause of its limit."""

    prompt_cache: list[LayerCache] | None
    rest: Key
    kind: str  # exact, longer, shorter, untrimmed, snapshot, miss
    key: Key | None = None  # of the entry that was used
    position: Key | None = None  # #923: the entry that is to be deleted when its cache comes back
    equal: Count = Count(0)
    losses: tuple[Loss, ...] = ()


class LRUPromptCache:
    """Prompt caches under (model, tokens) (`LRUPromptCache`)."""

    def __init__(
        self,
        rules: StoreRules,
        max_size: int = 10,
        max_bytes: int = UNLIMITED,
        *,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.rules = rules
        self.max_size = max_size
        self.max_bytes = max_bytes
        self.trie: PromptTrie[CacheEntry] = PromptTrie()
        self.order = CacheOrder(rules)
        self.task = -1  # of the request that the store is used for
        self._tell = on_event or (lambda _event: None)
        self._n_bytes = 0
        self._n_bytes_by_type = dict.fromkeys(rules.queues, 0)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries, as counted when they came."""
        self._needs_bytes("nbytes")
        return self._n_bytes

    def fetch_nearest_cache(
        self, model: Hashable, tokens: Key
    ) -> tuple[list[LayerCache] | None, Key]:
        """The prompt cache to go on from, and what is left to feed. Follows upstream's method."""
        found = self.fetch(model, tokens)
        return found.prompt_cache, found.rest

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """As `fetch_nearest_cache`, with the reasons."""
        found = self.search(model, tokens)
        if found.exact is not None:
            cache = self._handed_out(model, found.exact)
            return Fetched(
                prompt_cache=cache,
                rest=tokens[len(tokens) :],
                kind="exact",
                key=found.exact,
                equal=Count(len(tokens)),
            )
        return self._longer(found, tokens) or self._shorter(found, tokens)

    def search(self, model: Hashable, tokens: Key) -> PromptTrieResult:
        """The trie's answer under this generation's rules."""
        return self.trie.search(
            model,
            tokens,
            empty_is_exact=self.rules.empty_query_is_exact,
            longer_beside_shorter=self.rules.longer_beside_shorter,
        )

    def _longer(self, found: PromptTrieResult, tokens: Key) -> Fetched | None:
        """A longer entry, copied and cut back to what is equal, if all its layers can be cut.

        entry   [0 ........ common prefix ........ len(longer))
        result  [0 ... p)   p = min(len(tokens) - 1, common prefix): one token is left to feed
        """
        used = 0 if found.shorter is None else len(found.shorter)
        if found.longer is None or found.common_prefix <= used:
            return None
        if found.common_prefix < len(tokens) and not self.rules.cuts_to_common_prefix:
            return None
        entry = self.trie.get(found.model, found.longer)
        equal = Count(found.common_prefix)
        if not can_trim_prompt_cache(entry.prompt_cache):
            return self._untrimmed(found, entry, tokens) if self.rules.reuses_untrimmed else None
        cache = copy_prompt_cache(entry.prompt_cache)
        spared = 1 if self.rules.leaves_one_token else 0
        prefix = Count(min(len(tokens) - spared, equal))
        wanted = len(found.longer) - prefix
        trimmed = trim_prompt_cache(cache, wanted)
        if self.rules.checks_trimmed and trimmed < wanted:
            return None
        losses: tuple[Loss, ...] = ()
        if prefix < equal:
            losses = (_loss(causes.ONE_TOKEN_IS_FED, equal, prefix, n_tokens=len(tokens)),)
        return Fetched(
            prompt_cache=cache,
            rest=tokens[prefix:],
            kind="longer",
            key=found.longer,
            equal=equal,
            losses=losses,
        )

    @staticmethod
    def _untrimmed(found: PromptTrieResult, entry: CacheEntry, tokens: Key) -> Fetched:
        """#1186: the longer entry as it is, although it holds tokens of another prompt."""
        return Fetched(
            prompt_cache=copy_prompt_cache(entry.prompt_cache),
            rest=tokens[found.common_prefix :],
            kind="untrimmed",
            key=found.longer,
            equal=Count(found.common_prefix),
        )

    def _shorter(self, found: PromptTrieResult, tokens: Key) -> Fetched:
        equal = Count(found.common_prefix)
        losses = self._losses_of_shorter(found)
        if found.shorter is None:
            return Fetched(prompt_cache=None, rest=tokens, kind="miss", equal=equal, losses=losses)
        return Fetched(
            prompt_cache=self._handed_out(found.model, found.shorter),
            rest=tokens[len(found.shorter) :],
            kind="shorter",
            key=found.shorter,
            equal=equal,
            losses=losses,
        )

    def _losses_of_shorter(self, found: PromptTrieResult) -> tuple[Loss, ...]:
        equal = Count(found.common_prefix)
        used = Count(0 if found.shorter is None else len(found.shorter))
        return (self._why_not_longer(found, equal, used),) if used < equal else ()

    def _why_not_longer(self, found: PromptTrieResult, equal: Count, used: Count) -> Loss:
        if found.longer is None:
            return _loss(causes.SHORTER_ENTRY_FIRST, equal, used, used=int(used))
        layers = self.trie.get(found.model, found.longer).prompt_cache
        frozen = [i for i, layer in enumerate(layers) if not layer.is_trimmable()]
        if not frozen:
            return _loss(causes.TRIMMED_TOO_LITTLE, equal, used, entry=len(found.longer))
        return _loss(
            causes.NOT_TRIMMABLE,
            equal,
            used,
            entry=len(found.longer),
            layer=frozen[0],
            cache=type(layers[frozen[0]]).__name__,
        )

    def _handed_out(self, model: Hashable, key: Key) -> list[LayerCache]:
        """A copy; where fetching consumes, the object itself unless it is counted more than once.

        Follows `_extract` of the older generations.
        """
        entry = self.trie.get(model, key)
        if not self.rules.consumes:
            return copy_prompt_cache(entry.prompt_cache)
        if entry.count == 1:
            self.trie.pop(model, key)
            self.order.remove(model, key)
            self._uncount(entry)
            self._say(PromptCacheConsumed, key, entry)
            return entry.prompt_cache
        entry.count -= 1
        return copy_prompt_cache(entry.prompt_cache)

    def insert_cache(
        self,
        model: Hashable,
        tokens: Key,
        prompt_cache: list[LayerCache],
        *,
        cache_type: str = "assistant",
    ) -> None:
        """Keep a prompt cache: store, push, prune, evict. Follows upstream's method.

        Neither the list nor the key is copied: changing them afterwards changes the entry, or
        breaks its eviction.
        """
        queue = self.rules.queue_of(cache_type)
        self._store(model, tokens, prompt_cache, queue)
        self.order.push(model, tokens, queue)
        if self.rules.prunes != "never" and can_trim_prompt_cache(prompt_cache):
            self._prune(model, tokens, prompt_cache)
        if len(self.order) > self.max_size:
            self._evict()
        while self._n_bytes > self.max_bytes and (
            len(self.order) > 1 or not self.rules.keeps_one_beyond_bytes
        ):
            self._evict()

    def _store(
        self, model: Hashable, tokens: Key, prompt_cache: list[LayerCache], queue: str
    ) -> None:
        held = self.trie.get(model, tokens) if self.trie.holds(model, tokens) else None
        if held is not None:
            self.order.remove(model, tokens)
        if held is not None and self.rules.same_key != "replaces":
            held.count += self.rules.same_key == "counts"
            self._say(PromptCacheRefused, tokens, held)
            return
        nbytes = sum(each.nbytes for each in prompt_cache) if self.rules.limits_bytes else 0
        entry = CacheEntry(prompt_cache=prompt_cache, nbytes=nbytes, cache_type=queue)
        self.trie.add(model, tokens, entry)
        self._n_bytes += nbytes
        self._n_bytes_by_type[queue] += nbytes
        if held is not None:
            self._uncount(held)
            self._say(PromptCacheReplaced, tokens, held)
        self._say(PromptCacheInserted, tokens, entry)

    def _prune(self, model: Hashable, tokens: Key, prompt_cache: Sequence[LayerCache]) -> None:
        """Drop what a trimmable entry covers: all proper prefixes, or those the rules allow."""
        if self.rules.prunes == "all":
            pruned = self.trie.pop_prefixes(model, tokens)
        else:
            reach = len(tokens)
            if self.rules.prunes == "within-size":
                reach = min(each.size() for each in prompt_cache)
            nearest = int(self.rules.prunes == "all-but-nearest")
            pruned = [
                (depth, self.trie.pop(model, tokens[:depth]))
                for depth in self.trie.prefixes(model, tokens)
                if nearest < len(tokens) - depth <= reach
            ]
        for depth, entry in pruned:
            self.order.remove(model, tokens[:depth])
            self._uncount(entry)
            self._say(PromptCachePruned, tokens[:depth], entry)

    def _evict(self) -> None:
        model, tokens = self.order.pop()
        entry = self.trie.pop(model, tokens)
        self._uncount(entry)
        self._say(PromptCacheEvicted, tokens, entry)

    def trim_to(self, *, n_sequences: int | None = None, n_bytes: int | None = None) -> None:
        """Evict until both limits hold; negative ones mean 0. Follows `trim_to`."""
        self._needs_bytes("trim_to")
        most = UNLIMITED if n_sequences is None else max(0, n_sequences)
        most_bytes = UNLIMITED if n_bytes is None else max(0, n_bytes)
        while len(self.order) > most:
            self._evict()
        while self._n_bytes > most_bytes:
            self._evict()

    def stats_by_type(self) -> dict[str, dict[str, int]]:
        """Entries and bytes of each queue. Follows `stats_by_type`."""
        return {
            name: {"n_sequences": len(queue), "n_bytes": self._n_bytes_by_type[name]}
            for name, queue in self.order.queues.items()
        }

    def _uncount(self, entry: CacheEntry) -> None:
        self._n_bytes -= entry.nbytes
        self._n_bytes_by_type[entry.cache_type] -= entry.nbytes

    def _say(self, event: type[PromptCacheChange], tokens: Key, entry: CacheEntry) -> None:
        self._tell(
            event(
                task=self.task,
                n_tokens=Count(len(tokens)),
                cache_type=entry.cache_type,
                nbytes=entry.nbytes,
            )
        )

    def _needs_bytes(self, name: str) -> None:
        if not self.rules.limits_bytes:
            msg = f"'LRUPromptCache' object has no attribute {name!r}"
            raise UpstreamAttributeError(msg)


def _loss(cause: Cause, before: Count, after: Count, **detail: object) -> Loss:
    return Loss(cause=cause, before=before, after=after, detail=detail)
