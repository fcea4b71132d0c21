"""Methods of all radix trees, whatever their nodes carry.

    match      walk down; where the match ends inside an edge, divide the node there
    insert     walk the same way, then add the rest below
    lock       a running request holds its node and all above it
    evict      unlocked nodes, the oldest first

Follows `BasePrefixCache` and the common parts of its classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from cachesim.engines.sglang import pools
from cachesim.engines.sglang.node import FULL, HOST, NO_SLOTS, Clock, LruList, Node, as_key
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.rules import Rules
from cachesim.engines.tokens import common_numbers
from cachesim.errors import UpstreamAbort
from cachesim.units import Integers

Lost: TypeAlias = Literal["node", "window", "state"]
"""Evicted part: a whole node, its window or its state."""

Evicting: TypeAlias = tuple[int, int, int]
"""Slots that an eviction is to free, by part."""

OnHostAction = Callable[[pools.HostAction, int, Node], None]
"""Callback for a transfer of a node's part between device and host."""

Priority = Callable[[Node], tuple[float, ...]]
"""Eviction priority of a node; the smallest is evicted first."""

STRATEGIES: dict[str, Priority] = {
    "lru": lambda node: (node.last_access,),
    "lfu": lambda node: (node.hits, node.last_access),
    "fifo": lambda node: (node.created,),
    "mru": lambda node: (-node.last_access,),
    "filo": lambda node: (-node.created,),
    "priority": lambda node: (node.priority, node.last_access),
    "slru": lambda node: (float(node.hits >= 2), node.last_access),
}
"""`--radix-eviction-policy`. Trap: 0.5.9 counts no hits, so that its `lfu` is `lru`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Parameters of a tree."""

    page: int = 1
    bigrams: bool = False  # is_eagle
    extra_buffer: bool = False
    grid: int = 64  # mamba_cache_chunk_size: what chunks of the kernel and pages agree on
    window: int = 0  # sliding_window_size, the current token excluded
    states_per_path: int = -1
    policy: str = "lru"
    host: pools.HostShape | None = None  # enable_hierarchical_cache


@dataclass(frozen=True, slots=True)
class Match:
    """The result of a match: slots, node, and the length that attention alone matches."""

    slots: Integers
    node: Node
    attention: int = 0
    branch: int | None = None
    window_branch: int | None = None
    best: Node | None = None  # with what is on the host only; None: as `node`
    reach: int = 0  # tokens to its end
    on_host: int = 0  # host_hit_length
    window_on_host: int = 0  # swa_host_hit_length
    state_on_host: bool = False  # mamba_host_hit_length

    @property
    def length(self) -> int:
        """Tokens on the device."""
        return len(self.slots)

    @property
    def usable(self) -> int:
        """Usable tokens, on device and host."""
        return len(self.slots) if self.best is None else self.reach


class OneTier:
    """Methods of a tree with a host or a storage; most trees have none."""

    def watch_host(
        self, on_backup: pools.Copy, on_load: pools.Copy, on_action: OnHostAction
    ) -> None:
        """Set the callbacks that copy slots and receive events."""

    def poll(self) -> None:
        """Process the completed copies to and from the host (`check_hicache_events`)."""

    def flush(self) -> None:
        """Submit the queued copies to the host (`flush_pending_backups`)."""

    def begin_loading(self) -> None:
        """Submit the queued loads (`ready_to_load_host_cache`)."""

    def held_by_host(self) -> Iterator[Node]:
        """Nodes that are locked because a copy is under way."""
        yield from ()

    def host_free(self) -> dict[str, int]:
        """Free slots on the host, by part."""
        return {}

    stores = False
    """True with a storage tier below the host (`enable_hicache_storage`)."""

    def watch_storage(self, on_store: pools.PageCopy, on_fetch: pools.PageCopy) -> None:
        """Set the callbacks that copy between host and storage."""

    def prefetch(self, req: Req, match: "Match", known_until: int | None = None) -> None:
        """Query the storage for the tokens of a request that the tree lacks
        (`prefetch_from_storage`).
        """

    def storage_retries(self, waiting: Sequence[Req]) -> list[tuple[Req, int | None]]:
        """Requests that query the storage again, each with the end of its stored tokens."""
        return []

    def shrank(self, req: Req) -> bool:
        """True where a match is shorter than at the last query, and another query is allowed."""
        return False

    def admitted(self, req: Req) -> None:
        """End the prefetch of an admitted request (`finish_storage_prefetch_admission`)."""

    def settle(self) -> None:
        """Finish the copies to the storage, as an idle server does."""

    def fetched(self, req: Req) -> bool:
        """True once a request need not wait for the storage (`check_prefetch_progress`)."""
        return True

    def stop_fetching(self, req: Req) -> None:
        """Drop the fetch of an aborted request (`release_aborted_request`)."""

    def stored(self, key: Integers, extra: Hashable) -> int:
        """The tokens of a key in the storage, whole pages from its start."""
        return 0

    def host_underway(self) -> dict[str, int]:
        """Slots of the host, by part, that transfers from the storage occupy."""
        return {}

    def bring(self, req: Req) -> int:
        """Load the nodes that a request resumes from; return the number of tokens
        (`init_load_back`).
        """
        return 0


