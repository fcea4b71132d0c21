"""Prefix trees of the releases before the unified one: attention, windows, states."""

import heapq
from collections.abc import Hashable
from math import inf

from cachesim.engines.sglang.node import FULL, PART, STATE, LruList, Node
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import STRATEGIES, Match, Tree, joined, matching
from cachesim.errors import UpstreamAbort
from cachesim.typed import of_kind
from cachesim.units import Integers


class RadixCache(Tree):
    """A tree with a slot per token; a policy orders the eviction of leaves (`RadixCache`)."""

    def _begin(self) -> None:
        self.leaves: set[Node] = set()
        self.first = STRATEGIES[self.shape.policy]

    def match(self, key: Integers, extra: Hashable) -> Match:
        """Match a key. Follows `_match_prefix_helper`."""
        if not len(key):
            return Match(joined([]), self.root)
        page, node, now, found = self.shape.page, self.root, self.clock.tick(), []
        node.last_access = now
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            child.last_access = now
            length = matching(child, key, page)
            # The match ends inside this node: it is divided at once, so that a lock covers only
            # what is used.
            if length < len(child):
                node = self._split(child, length, extra)
                found.append(node.slots)
                break
            found.append(child.slots)
            node, key = child, key[length:]
        slots = joined(found)
        return Match(slots, node, len(slots))

    def peek(self, key: Integers) -> int | None:
        if self.shape.host is not None:
            return None  # what the host would load is decided by the scheduler
        return sum(length for _, length in self.walk(key))

    def _split(self, child: Node, length: int, extra: Hashable) -> Node:
        new = self._halves(child, length, extra)
        new.locks[FULL] = child.locks[FULL]
        return new

    def insert(self, key: Integers, slots: Integers, extra: Hashable, priority: int = 0) -> int:
        """Insert a key; return the number of its tokens already in the tree. Follows
        `_insert_helper`.
        """
        page, node, now, total = self.shape.page, self.root, self.clock.tick(), 0
        node.last_access = now
        node.priority = max(node.priority, priority)
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            node = child
            node.last_access = now
            length = matching(node, key, page)
            total += length
            key, slots = key[length:], slots[length:]
            if length < len(node):
                node = self._split(node, length, extra)
            node.priority = max(node.priority, priority)
        # Duplicates are the caller's to free: the tree keeps the slots that it had.
        if len(key):
            new = self._hang(node, key, slots, extra)
            new.priority = priority
            self.evictable[FULL] += len(key)
            self._update_leaf(node)
            self._update_leaf(new)
        self.kept(total + len(key), len(key))
        return total

    def _update_leaf(self, node: Node) -> None:
        """Update the set of evictable leaves. Follows `_update_leaf_status`."""
        # Only leaves go, or a prefix would have a gap.
        if node is self.root or node.locks[FULL] or node.children:
            self.leaves.discard(node)
        else:
            self.leaves.add(node)

    def lock(self, node: Node) -> None:
        for ancestor in node.path():
            if not ancestor.locks[FULL]:
                self.evictable[FULL] -= len(ancestor)
            ancestor.locks[FULL] += 1
            self._update_leaf(ancestor)

    def unlock(self, node: Node, held: object = None) -> None:
        for ancestor in node.path():
            if ancestor.locks[FULL] == 1:
                self.evictable[FULL] += len(ancestor)
            ancestor.locks[FULL] -= 1
            self._update_leaf(ancestor)

    def _evict(self, tokens: int, window: int, states: int) -> None:
        heap = [(self.first(node), node) for node in self.leaves]
        heapq.heapify(heap)
        evicted = 0
        while evicted < tokens and heap:
            _, node = heapq.heappop(heap)
            parent = node.parent
            self.pool.free(node.slots)
            evicted += len(node)
            self._detach(node)
            self.evictable[FULL] -= len(node)
            self.leaves.discard(node)
            self.lost("node", node)
            if parent is not None:
                self._update_leaf(parent)
                # With its last child gone the parent is a leaf.
                if not parent.children and not parent.locks[FULL]:
                    heapq.heappush(heap, (self.first(parent), parent))

    def cache_unfinished(self, req: Req) -> None:
        """Follows `cache_unfinished_req`: insert, match again, move the lock down."""
        fill = req.fill
        key = self.key_of(req.tokens[:fill])
        self.by_request = req.id
        known = self.insert(key, req.row[: len(key)].copy(), req.extra_key, req.priority)
        # The request's own slots of tokens that the tree had already.
        self.pool.free(req.row[req.protected : known].copy())
        match = self.match(key, req.extra_key)
        slots = match.slots
        req.write(req.protected, slots[req.protected :])
        req.protected = len(slots)
        if req.last_node is not None:
            self.unlock(req.last_node)
        # Deeper than before: the chunk's tokens are the tree's now, and must not be evicted.
        self.lock(match.node)
        req.prefix = fill
        req.last_node = match.node

    def cache_finished(self, req: Req, *, insert: bool = True) -> None:
        """Follows `cache_finished_req`."""
        committed = req.committed
        # Trap (#16521): the reply's slots are freed, so the next turn computes the reply again.
        end = req.num_prompt if self.rules.tree.inserts_prompt_only else committed
        key = self.key_of(req.tokens[: min(end, committed)])
        count = len(key)
        known = count
        if insert:
            self.by_request = req.id
            known = self.insert(key, req.row[:count].copy(), req.extra_key, req.priority)
        self.pool.free(req.row[req.protected : known].copy())
        # The rest of a page has no key.
        self.pool.free(req.row[count:committed].copy())
        if req.last_node is not None:
            self.unlock(req.last_node)


