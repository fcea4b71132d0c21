"""`LRUPromptCache`: stored conversations, by the rules of each release."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar

from cachesim.engines.causes import Cause, Loss
from cachesim.engines.events import Event
from cachesim.engines.mlx_lm import vocabulary
from cachesim.engines.mlx_lm.caches.layer_cache import (
    UpstreamAttributeError,
    UpstreamIndexError,
    UpstreamKeyError,
    UpstreamTypeError,
    UpstreamValueError,
)
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    LayerCache,
    can_trim_prompt_cache,
    copy_prompt_cache,
    trim_prompt_cache,
)
from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.mlx_lm.server.request import Job, keyed
from cachesim.units import Array, Count, Token, Tokens

V = TypeVar("V")

Key: TypeAlias = Sequence[int]
"""Tokens of the caller; the store keeps the very object (an oddity of upstream's)."""


Insert: TypeAlias = Callable[..., None]
"""Insert a state under a key, and report it: `ServerStore.insert` for a request."""


class _Nothing:
    """The absence of a value; None may be one."""


_NOTHING = _Nothing()


class _Node(dict[int, "_Node[V]"], Generic[V]):
    """The children of a node, by token; a node without a value is a dictionary only."""

    value: V | _Nothing = _NOTHING

    @property
    def bare(self) -> bool:
        """True without a value or children: the node may be removed."""
        return isinstance(self.value, _Nothing) and not self


_Path: TypeAlias = "tuple[_Path, int] | None"
"""The last token on the path to a node, and the path to its parent: a step copies nothing."""


def _tokens_of(path: "_Path") -> list[int]:
    tokens: list[int] = []
    while path is not None:
        path, token = path
        tokens.append(token)
    return tokens[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieSegment(Generic[V]):
    """Tokens without a value or a branch in between, as one node of a compressed tree."""

    model: Hashable
    number: int
    parent: int  # 0: the root
    tokens: tuple[int, ...]  # from the root to its end
    count: int  # the number of its own among them
    values: tuple[V, ...]  # the one at its end, or none
    leads_on: bool  # has children


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTrieResult:
    """Result of a search. Follows `PromptTrieResult`.

    exact: the query itself; shorter: its longest stored prefix; longer: the shortest entry below
    the deepest node on the query's path; common_prefix: the depth of that node.
    """

    model: Hashable
    exact: Key | None = None
    shorter: Key | None = None
    longer: Key | None = None
    common_prefix: int = 0


class PromptTrie(Generic[V]):
    """A tree of tokens per model; children are kept in the order of their creation.

    Upstream: `PromptTrie`.
    """

    def __init__(self) -> None:
        self._trie: dict[Hashable, _Node[V]] = {}
        self._items: list[tuple[Hashable, list[int], V]] | None = None  # since the last change

    def add(self, model: Hashable, tokens: Key, value: V) -> V | None:
        """Set a value; return the previous one. Follows `PromptTrie.add`."""
        self._items = None
        node = self._trie.setdefault(model, _Node())
        for token in tokens:
            child = node.get(token)
            if child is None:
                child = node[token] = _Node()
            node = child
        previous, node.value = node.value, value
        return None if isinstance(previous, _Nothing) else previous

    def get(self, model: Hashable, tokens: Key) -> V:
        """The value of a key; a missing key raises. Follows `PromptTrie.get`."""
        node = self._root(model)
        for token in tokens:
            child = node.get(token)
            if child is None:
                raise UpstreamKeyError(token)
            node = child
        return self._value(node)

    def holds(self, model: Hashable, tokens: Key) -> bool:
        """Check whether the key has a value."""
        node = self._trie.get(model)
        for token in tokens:
            if node is None:
                return False
            node = node.get(token)
        return node is not None and not isinstance(node.value, _Nothing)

    def pop(self, model: Hashable, tokens: Key) -> V:
        """Remove a value, and the nodes that lead to it alone. Follows `PromptTrie.pop`."""
        self._items = None
        path = [self._root(model)]
        for token in tokens:
            path.append(self._child(path[-1], token))
        value = self._value(path[-1])
        path[-1].value = _NOTHING
        for depth in range(len(tokens), 0, -1):
            if not path[depth].bare:
                break
            # Nodes that lead to nothing else go too; one with a value, or with a further branch,
            # stays.
            del path[depth - 1][tokens[depth - 1]]
        return value

    def pop_prefixes(self, model: Hashable, tokens: Key) -> list[tuple[int, V]]:
        """Remove every value on the path, the root's too. Follows `PromptTrie.pop_prefixes`."""
        self._items = None
        values: list[tuple[int, V]] = []
        node = self._root(model)
        for depth, token in enumerate(tokens):
            if not isinstance(node.value, _Nothing):
                values.append((depth, node.value))
                # The node stays: it leads to the inserted key.
                node.value = _NOTHING
            node = self._child(node, token)
        return values

    def prefixes(self, model: Hashable, tokens: Key) -> list[int]:
        """Lengths of the proper prefixes that have a value, shortest first."""
        lengths: list[int] = []
        node = self._trie.get(model, _Node())
        for depth, token in enumerate(tokens):
            if not isinstance(node.value, _Nothing):
                lengths.append(depth)
            if token not in node:
                break
            node = node[token]
        return lengths

    def search(
        self,
        model: Hashable,
        tokens: Key,
        *,
        empty_is_exact: bool = False,
        longer_beside_shorter: bool = True,
    ) -> PromptTrieResult:
        """Follow the query's path, then search below its end. Follows `PromptTrie.search`.

        root . . v . . . v . . . (path ends) . . v      v: a value
             shorter, if beyond its first token     longer: found below the end of the path
        """
        root = self._trie.get(model)
        if root is None:
            return PromptTrieResult(model=model)
        # Until #1078 an empty query counted as an exact match; the value at the root was not looked
        # for.
        if not tokens and (empty_is_exact or not isinstance(root.value, _Nothing)):
            return PromptTrieResult(model=model, exact=tokens)
        node, index, last = root, 0, -1
        while index < len(tokens) and tokens[index] in node:
            node = node[tokens[index]]
            # The search does not go back up: a deep branch hides the values of its ancestors'
            # branches.
            if not isinstance(node.value, _Nothing):
                last = index
            index += 1
        if last == len(tokens) - 1 >= 0:
            return PromptTrieResult(model=model, exact=tokens)
        # Trap: `> 0`, not `>= 0`: a value on a key of one token is never "shorter".
        shorter = tokens[: last + 1] if last > 0 else None
        longer = None
        # Until #911 a usable shorter entry ended the search, however little of the prompt it had.
        if index > 0 and (longer_beside_shorter or last <= 0):
            longer = [*tokens[:index], *self._nearest_below(node)]
        return PromptTrieResult(model=model, shorter=shorter, longer=longer, common_prefix=index)

    @staticmethod
    def _nearest_below(node: _Node[V]) -> list[int]:
        """The fewest further tokens to a value; among equals the newest branch."""
        best: tuple[int, _Path] | None = None
        stack: list[tuple[_Node[V], int, _Path]] = [(node, 0, None)]
        while stack:
            current, depth, path = stack.pop()
            # Only fewer tokens replace the best, and the newest branch is popped first: it wins
            # among equals.
            if best is not None and depth >= best[0]:
                continue
            if not isinstance(current.value, _Nothing):
                best = depth, path
            else:
                stack += [(child, depth + 1, (path, token)) for token, child in current.items()]
        if best is None:
            raise UpstreamTypeError('can only concatenate list (not "NoneType") to list')
        return _tokens_of(best[1])

    def items(self) -> list[tuple[Hashable, list[int], V]]:
        """All values, depth first, children in the order of their creation."""
        if self._items is None:
            self._items = self._walk()
        return self._items.copy()

    def _walk(self) -> list[tuple[Hashable, list[int], V]]:
        entries: list[tuple[Hashable, list[int], V]] = []
        for model, root in self._trie.items():
            stack: list[tuple[_Node[V], list[int]]] = [(root, [])]
            while stack:
                node, tokens = stack.pop()
                while len(node) == 1:  # an only child continues its parent's tokens
                    if not isinstance(node.value, _Nothing):
                        entries.append((model, tokens.copy(), node.value))
                    [(token, node)] = node.items()
                    tokens.append(token)
                if not isinstance(node.value, _Nothing):
                    entries.append((model, tokens, node.value))
                stack += [(child, [*tokens, token]) for token, child in node.items()][::-1]
        return entries

    def segments(self) -> Iterator[TrieSegment[V]]:
        """The compressed trie: a node where tokens end, branch or have a value; parents first."""
        number = 0
        for model, root in self._trie.items():
            below: list[tuple[_Node[V], int, list[int], int]] = [(root, 0, [], 0)]
            while below:
                node, parent, tokens, count = below.pop()
                while count and isinstance(node.value, _Nothing) and len(node) == 1:
                    [(token, node)] = node.items()
                    tokens.append(token)
                    count += 1
                above = parent
                if count:
                    number += 1
                    above = number
                    values = () if isinstance(node.value, _Nothing) else (node.value,)
                    leads_on = bool(node)
                    yield TrieSegment(
                        model=model,
                        number=number,
                        parent=parent,
                        tokens=tuple(tokens),
                        count=count,
                        values=values,
                        leads_on=leads_on,
                    )
                below += [(child, above, [*tokens, token], 1) for token, child in node.items()][
                    ::-1
                ]

    def _root(self, model: Hashable) -> _Node[V]:
        if model not in self._trie:
            raise UpstreamKeyError(model)
        return self._trie[model]

    @staticmethod
    def _child(node: _Node[V], token: int) -> _Node[V]:
        if token not in node:
            raise UpstreamKeyError(token)
        return node[token]

    @staticmethod
    def _value(node: _Node[V]) -> V:
        if isinstance(node.value, _Nothing):
            raise UpstreamKeyError("__value__")
        return node.value


class CacheOrder:
    """A queue per type of entry, in order of eviction."""

    def __init__(self, rules: StoreRules) -> None:
        self._rules = rules
        self.queues: dict[str, deque[tuple[Hashable, Key]]] = {
            name: deque() for name in rules.queues
        }

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def push(self, model: Hashable, tokens: Key, queue: str) -> None:
        """Append a key to its queue."""
        self.queues[queue].append((model, tokens))

    def remove(self, model: Hashable, tokens: Key) -> None:
        """Remove a key from the first queue that has it; follows `CacheOrder.remove`."""
        for queue in self.queues.values():
            if (model, tokens) in queue:
                queue.remove((model, tokens))
                return
        # Since #1019 such a key is no error.
        if not self._rules.forgives_lost_keys:
            raise UpstreamValueError("deque.remove(x): x not in deque")

    def pop(self) -> tuple[Hashable, Key]:
        """The next key to evict; follows `CacheOrder.pop`."""
        names: Sequence[str] = self._rules.queues
        for one, two in pairwise(names):
            queue, following = self.queues[one], self.queues[two]
            # A queue gives its oldest key if it is at least as long as the next one; with #1019
            # alone, before #1072, an empty queue was taken too, and raised.
            if len(queue) >= len(following) and (queue or not self._rules.passes_empty_queues):
                return self._first(queue)
        return self._first(self.queues[names[-1]])

    @staticmethod
    def _first(queue: deque[tuple[Hashable, Key]]) -> tuple[Hashable, Key]:
        if not queue:
            raise UpstreamIndexError("pop from an empty deque")
        return queue.popleft()


UNLIMITED = 1 << 63


@dataclass(slots=True, kw_only=True)
class CacheEntry:
    """A prompt cache: the inserted list itself, with its bytes at insertion."""

    prompt_cache: list[LayerCache]
    nbytes: int
    cache_type: str
    count: int = 1
    is_snapshot: bool = False
    logits: Array | None = None  # after the key's last token, where a server keeps them


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Result of a lookup, and the cause of its limit."""

    prompt_cache: list[LayerCache] | None
    rest: Key
    kind: str  # exact, longer, shorter, untrimmed, snapshot, miss
    key: Key | None = None  # of the entry that was used
    position: Key | None = None  # #923: the entry to delete when its cache is inserted again
    equal: Count = Count(0)
    losses: tuple[Loss, ...] = ()

    @classmethod
    def up_to(
        cls,
        used: int,
        tokens: Key,
        cache: list[LayerCache] | None,
        key: Key | None,
        equal: Count,
        *lost: Loss | None,
        kind: str = "shorter",
    ) -> Self:
        """The cache of a prompt's first `used` tokens, or a miss; what was lost of the equal ones.

        tokens   [ cache ... used )[ rest ........ )
        """
        return cls(
            prompt_cache=cache,
            rest=tokens[used:],
            kind="miss" if cache is None else kind,
            key=key,
            equal=equal,
            losses=tuple(loss for loss in lost if loss is not None and used < equal),
        )


class LRUPromptCache:
    """Prompt caches under (model, tokens) (`LRUPromptCache`)."""

    type_at_positions: ClassVar[str] = "assistant"
    """The type of entries at `positions`."""

    def __init__(self, rules: StoreRules, max_size: int = 10, max_bytes: int = UNLIMITED) -> None:
        self.rules = rules
        self.max_size = max_size
        self.max_bytes = max_bytes
        self.trie: PromptTrie[CacheEntry] = PromptTrie()
        self.order = CacheOrder(rules)
        self.task = -1  # ticket of the request
        self.restored: dict[int, list[object]] = {}  # layers known to be restored as they are
        self.on_event: Callable[[Event], None] = lambda _event: None
        self._n_bytes = 0
        self._n_bytes_by_type = dict.fromkeys(rules.queues, 0)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries, as counted at insertion."""
        self._needs_bytes("nbytes")
        return self._n_bytes

    def fetch_nearest_cache(
        self, model: Hashable, tokens: Key
    ) -> tuple[list[LayerCache] | None, Key]:
        """The prompt cache to resume from, and the tokens to feed. Follows upstream's method."""
        fetched = self.fetch(model, tokens)
        return fetched.prompt_cache, fetched.rest

    def fetch(self, model: Hashable, tokens: Key) -> Fetched:
        """As `fetch_nearest_cache`, with the causes."""
        found = self.search(model, tokens)
        if found.exact is not None:
            cache = self._fetch_entry(model, found.exact)
            return Fetched(
                prompt_cache=cache,
                rest=tokens[len(tokens) :],
                kind="exact",
                key=found.exact,
                equal=Count(len(tokens)),
            )
        return self._longer(found, tokens) or self._shorter(found, tokens)

    def search(self, model: Hashable, tokens: Key) -> PromptTrieResult:
        """The trie's result under the release's rules."""
        return self.trie.search(
            model,
            tokens,
            empty_is_exact=self.rules.empty_query_is_exact,
            longer_beside_shorter=self.rules.longer_beside_shorter,
        )

    def _longer(self, found: PromptTrieResult, tokens: Key) -> Fetched | None:
        """A longer entry, copied and trimmed to the common prefix.

        entry   [0 ........ common prefix ........ len(longer))
        result  [0 ... p)   p = min(len(tokens) - 1, common prefix)
        """
        used = 0 if found.shorter is None else len(found.shorter)
        # It would not save more tokens than the shorter entry, which needs no trim.
        if found.longer is None or found.common_prefix <= used:
            return None
        # Until #138 only a prompt that the entry contains as a whole was cut out of it.
        if found.common_prefix < len(tokens) and not self.rules.cuts_to_common_prefix:
            return None
        entry = self.trie.get(found.model, found.longer)
        equal = Count(found.common_prefix)
        # One layer that cannot be trimmed is enough: layers of different lengths are no state.
        if not can_trim_prompt_cache(entry.prompt_cache):
            return self._untrimmed(found, entry, tokens) if self.rules.reuses_untrimmed else None
        cache = copy_prompt_cache(entry.prompt_cache)
        # One token is left to feed (since #183), because a reply begins with its logits.
        spared = 1 if self.rules.leaves_one_token else 0
        prefix = Count(min(len(tokens) - spared, equal))
        wanted = len(found.longer) - prefix
        trimmed = trim_prompt_cache(cache, wanted)
        # #999 compares what the first layer has removed. Trap: releases do not, so a layer that
        # removed less is used as if it had removed all.
        if self.rules.checks_trimmed and trimmed < wanted:
            return None
        losses: tuple[Loss, ...] = ()
        if prefix < equal:
            losses = (_loss(vocabulary.ONE_TOKEN_IS_FED, equal, prefix, n_tokens=len(tokens)),)
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
            prompt_cache=self._fetch_entry(found.model, found.shorter),
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
            return _loss(vocabulary.SHORTER_ENTRY_FIRST, equal, used, used=int(used))
        layers = self.trie.get(found.model, found.longer).prompt_cache
        frozen = [i for i, layer in enumerate(layers) if not layer.is_trimmable()]
        if not frozen:
            return _loss(vocabulary.TRIMMED_TOO_LITTLE, equal, used, entry=len(found.longer))
        return _loss(
            vocabulary.NOT_TRIMMABLE,
            equal,
            used,
            entry=len(found.longer),
            layer=frozen[0],
            cache=type(layers[frozen[0]]).__name__,
        )

    def _fetch_entry(self, model: Hashable, key: Key) -> list[LayerCache]:
        """A copy, or the object itself. Follows `_extract` of older releases."""
        entry = self.trie.get(model, key)
        # Since #911 a fetch copies: before, the first of two requests took the entry away.
        if not self.rules.consumes:
            return copy_prompt_cache(entry.prompt_cache)
        # An entry that was inserted twice is counted, and only its last fetch takes it out.
        if entry.count == 1:
            self.trie.pop(model, key)
            self.order.remove(model, key)
            self._uncount(entry)
            self._emit(vocabulary.PromptCacheConsumed, key, entry)
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
        """Store a prompt cache: add, push, prune, evict. Follows upstream's method.

        Neither the list nor the key is copied.
        """
        queue = self.rules.queue_of(cache_type)
        # Trap: a later change of the list or the key changes the entry, or breaks its eviction.
        self._store(model, tokens, prompt_cache, queue)
        self.order.push(model, tokens, queue)
        # A trimmable entry can stand for its own prefixes; others are exact at one length only, so
        # theirs stay.
        if self.rules.prunes != "never" and can_trim_prompt_cache(prompt_cache):
            self._prune(model, tokens, prompt_cache)
        # One eviction is enough, as one entry was added. The new entry may be the one that goes.
        if len(self.order) > self.max_size:
            self._evict()
        # Until #1019 one entry stays, however large it is.
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
        # Until #1019 the older state stays under a key that is inserted again.
        if held is not None and self.rules.same_key != "replaces":
            held.count += self.rules.same_key == "counts"
            self._emit(vocabulary.PromptCacheRefused, tokens, held)
            return
        # Counted once: a cache that grows later keeps the number of its insertion.
        nbytes = sum(cache.nbytes for cache in prompt_cache) if self.rules.limits_bytes else 0
        entry = CacheEntry(prompt_cache=prompt_cache, nbytes=nbytes, cache_type=queue)
        self.trie.add(model, tokens, entry)
        self._n_bytes += nbytes
        self._n_bytes_by_type[queue] += nbytes
        if held is not None:
            self._uncount(held)
            self._emit(vocabulary.PromptCacheReplaced, tokens, held)
        self._emit(vocabulary.PromptCacheInserted, tokens, entry)

    def _prune(self, model: Hashable, tokens: Key, prompt_cache: Sequence[LayerCache]) -> None:
        """Remove entries covered by a trimmable one: all proper prefixes, or those of the rule."""
        if self.rules.prunes == "all":
            pruned = self.trie.pop_prefixes(model, tokens)
        else:
            reach = len(tokens)
            # #999: a ring can be trimmed by the tokens it has, so it covers no shorter prefix.
            if self.rules.prunes == "within-size":
                reach = min(cache.size() for cache in prompt_cache)
            # #1019, until #1078: the entry one token shorter was passed over.
            nearest = int(self.rules.prunes == "all-but-nearest")
            pruned = [
                (depth, self.trie.pop(model, tokens[:depth]))
                for depth in self.trie.prefixes(model, tokens)
                if nearest < len(tokens) - depth <= reach
            ]
        for depth, entry in pruned:
            self.order.remove(model, tokens[:depth])
            self._uncount(entry)
            self._emit(vocabulary.PromptCachePruned, tokens[:depth], entry)

    def _evict(self) -> None:
        model, tokens = self.order.pop()
        # In order of insertion: a fetch does not refresh an entry.
        entry = self.trie.pop(model, tokens)
        self._uncount(entry)
        self._emit(vocabulary.PromptCacheEvicted, tokens, entry)

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

    def _emit(
        self, event: type[vocabulary.PromptCacheChange], tokens: Key, entry: CacheEntry
    ) -> None:
        self.on_event(
            event(
                task=self.task,
                n_tokens=Count(len(tokens)),
                cache_type=entry.cache_type,
                nbytes=entry.nbytes,
            )
        )

    # What a request that is served alone asks its store, with mlx-lm's answers. A server that is
    # built on these caches has a class of its own, with other ones.

    def as_fed(self, job: Job, key: Tokens) -> tuple[Tokens, Tokens]:
        """A prompt as it is fed to the model, and as it is looked up."""
        return (job.prompt, keyed(job.prompt, job.images)) if job.images else (key, key)

    def positions(self, _job: Job, _key: Tokens, _equal: int) -> Sequence[int]:
        """Positions of the prompt after which its state is kept while it is fed."""
        return ()

    def logits_after(self, _job: Job, _key: Tokens) -> Array | None:
        """Logits after a prompt that is cached as a whole."""
        return None

    def after_prompt(self, _job: Job, _cache: list[LayerCache], _insert: Insert) -> None:
        """Keep the state of a whole prompt, before its reply."""

    def after_first(
        self, _job: Job, _token: Token, _cache: list[LayerCache], _insert: Insert
    ) -> None:
        """Keep a state after the first token of a reply."""

    def at_end(self, job: Job, _key: Tokens, cache: list[LayerCache], insert: Insert) -> None:
        """Keep the state after a reply."""
        insert(job.cache_key, cache)

    def has_images(self, key: Sequence[int]) -> bool:
        """True if a key has ids of images, which are negative."""
        return min(key, default=0) < 0

    def on_disk(self) -> Iterator[dict[str, Any]]:
        """What the store holds beside the entries of its trie."""
        return iter(())

    def problems(self) -> Iterator[str]:
        """Inconsistencies of what only this store has, in words."""
        return iter(())

    def _needs_bytes(self, name: str) -> None:
        if not self.rules.limits_bytes:
            raise UpstreamAttributeError(f"'LRUPromptCache' object has no attribute {name!r}")


def _loss(cause: Cause, before: Count, after: Count, **detail: object) -> Loss:
    return Loss(cause=cause, before=before, after=after, detail=detail)