class Tree(OneTier, ABC):
    """A radix tree over a pool of slots (`BasePrefixCache`)."""

    has_windows = False
    has_states = False

    def __init__(
        self,
        shape: Shape,
        rules: Rules,
        pool: pools.TokenPool,
        states: pools.StatePool | None = None,
        storage: pools.Storage | None = None,
    ) -> None:
        self.shape = shape
        self.rules = rules
        self.pool = pool
        self.states = states
        self.storage = storage or pools.Storage()
        self.clock = Clock()
        self._count = 0
        self.root = self.new_node()
        self.root.locks[:HOST] = [1, 1, 1]
        self.evictable = [0, 0, 0]
        self.on_evict: Callable[[Evicting], Callable[[], None]] | None = None
        self.on_lost: Callable[[Lost, Node], None] | None = None
        self.on_kept: Callable[[int, int], None] | None = None
        self.on_state: Callable[[Node], None] | None = None
        self._evicting = 0
        self.by_request = -1  # whose tokens are inserted now
        self._begin()

    def _begin(self) -> None:
        """Create the fields of a kind of tree."""

    # -- nodes -------------------------------------------------------------------------------------

    def _used_path(self, node: Node) -> None:
        now = self.clock.tick()
        # A parent counts as older than its child, so that equals have an order.
        for ancestor in (*node.path(), self.root):
            ancestor.last_access = now
            now -= 1e-5

    def new_node(self) -> Node:
        """A new node, used now."""
        self._count += 1
        return Node(self._count, self.clock.tick())

    def child_key(self, key: Integers, extra: Hashable) -> Hashable:
        """The key of a child: its first page, and the request's extra key."""
        page = self.shape.page
        # By the first page, since a match shorter than a page is none.
        plain = int(key[0]) if page == 1 else key[:page].tobytes()
        return plain if extra is None else (extra, plain)

    def walk(self, key: Integers) -> Iterator[tuple[Node, int]]:
        """The nodes along a key without extra keys, each with its matching length; nothing is
        split or counted as used.
        """
        node = self.root
        while len(key):
            child = node.children.get(self.child_key(key, None))
            if child is None:
                return
            length = matching(child, key, self.shape.page)
            yield child, length
            if length < len(child):
                return
            node, key = child, key[length:]

    def key_of(self, tokens: Integers, limit: int | None = None) -> Integers:
        """The key of some tokens: pairs with EAGLE, and whole pages."""
        key = as_key(tokens, bigrams=self.shape.bigrams)[:limit]
        return key[: len(key) // self.shape.page * self.shape.page]

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, depth first, children in order of creation."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def _halves(self, child: Node, length: int, extra: Hashable) -> Node:
        """Split a node: the new one holds the first `length` tokens and is the parent.

        parent --[0 ....... n)--> child
        parent --[0 .. length)--> new --[length .. n)--> child
        """
        new = self.new_node()
        new.parent = parent = child.parent
        new.request = child.request
        new.priority = child.priority
        new.child_key = child.child_key
        new.key, child.key = child.key[:length], child.key[length:]
        if child.value is not None:
            new.value, child.value = child.value[:length], child.value[length:]
        child.child_key = self.child_key(child.key, extra)
        child.parent = new
        new.children = {child.child_key: child}
        if parent is not None:
            parent.children[new.child_key] = new
        return new

    def _hang(self, parent: Node, key: Integers, slots: Integers, extra: Hashable) -> Node:
        node = self.new_node()
        node.parent = parent
        node.key = key
        node.value = slots
        node.request = self.by_request
        node.child_key = self.child_key(key, extra)
        parent.children[node.child_key] = node
        return node

    def _detach(self, node: Node) -> None:
        if node.parent is not None:
            del node.parent.children[node.child_key]

    def _delete_tombstones(
        self, node: Node, lru: LruList, is_tombstone: Callable[[Node], bool]
    ) -> tuple[int, Node]:
        """Free ancestors that are now leaves without a part; return the freed tokens and the last
        freed node. Follows `_iteratively_delete_tombstone_leaf`.
        """
        freed, parent = 0, node.parent
        while (
            parent is not None
            and parent is not self.root
            and is_tombstone(parent)
            and not parent.children
            # A running request still reads it.
            and not parent.locks[FULL]
        ):
            self.pool.free(parent.slots)
            freed += len(parent)
            lru.remove(parent)
            self._detach(parent)
            self.evictable[FULL] -= len(parent)
            self.lost("node", parent)
            node, parent = parent, parent.parent
        return freed, node

    # -- what the scheduler asks -------------------------------------------------------------------

    @abstractmethod
    def match(self, key: Integers, extra: Hashable) -> Match:
        """The longest usable prefix of a key."""

    def peek(self, key: Integers) -> int | None:
        """The match length of a key without extra keys; None if unknown."""
        return None

    def match_tokens(self, tokens: Integers, req: Req, *, copies: bool) -> Match:
        """Match a request; its state is copied where there is one."""
        match = self.match(self.key_of(tokens), req.extra_key)
        if copies:
            self.take_state(req, match.best or match.node)
        return match

    def take_state(self, req: Req, node: Node) -> None:
        """Copy the state that a request resumes from; most trees have none."""
        del req, node

    def let_windows_go(self, req: Req, length: int) -> None:
        """Free the window slots before a request's window; most trees have none."""
        del req, length

    def track_interval(self, interval: int) -> int:
        """Tokens between two saved states of a decoding request."""
        return interval

    @abstractmethod
    def lock(self, node: Node) -> object:
        """Lock a node; the returned value unlocks it."""

    @abstractmethod
    def unlock(self, node: Node, held: object) -> None:
        """Unlock a node."""

    @abstractmethod
    def cache_unfinished(self, req: Req) -> None:
        """Insert the computed tokens of a running request."""

    @abstractmethod
    def cache_finished(self, req: Req, *, insert: bool = True) -> None:
        """Insert the committed tokens of a finished request, and free the rest."""

    def free_row(self, req: Req, start: int, end: int) -> None:
        """Free a part of a request's row."""
        raise NotImplementedError

    @abstractmethod
    def _evict(self, tokens: int, window: int, states: int) -> None:
        """Evict slots."""

    def evict(self, tokens: int = 0, window: int = 0, states: int = 0) -> None:
        """Evict slots, and emit an event on each evicted part."""
        self._evicting += 1
        after = None
        # An eviction may begin another: only the first is reported.
        if self.on_evict is not None and self._evicting == 1:
            after = self.on_evict((tokens, window, states))
        try:
            self._evict(tokens, window, states)
        finally:
            self._evicting -= 1
            if after is not None:
                after()

    def lost(self, what: Lost, node: Node) -> None:
        """Emit an event on evicted tokens."""
        if self.on_lost is not None:
            self.on_lost(what, node)

    def kept(self, tokens: int, fresh: int) -> None:
        """Emit an event on the tokens of a request that the tree holds, and those that are new."""
        if self.on_kept is not None:
            self.on_kept(tokens, fresh)

    def kept_state(self, node: Node) -> None:
        """Emit an event on a node's new state."""
        if self.on_state is not None:
            self.on_state(node)

    # -- states ------------------------------------------------------------------------------------

    @property
    def state_pool(self) -> pools.StatePool:
        """The pool of states, in trees that have one."""
        if self.states is None:
            where = "req_to_token_pool"
            raise UpstreamAbort(where, "a tree without states was asked for one")
        return self.states

    def state_or_room(self, where: str) -> int:
        """Allocate a slot for a state, after an eviction where none is free."""
        slot = self.state_pool.alloc()
        if slot is None:
            self.evict(states=1)
            slot = self.state_pool.alloc()
        if slot is None:
            raise UpstreamAbort(where, "assert: Can not alloc mamba cache")
        return slot


def joined(parts: Sequence[Integers]) -> Integers:
    """Slots one after the other."""
    if not parts:
        return NO_SLOTS
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def matching(node: Node, key: Integers, page: int) -> int:
    """The common length of a node's key and another one, in whole pages. Follows
    `_key_match_paged`.
    """
    return common_numbers(node.key, key) // page * page