# The tree of models with sliding windows. Follows `SWARadixCache` of 0.5.9.
#
#     root --[0 .. 60)--> gone --[60 .. 100)--> alive
#
# Each node knows whether the window layers' slots are alive. A match may end where the window
# before it is alive; a prefix from the root on is alive as far as nothing of it is gone.


class SWARadixCache(Tree):
    """A tree of slots whose windows are evicted separately; two LRU lists (`SWARadixCache`)."""

    has_windows = True

    def _begin(self) -> None:
        self.windows = of_kind(WindowPool, self.pool)
        self.full_lru = LruList(FULL)
        self.window_lru = LruList(PART)
        self._marks = 0
        self.root.window = True

    # -- match -------------------------------------------------------------------------------------

    def match(self, key: Integers, extra: Hashable) -> Match:
        """The deepest node with a whole window before its end. Follows `_match_prefix_helper`."""
        if not len(key):
            return Match(joined([]), self.root)
        page, window, node = self.shape.page, self.shape.window, self.root
        slots: list[Integers] = []
        # Infinite at the root: a prefix shorter than the window is a whole one.
        alive: float = inf
        best, usable = node, 0
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            # The hole begins here: the last place to resume from is the end of the node before.
            if not child.window:
                if alive >= window:
                    best, usable = node, len(slots)
                alive = 0
            length = matching(child, key, page)
            partly = length < len(child)
            node = self._split(child, length, extra) if partly else child
            slots.append(node.slots)
            if node.window:
                alive += len(node)
            if partly:
                break
            key = key[length:]
        if alive >= window:
            best, usable = node, len(slots)
        self.full_lru.use_path(best.path())
        self.window_lru.use_path(best.path())
        self._used_path(best)
        return Match(joined(slots[:usable]), best, sum(map(len, slots)))

    def _split(self, child: Node, length: int, extra: Hashable) -> Node:
        new = self._halves(child, length, extra)
        new.window = child.window
        new.locks[FULL], new.locks[PART] = child.locks[FULL], child.locks[PART]
        # The mark says where a lock's window ends upwards: the upper half has that end.
        new.window_mark, child.window_mark = child.window_mark, 0
        child.last_access = self.clock.tick()
        self.full_lru.remove(child)
        self.full_lru.insert(new)
        self.full_lru.insert(child)
        if new.window:
            self.window_lru.remove(child)
            self.window_lru.insert(new)
            self.window_lru.insert(child)
        return new

    # -- insert ------------------------------------------------------------------------------------

    def insert(
        self, key: Integers, slots: Integers, extra: Hashable, own: int, gone: int = 0
    ) -> int:
        """Insert a key; a tombstone on the path gets the request's new slots.

        The first `own` tokens are the tree's already, the first `gone` have lost their window.
        Follows `_insert_helper`.
        """
        page, node, total = self.shape.page, self.root, 0
        node.last_access = self.clock.tick()
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            node = child
            node.last_access = self.clock.tick()
            self.full_lru.use(node)
            if node.window:
                self.window_lru.use(node)
            length = matching(node, key, page)
            if length < len(node):
                node = self._split(node, length, extra)
            # Below `own` the slots are the tree's already.
            if own < total + length:
                self._overlap(node, slots[:length], gone - total, extra)
            total += length
            key, slots = key[length:], slots[length:]
        self.kept(total + len(key), len(key))
        if len(key):
            dead = gone - total
            # A node's window is alive or gone as a whole, so the dead part is a node of its own.
            if 0 < dead < len(key):
                node = self._add(node, key[:dead], slots[:dead], extra, alive=False)
                key, slots = key[dead:], slots[dead:]
            self._add(node, key, slots, extra, alive=True)
        return total

    def _overlap(self, node: Node, slots: Integers, gone: int, extra: Hashable) -> None:
        """Free or exchange slots whose tokens the tree has.

        node     [ tombstone ............ )
        slots    [ gone ... | alive ..... )     the alive ones replace the tree's
        """
        # Nothing to revive, or nothing to revive it with.
        if node.window or gone >= len(slots):
            self.pool.free(slots)
            return
        at = max(gone, 0)
        self.pool.free(node.slots[at:])
        if at:
            self._split(node, at, extra)
            self.pool.free(slots[:at])
        node.value = slots[at:]
        node.window = True
        self.window_lru.insert(node)
        self.evictable[PART] += len(node)

    def _add(
        self, parent: Node, key: Integers, slots: Integers, extra: Hashable, *, alive: bool
    ) -> Node:
        node = self._hang(parent, key, slots, extra)
        node.window = alive
        self.full_lru.insert(node)
        self.evictable[FULL] += len(node)
        if alive:
            self.window_lru.insert(node)
            self.evictable[PART] += len(node)
        return node

    # -- locks -------------------------------------------------------------------------------------

    def lock(self, node: Node) -> int:
        covered, mark = 0, 0
        for ancestor in node.path():
            if not ancestor.locks[FULL]:
                self.evictable[FULL] -= len(ancestor)
            ancestor.locks[FULL] += 1
            # The window lock ends where the window does: older windows may be evicted meanwhile.
            if covered < self.shape.window:
                if not ancestor.locks[PART]:
                    self.evictable[PART] -= len(ancestor)
                ancestor.locks[PART] += 1
                covered += len(ancestor)
                if covered >= self.shape.window:
                    if not ancestor.window_mark:
                        self._marks += 1
                        ancestor.window_mark = self._marks
                    mark = ancestor.window_mark
        return mark

    def unlock(self, node: Node, held: object = None) -> None:
        holds = True
        for ancestor in node.path():
            if ancestor.locks[FULL] == 1:
                self.evictable[FULL] += len(ancestor)
            ancestor.locks[FULL] -= 1
            if holds:
                if ancestor.locks[PART] == 1:
                    self.evictable[PART] += len(ancestor)
                ancestor.locks[PART] -= 1
                holds = not (held and ancestor.window_mark == held)

    # -- evict -------------------------------------------------------------------------------------

    def _evict(self, tokens: int, window: int, states: int) -> None:
        """Evict leaves for attention, then windows, those of inner nodes too. Follows `evict`."""
        evicted = windows = 0
        if tokens > 0:
            node = self.full_lru.oldest(leaves=True)
            while evicted < tokens and node is not None and node in self.full_lru:
                # A leaf that goes for attention's sake frees its window slots as well.
                windows += len(node)
                following = self.full_lru.before(node, leaves=True)
                freed, last = self._evict_leaf(node)
                evicted += freed
                if last.parent is not None and not last.parent.children:
                    following = self.full_lru.oldest(leaves=True)
                node = following
        if windows < window:
            node = self.window_lru.oldest()
            while windows < window and node is not None and node in self.window_lru:
                windows += len(node)
                following = self.window_lru.before(node)
                # An inner node keeps attention's slots, which the nodes below need: a tombstone.
                if node.children:
                    self.windows.free_window(node.slots)
                    self.window_lru.remove(node)
                    node.window = False
                    self.evictable[PART] -= len(node)
                    self.lost("window", node)
                else:
                    self._evict_leaf(node)
                node = following

    def _evict_leaf(self, node: Node) -> tuple[int, Node]:
        self.pool.free(node.slots)
        self.full_lru.remove(node)
        self.window_lru.remove(node)
        self._detach(node)
        self.evictable[FULL] -= len(node)
        self.evictable[PART] -= len(node)
        self.lost("node", node)
        more, last = self._delete_tombstones(node, self.full_lru, lambda node: not node.window)
        return len(node) + more, last

    # -- requests ----------------------------------------------------------------------------------

    def _own(self, req: Req) -> int:
        # N tokens have N - 1 pairs: the last slot is not the tree's.
        if self.shape.bigrams and req.prefix > req.protected:
            return req.prefix - 1
        return req.prefix

    def cache_unfinished(self, req: Req) -> None:
        """Follows `cache_unfinished_req`."""
        fill, own = req.fill, self._own(req)
        key = self.key_of(req.tokens[:fill])
        self.by_request = req.id
        self.insert(key, req.row[: len(key)].copy(), req.extra_key, own)
        match = self.match(key, req.extra_key)
        slots = match.slots
        req.write(own, slots[own:])
        req.protected = len(slots)
        if req.last_node is not None:
            self.unlock(req.last_node, req.lock)
        req.lock = self.lock(match.node)
        req.prefix = fill
        req.last_node = match.node

    def cache_finished(self, req: Req, *, insert: bool = True) -> None:
        """Follows `cache_finished_req`."""
        committed, own = req.committed, self._own(req)
        key = self.key_of(req.tokens[:committed])
        count = len(key)
        if insert:
            self.by_request = req.id
            slots = req.row[:count].copy()
            # Trap (#31486): at 0 freed window slots count as alive, and are freed twice.
            gone = 0 if self.rules.tree.inserts_gone_windows else req.window_evicted
            self.insert(key, slots, req.extra_key, own, gone)
        else:
            self.pool.free(req.row[own:count].copy())
        self.pool.free(req.row[count:committed].copy())
        if req.last_node is not None:
            self.unlock(req.last_node, req.lock)


# The tree of models with recurrent layers. Follows `MambaRadixCache` of 0.5.9.
#
#     root --[0 .. 64)--> (S) --[64 .. 100)--> ( ) --[100 .. 120)--> (S)
#
# A node may hold a state (S), valid at its end. A match resumes from the deepest one on its path;
# what attention holds behind it is computed again. A leaf without a state does not stay.


class MambaRadixCache(Tree):
    """A tree of slots, with states at the ends of some nodes; two LRU lists.

    Upstream: `MambaRadixCache`.
    """

    has_states = True

    def _begin(self) -> None:
        self.full_lru = LruList(FULL)
        self.state_lru = LruList(STATE)

    # -- match -------------------------------------------------------------------------------------

    def match(self, key: Integers, extra: Hashable) -> Match:
        """Match a key up to the deepest state on its path. Follows `_match_prefix_helper`,
        `_match_post_processor`.

        Trap: the limit of a prompt's length minus one divides the very node that has the state, so
        with `no_buffer` a repeated prompt reuses nothing.
        """
        if not len(key):
            return Match(joined([]), self.root)
        page, node = self.shape.page, self.root
        slots: list[Integers] = []
        best, usable = node, 0
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            # Checked before each step down, so the deepest state on the path counts.
            if node.state is not None:
                best, usable = node, len(slots)
            length = matching(child, key, page)
            # Trap: the limit of a prompt's length minus one divides the very node that has the
            # state, so with `no_buffer` a repeated prompt reuses nothing.
            if length < len(child):
                node = self._split(child, length, extra)
                slots.append(node.slots)
                break
            slots.append(child.slots)
            node, key = child, key[length:]
        if node.state is not None:
            best, usable = node, len(slots)
        self.full_lru.use_path(best.path())
        # Trap: all states on the path count as used, not only the one that is (#31643).
        self.state_lru.use_path(best.path())
        self._used_path(best)
        attention = sum(map(len, slots))
        branch = None
        # Attention goes further than the state: this prefill should leave one there.
        if len(slots) > usable:
            branch = attention // self.shape.grid * self.shape.grid or None
        return Match(joined(slots[:usable]), best, attention, branch)

    def _split(self, child: Node, length: int, extra: Hashable) -> Node:
        """The state stays with the lower half: it is valid at the end only."""
        new = self._halves(child, length, extra)
        new.locks[FULL] = child.locks[FULL]
        child.last_access = self.clock.tick()
        self.full_lru.remove(child)
        if child.state is not None:
            self.state_lru.remove(child)
        self.full_lru.insert(new)
        self.full_lru.insert(child)
        if child.state is not None:
            self.state_lru.insert(child)
        return new

    def take_state(self, req: Req, node: Node) -> None:
        """Copy a node's state into the request's own slot (`cow_mamba`)."""
        if node.state is None:
            return
        if req.state is None:
            slot = self.state_pool.alloc()
            # Locked, or the eviction for its copy could take the very state that is to be copied.
            if slot is None:
                self.lock(node)
                slot = self.state_or_room("MambaRadixCache.match_prefix")
                self.unlock(node)
            req.state = slot
        # A copy, since the first token would overwrite the tree's state.
        self.state_pool.copy(node.state, req.state)
        if self.rules.runner.shares_states:
            req.state_source = node.state

    # -- insert ------------------------------------------------------------------------------------

    def insert(
        self, key: Integers, slots: Integers, extra: Hashable, state: int
    ) -> tuple[int, bool]:
        """Insert a key with the state at its end; return the tokens held already, and if the state
        was held.

        Follows `_insert_helper`.
        """
        page, node, total = self.shape.page, self.root, 0
        node.last_access = self.clock.tick()
        if not len(key):
            return 0, True
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            node = child
            self._use(node)
            length = matching(node, key, page)
            total += length
            key, slots = key[length:], slots[length:]
            if length < len(node):
                node = self._split(node, length, extra)
        if len(key):
            node = self._hang(node, key, slots, extra)
            node.state = state
            self.full_lru.insert(node)
            self.state_lru.insert(node)
            self.evictable[FULL] += len(slots)
            self.evictable[STATE] += 1
            self.kept(total + len(key), len(key))
            self.kept_state(node)
            return total, False
        self.kept(total, 0)
        # The path was there, its state was evicted or never saved.
        if node.state is None:
            node.state = state
            self.full_lru.use(node)
            self.state_lru.insert(node)
            self.evictable[STATE] += 1
            node.last_access = self.clock.tick()
            self.kept_state(node)
            return total, False
        self._use(node)
        return total, True

    def _use(self, node: Node) -> None:
        node.last_access = self.clock.tick()
        self.full_lru.use(node)
        if node.state is not None:
            self.state_lru.use(node)

    # -- locks -------------------------------------------------------------------------------------

    def lock(self, node: Node) -> None:
        if node.state is not None:
            if not node.locks[STATE]:
                self.evictable[STATE] -= 1
            node.locks[STATE] += 1
        for ancestor in node.path():
            if not ancestor.locks[FULL]:
                self.evictable[FULL] -= len(ancestor)
            ancestor.locks[FULL] += 1

    def unlock(self, node: Node, held: object = None) -> None:
        if node.state is not None:
            if node.locks[STATE] == 1:
                self.evictable[STATE] += 1
            node.locks[STATE] -= 1
        for ancestor in node.path():
            if ancestor.locks[FULL] == 1:
                self.evictable[FULL] += len(ancestor)
            ancestor.locks[FULL] -= 1

    # -- evict -------------------------------------------------------------------------------------

    def _evict(self, tokens: int, window: int, states: int) -> None:
        if tokens > 0:
            evicted, node = 0, self.full_lru.oldest(leaves=True)
            while evicted < tokens and node is not None and node in self.full_lru:
                freed, last, following = self._evict_leaf(node, from_states=False)
                evicted += freed
                if last.parent is not None and not last.parent.children:
                    following = self.full_lru.oldest(leaves=True)
                node = following
        if states > 0:
            evicted, node = 0, self.state_lru.oldest()
            while evicted < states and node is not None and node in self.state_lru:
                # A tombstone: attention's slots stay for the nodes below, and still say where
                # prompts diverge.
                if node.children:
                    following = self.state_lru.before(node)
                    self.state_lru.remove(node)
                    self._drop_state(node)
                    self.lost("state", node)
                else:
                    _, _, following = self._evict_leaf(node, from_states=True)
                evicted += 1
                node = following

    def _drop_state(self, node: Node) -> None:
        if node.state is not None:
            self.state_pool.free(node.state)
            self.evictable[STATE] -= 1
            node.state = None

    def _evict_leaf(self, node: Node, *, from_states: bool) -> tuple[int, Node, Node | None]:
        self.pool.free(node.slots)
        following = (
            self.state_lru.before(node) if from_states else self.full_lru.before(node, leaves=True)
        )
        self.full_lru.remove(node)
        self.state_lru.remove(node)
        self._detach(node)
        self.evictable[FULL] -= len(node)
        self._drop_state(node)
        self.lost("node", node)
        more, last = self._delete_tombstones(node, self.full_lru, lambda node: node.state is None)
        return len(node) + more, last, following

    # -- requests ----------------------------------------------------------------------------------

    def cache_unfinished(self, req: Req) -> None:
        """Insert the tokens up to a saved state, with a copy of that state. Follows
        `cache_unfinished_req`.
        """
        fill = req.fill
        count = req.tracked if self.shape.extra_buffer else fill
        # No grid position was passed: nothing is inserted, and the slots stay the request's own.
        if count is None or req.state is None:
            req.prefix = fill
            return
        key = self._whole_pages(req, count, "MambaRadixCache.cache_unfinished_req")
        source = req.state
        if self.shape.extra_buffer and req.tracks is not None:
            # The slot that was tracked in last; the other one is being written to.
            source = req.tracks[req.other_track]
        # The request continues on its own state, so the tree gets a copy.
        forked = self.state_or_room("MambaRadixCache.cache_unfinished_req")
        self.state_pool.copy(source, forked)
        self.by_request = req.id
        known, there = self.insert(key, req.row[:count].copy(), req.extra_key, forked)
        self.pool.free(req.row[req.protected : known].copy())
        if there:
            self.state_pool.free(forked)
        match = self.match(key, req.extra_key)
        slots = match.slots
        req.write(req.protected, slots[req.protected :])
        if req.last_node is not None:
            self.unlock(req.last_node)
        self.lock(match.node)
        req.prefix = fill
        req.protected = len(slots)
        req.tracked = None
        req.last_node = match.node

    def cache_finished(self, req: Req, *, insert: bool = True) -> None:
        """Insert the tokens up to a saved state, and donate that state. Follows
        `cache_finished_req`.
        """
        committed, there, keep = req.committed, True, None
        if insert and req.state is not None:
            count = (req.tracked or 0) if self.shape.extra_buffer else committed
            if self.rules.tree.key_without_reply:
                count = len(self.key_of(req.tokens[: min(count, req.num_prompt)]))
            # Slots after the tracked state are freed: attention without a state is of no use.
            if count != committed:
                self.pool.free(req.row[max(count, req.protected) : committed].copy())
            state = req.state
            if self.shape.extra_buffer and req.tracks is not None:
                keep = req.other_track
                state = req.tracks[keep]
            self.by_request = req.id
            key = self._whole_pages(req, count, "MambaRadixCache.cache_finished_req")
            known, there = self.insert(key, req.row[:count].copy(), req.extra_key, state)
            self.pool.free(req.row[req.protected : known].copy())
        else:
            self.pool.free(req.row[req.protected : committed].copy())
        # The node has a state already, so none is donated.
        if there:
            keep = None
        if self.shape.extra_buffer or there:
            self._free_states(req, keep)
        req.state = req.tracks = None
        if req.last_node is not None:
            self.unlock(req.last_node)

    def _whole_pages(self, req: Req, count: int, where: str) -> Integers:
        """The first tokens of a request, which both methods assert to be whole pages."""
        key = self.key_of(req.tokens[:count])
        if len(key) != count:
            why = f"AssertionError: page_aligned_len={len(key)}, cache_len={count}"
            raise UpstreamAbort(where, why)
        return key

    def _free_states(self, req: Req, keep: int | None) -> None:
        """Follows `free_mamba_cache`: the running state, and the tracks but the donated one."""
        if req.state is not None:
            self.state_pool.free(req.state)
        for number, slot in enumerate(req.tracks or ()):
            if number != keep:
                self.state_pool.free(slot)
