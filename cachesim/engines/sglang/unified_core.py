"""The nodes of one tree for every kind of model. Follows `UnifiedTreeCore` and its components.

A node has parts: attention's slots, the window's, a state. A match may end where every part allows
it. Evicting one part evicts the later ones on the same node (attention, window, state); a leaf is
evicted with all its parts, and may be without a state.
"""

import heapq
from collections.abc import Hashable, Iterator
from itertools import pairwise
from math import inf

from cachesim.engines.sglang.hicache import PARTS, HostTier
from cachesim.engines.sglang.node import FULL, NO_SLOTS, PART, STATE, LruList, Node
from cachesim.engines.sglang.pools import WindowPool, hashes_of, namespace
from cachesim.engines.sglang.tree import STRATEGIES, Match, Tree, joined, matching
from cachesim.units import Integers


class UnifiedTreeCore(Tree):
    """Nodes with parts: match, lock, evict (`UnifiedTreeCore`)."""

    windows: WindowPool | None
    host: HostTier | None = None

    def _begin(self) -> None:
        self.leaves: set[Node] = set()
        self.first = STRATEGIES[self.shape.policy]
        self.windows = self.pool if isinstance(self.pool, WindowPool) else None
        self.has_windows = self.windows is not None
        self.has_states = self.states is not None
        self.window_lru = LruList(PART)
        self.state_lru = LruList(STATE)
        self._marks = 0

    # -- nodes -------------------------------------------------------------------------------------

    def split(self, child: Node, length: int, extra: Hashable) -> Node:
        """Split a node and its window slots; the state stays with the lower half."""
        new = self._halves(child, length, extra)
        new.hits, new.created = child.hits, child.created
        new.locks[FULL], new.locks[PART] = child.locks[FULL], child.locks[PART]
        new.window = child.window
        # The mark says where a lock's window ends upwards, so it moves to the upper half.
        new.window_mark, child.window_mark = child.window_mark, 0
        if new.window:
            self.window_lru.insert_after(child, new)
        # A state is valid at its node's end only, so the upper half has none.
        if self.host is not None:
            self.host.split(new, child)
        child.last_access = self.clock.tick()
        self.update_leaf(new)
        self.update_leaf(child)
        if self.host is not None:
            self.host.track_twice(new)
        if self.stores:
            pages = length // self.shape.page
            new.hashes, child.hashes = child.hashes[:pages], child.hashes[pages:]
        return new

    def hang(self, parent: Node, key: Integers, slots: Integers, extra: Hashable) -> Node:
        """Add a leaf with attention slots only."""
        node = self._hang(parent, key, slots, extra)
        self.evictable[FULL] += len(node)
        self.update_leaf(node)
        self.update_leaf(parent)
        if self.stores:
            prior = parent.hashes[-1] if parent.hashes else namespace(extra)
            node.hashes = hashes_of(key, prior, self.shape.page, bigrams=self.shape.bigrams)
        return node

    def update_leaf(self, node: Node) -> None:
        """Update the sets of evictable leaves. Follows `_update_evictable_leaf_sets`."""
        if self.host is not None:
            self.host.update_leaf(node)
            # With a host, children that only the host holds do not count.
            taken = node.value is None or any(
                child.value is not None for child in node.children.values()
            )
        else:
            taken = bool(node.children)
        if taken or node is self.root or node.locks[FULL] or node.locks[PART] or node.locks[STATE]:
            self.leaves.discard(node)
        else:
            self.leaves.add(node)

    # -- match -------------------------------------------------------------------------------------

    def match(self, key: Integers, extra: Hashable) -> Match:
        """Match a key up to the deepest node that every part can resume from. Follows
        `_match_prefix_helper`.
        """
        if not len(key):
            return Match(joined([]), self.root)
        page, node, found, attention = self.shape.page, self.root, [], 0
        # Infinite at the root: a prefix shorter than the window is a whole one.
        best, usable, alive, tiered = node, 0, inf, self.host is not None
        beyond, reach, there = node, 0, inf  # the same with what is on the host only
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None or (child.value is None and child.host_full is None):
                break
            length = matching(child, key, page)
            attention += length
            partly = length < len(child)
            # Trap: a match divides the node where it ends, and the upper half has no state: with
            # `no_buffer` a repeated prompt, limited to one token less, never hits.
            node = self.split(child, length, extra) if partly else child
            if node.value is not None:
                found.append(node.slots)
            # A hole in the window: what comes before it does not count.
            alive = alive + len(node) if node.window else 0.0
            if node.value is not None and self._legal(alive, has_state=node.state is not None):
                best, usable = node, len(found)
            if tiered:
                there = there + len(node) if node.window or node.host_window is not None else 0.0
                has_state = node.state is not None or node.host_state is not None
                if self._legal(there, has_state=has_state):
                    beyond, reach = node, attention
            if partly:
                break
            key = key[length:]
        slots = joined(found[:usable])
        if not tiered:
            beyond, reach = best, len(slots)
        # Follows `_match_post_processor`: only what was used counts as used.
        if self.has_windows:
            self.window_lru.use_path(self.near(beyond))
        if self.has_states:
            # Trap: until #31643 each match renewed all states on its path, so states that nobody
            # resumed from stayed, and used ones were evicted.
            if self.rules.tree.uses_path_states:
                self.state_lru.use_path(beyond.path())
            elif beyond in self.state_lru:
                self.state_lru.use(beyond)
        self._used_path(beyond)
        # Attention may go further than what can be resumed: the difference is where this prefill
        # should leave a state or a window for the next prompt.
        on_host = self.host.tokens_between(best, beyond) if self.host is not None else 0
        boundary = len(slots) + on_host
        return Match(
            slots,
            best,
            attention,
            self._beyond(attention, self.shape.grid, boundary) if self.has_states else None,
            self._beyond(attention, page, boundary) if self.has_windows else None,
            best=beyond,
            reach=reach,
            on_host=on_host,
            window_on_host=self.host.window_tokens(beyond) if self.host is not None else 0,
            state_on_host=beyond.state is None and beyond.host_state is not None,
        )

    def peek(self, key: Integers) -> int | None:
        """The tokens to the deepest node that `match` would resume from.

        | whole node | whole node | part of a node |     the upper half of a split has no state
        """
        if self.host is not None:
            return None  # what the host would load is decided by the scheduler
        total, usable, alive = 0, 0, inf
        for node, length in self.walk(key):
            total += length
            alive = alive + length if node.window else 0.0
            # Only at a node's end is its state valid.
            whole = length == len(node)
            if self._legal(alive, has_state=whole and node.state is not None):
                usable = total
        return usable

    def _legal(self, alive: float, *, has_state: bool) -> bool:
        # `sliding_window_size` already leaves out the current token.
        if self.has_windows and alive < self.shape.window:
            return False
        return not self.has_states or has_state

    @staticmethod
    def _beyond(attention: int, grid: int, usable: int) -> int | None:
        aligned = attention // grid * grid
        return aligned if aligned > usable else None

    def near(self, node: Node) -> Iterator[Node]:
        """A node and its ancestors within a window and a page."""
        reach, passed = self.shape.window + self.shape.page, 0
        for ancestor in node.path():
            # Farther up the match does not read windows, so they do not count as used.
            if passed >= reach:
                return
            yield ancestor
            passed += len(ancestor)

    # -- locks -------------------------------------------------------------------------------------

    def lock(self, node: Node) -> int:
        # Attention needs the whole path, a window its last tokens, a state one node.
        for ancestor in node.path():
            if not ancestor.locks[FULL] and ancestor.value is not None:
                self.evictable[FULL] -= len(ancestor)
            ancestor.locks[FULL] += 1
        self.leaves.difference_update(node.path())
        mark = self._lock_window(node) if self.has_windows else 0
        if self.has_states and node is not self.root:
            if not node.locks[STATE] and node.state is not None:
                self.evictable[STATE] -= 1
            node.locks[STATE] += 1
        if self.host is not None:
            self.host.update_leaf(node)
        return mark

    def _lock_window(self, node: Node) -> int:
        covered, mark = 0, 0
        for ancestor in node.path():
            # The rest of the path may lose its windows while the request runs.
            if covered >= self.shape.window:
                break
            if not ancestor.locks[PART] and ancestor.window:
                self.evictable[PART] -= len(ancestor)
            ancestor.locks[PART] += 1
            covered += len(ancestor)
            if covered >= self.shape.window:
                # The node may be split before the unlock: the mark finds the end again.
                if not ancestor.window_mark:
                    self._marks += 1
                    ancestor.window_mark = self._marks
                mark = ancestor.window_mark
        return mark

    def unlock(self, node: Node, held: object = None) -> None:
        if self.has_states and node is not self.root:
            if node.locks[STATE] == 1 and node.state is not None:
                self.evictable[STATE] += 1
            node.locks[STATE] -= 1
        if self.has_windows:
            for ancestor in node.path():
                if ancestor.locks[PART] == 1 and ancestor.window:
                    self.evictable[PART] += len(ancestor)
                ancestor.locks[PART] -= 1
                self.update_leaf(ancestor)
                if held and ancestor.window_mark == held:
                    break
        for ancestor in node.path():
            if ancestor.locks[FULL] == 1 and ancestor.value is not None:
                self.evictable[FULL] += len(ancestor)
            ancestor.locks[FULL] -= 1
            if not ancestor.locks[FULL]:
                self.update_leaf(ancestor)

    # -- room --------------------------------------------------------------------------------------

    def _available(self, part: int) -> int:
        if part == FULL:
            return self.pool.available
        if part == PART:
            return self.windows.available_windows if self.windows is not None else 0
        return self.states.available if self.states is not None else 0

    def _evict(self, tokens: int, window: int, states: int) -> None:
        wanted = (tokens, window, states)
        targets = [self._available(part) + count for part, count in zip(PARTS, wanted, strict=True)]
        gone = [0, 0, 0]
        for part in PARTS:
            count = wanted[part]
            # An earlier part has freed enough by deleting whole leaves.
            if count <= 0 or self._available(part) >= targets[part]:
                continue
            if part == FULL:
                target = targets[part]
                heap = [(self.first(node), node) for node in self.leaves]
                heapq.heapify(heap)
                while heap and self.pool.available < target:
                    _, node = heapq.heappop(heap)
                    # The entry is older than a lock, or than a child.
                    if node not in self.leaves:
                        continue
                    parent = node.parent
                    # A leaf goes with all its parts: nothing below it could use what stayed.
                    self._evict_leaf(node, gone)
                    # Without its last child a parent is a leaf, too.
                    if parent is not None and parent in self.leaves:
                        heapq.heappush(heap, (self.first(parent), parent))
            elif gone[part] < count:
                lru = self.window_lru if part == PART else self.state_lru
                self._evict_part(part, lru, count, targets[part], gone)
        if self.host is not None and self.host.shape.writes_back:
            self.host.settle()

    def _evict_part(
        self, part: int, lru: LruList, count: int, target: int, gone: list[int]
    ) -> None:
        node = lru.oldest()
        while node is not None and gone[part] < count and self._available(part) < target:
            following = lru.before(node)
            # On a leaf all parts are of equal worth; on an inner node attention's slots stay (a
            # tombstone), since the nodes below need them.
            if node in self.leaves:
                self._evict_leaf(node, gone)
            else:
                if self.host is not None:
                    self.host.save_inner(part, node)
                self.drop(node, part, gone)
                self._gave_up(part, node)
                # An inner node loses the parts of less worth, too. Follows `_cascade_evict`.
                if part == PART and node.state is not None and not node.locks[STATE]:
                    self.drop(node, STATE, gone)
                    self._gave_up(STATE, node)
                self.update_leaf(node)
            # The eviction took the next one along.
            if following is not None and following not in lru:
                following = lru.oldest()
            node = following

    def _gave_up(self, part: int, node: Node) -> None:
        """Emit an event on an evicted window or state, or on its copy on the host."""
        if self.host is not None and self.host.has(node, part):
            self.host.notify("left", part, node)
        else:
            self.lost("window" if part == PART else "state", node)

    def _evict_leaf(self, node: Node, gone: list[int]) -> None:
        if self.host is not None:
            self.host.let_leaf_go(node, gone)
        else:
            self.delete_leaf(node, gone)

    def drop(self, node: Node, part: int, gone: list[int]) -> None:
        """Evict a part of a node."""
        if part == FULL:
            self.give_back(node.slots)
            gone[FULL] += len(node)
            self.evictable[FULL] -= len(node)
        elif part == PART and node.window and self.windows is not None:
            # Trap (#27586): the entries stay, and a revival frees the slots that they name,
            # although they are in use again.
            stale = self.windows.mapping[node.slots] if self.rules.tree.frees_by_a_stale_map else 0
            self.windows.free_window(node.slots)
            self.windows.mapping[node.slots] = stale
            gone[PART] += len(node)
            self.evictable[PART] -= len(node)
            node.window = False
            self.window_lru.remove(node)
            if self.host is not None:
                self.host.left(node, PART)
        elif part == STATE and node.state is not None:
            self.state_pool.free(node.state)
            gone[STATE] += 1
            self.evictable[STATE] -= 1
            node.state = None
            self.state_lru.remove(node)
            # Trap (#33713): the state is deleted where it should only move down.
            if self.host is not None and self.rules.tree.state_copies_go_too:
                self.host.drop(node, STATE, [0, 0, 0])
            elif self.host is not None:
                self.host.left(node, STATE)

    def delete_leaf(self, node: Node, gone: list[int]) -> None:
        """Delete a leaf with all its parts. Follows `_delete_unbacked_device_leaf`."""
        for part in (PART, STATE, FULL):
            self.drop(node, part, gone)
        if self.host is not None:
            self.host.drop_all(node, [0, 0, 0])
        self.take_out(node)
        self.lost("node", node)
        if self.host is not None:
            # Ancestors may now be held by neither device nor host.
            self.host.clear_above(node, gone)

    def take_out(self, node: Node) -> None:
        """Remove a node from the tree."""
        self._detach(node)
        self.leaves.discard(node)
        if node.parent is not None:
            self.update_leaf(node.parent)

    # -- what comes back from the host -------------------------------------------------------------

    def window_slots(self, node: Node) -> Integers:
        """The window slots of a node's tokens."""
        if self.windows is None:
            return NO_SLOTS
        slots: Integers = self.windows.mapping[node.slots]
        return slots

    def put_window(self, node: Node, slots: Integers) -> None:
        """Set a node's window slots. Follows `set_component_device_value`."""
        if self.windows is not None:
            self.windows.mapping[node.slots] = slots
        self.publish(node)

    def publish(self, node: Node) -> None:
        """Make a node's window slots alive."""
        if self.host is not None:
            self.host.came_back(node, PART)
        node.window = True
        self.window_lru.insert(node)
        if not node.locks[PART]:
            self.evictable[PART] += len(node)

    def put_state(self, node: Node, slot: int) -> None:
        """Set a node's state."""
        if self.host is not None:
            self.host.came_back(node, STATE)
        node.state = slot
        self.state_lru.insert(node)
        if not node.locks[STATE]:
            self.evictable[STATE] += 1

    def give_back(self, slots: Integers) -> None:
        """Free attention slots only."""
        if self.windows is not None:
            self.windows.free_full(slots)
        else:
            self.pool.free(slots)

    def slots_to(self, node: Node) -> Integers:
        """The attention slots from the root to a node's end."""
        return joined([ancestor.slots for ancestor in reversed(list(node.path()))])

    # -- states on one path ------------------------------------------------------------------------

    def cap_path_states(self, tail: Node) -> None:
        """Limit the states on a path: evict the shallowest without a fork first.

        Follows `_evict_excess_path_states`.
        """
        cap = self.shape.states_per_path
        # The default: no limit (#31230).
        if cap < 0:
            return
        holders = [node for node in tail.path() if node.state is not None]
        excess = len(holders) - cap
        for node, _ in pairwise([*reversed(holders), tail]):
            if excess <= 0 or node is tail:
                break
            # A fork is where prompts diverge, and the tail is the next turn's start: both stay.
            if node.locks[STATE] or len(node.children) != 1 or node in self.leaves:
                continue
            self.drop(node, STATE, [0, 0, 0])
            self._gave_up(STATE, node)
            self.update_leaf(node)
            excess -= 1


class Insertion:
    """An insert. `own` tokens are the tree's already, `gone` have lost their window."""

    def __init__(
        self,
        tree: UnifiedTreeCore,
        key: Integers,
        slots: Integers,
        extra: Hashable,
        *,
        own: int,
        gone: int,
        inserted: int,
        state: int | None,
        priority: int,
    ) -> None:
        self.tree = tree
        self.key = key
        self.slots = slots
        self.extra = extra
        self.own = own
        self.gone = gone
        self.inserted = inserted
        self.state = state
        self.priority = priority
        self.node = tree.root
        self.total = 0
        self.state_was_there = True

    def run(self) -> None:
        """Walk down from the root; the remaining tokens become a leaf."""
        tree, page = self.tree, self.tree.shape.page
        tree.root.last_access = tree.clock.tick()
        tree.root.priority = max(tree.root.priority, self.priority)
        if not len(self.key):
            return
        while len(self.key):
            child = self.node.children.get(tree.child_key(self.key, self.extra))
            if child is None:
                break
            child.last_access = tree.clock.tick()
            length = matching(child, self.key, page)
            # The key diverges inside this node, or ends there.
            if length < len(child):
                child = tree.split(child, length, self.extra)
            child.priority = max(child.priority, self.priority)
            # The device has given up these slots: the request's own become the tree's.
            if child.evicted:
                self._restore(child, length)
            else:
                self._overlap(child, length)
            # Tokens of earlier chunks were counted with those.
            if self.total + length > self.inserted:
                self._count_hit(child)
            self.node = child
            self.total += length
            self.key, self.slots = self.key[length:], self.slots[length:]
        fresh = len(self.key) > 0
        tree.kept(self.total + len(self.key), len(self.key))
        if fresh:
            self._leaf()
        self._commit_state(fresh=fresh)
        if tree.has_windows and self.node is not tree.root:
            tree.window_lru.use_path(tree.near(self.node))
        # A new leaf counts once; an old one may have gained a state or a window to copy.
        if fresh and self.total + len(self.node) > self.inserted:
            self._count_hit(self.node)
        elif not fresh and tree.host is not None:
            tree.host.backup_more(self.node)

    def _count_hit(self, node: Node) -> None:
        """Follows `_inc_hit_count_and_check`. Trap: with `write_back` nothing is counted, so that
        `lfu` is `lru` there.
        """
        host = self.tree.host
        # Trap: with `write_back` nothing is counted, so that `lfu` is `lru` there.
        if not self.tree.rules.tree.counts_hits or (host is not None and host.shape.writes_back):
            return
        node.hits += 1
        if host is not None:
            host.backup_if_used(node)

    # -- what the device has given up --------------------------------------------------------------

    def _restore(self, node: Node, length: int) -> None:
        """Give the request's slots to a node that only the host holds. Follows
        `_unevict_node_on_insert` and `recover_after_unevict`.
        """
        tree = self.tree
        node.value = self.slots[:length]
        if not node.locks[FULL]:
            tree.evictable[FULL] += length
        tree.update_leaf(node)
        if tree.host is not None:
            tree.host.track_twice(node)
        if node.parent is not None:
            tree.update_leaf(node.parent)
        alive = max(self.total, self.gone)
        # Only tokens whose window the request still has can be revived.
        if tree.windows is None or node.window or alive >= self.total + length:
            return
        if alive > self.total:
            tree.split(node, alive - self.total, self.extra)
        tree.publish(node)

    # -- what the tree has already -----------------------------------------------------------------

    def _overlap(self, node: Node, length: int) -> None:
        """Free the request's slots of tokens that the tree holds, except where a window is revived.

        node     [ window gone .............. )
        request  [ own | gone | alive ....... )   the alive ones become the tree's
                       ^ freed ^
        """
        tree, total = self.tree, self.total
        kept_from = length
        # Below `own` the slots are the tree's already: freeing them would free the tree's.
        if tree.windows is not None and self.own < total + length:
            kept_from = self._revive(node, length)
        start = max(0, self.own - total)
        if start >= kept_from:
            return
        twice = self.slots[start:kept_from]
        if tree.windows is None:
            tree.pool.free(twice)
            return
        dead = min(max(self.gone - (total + start), 0), len(twice))
        if dead:
            tree.windows.free_full(twice[:dead])
        if dead < len(twice):
            tree.windows.free(twice[dead:])

    def _revive(self, node: Node, length: int) -> int:
        """The token from which the request's slots replace the tree's. Follows
        `update_component_on_insert_overlap`.
        """
        tree, pool = self.tree, self.tree.windows
        if pool is None or node.window:
            return length
        start = max(self.total, self.gone)
        if start >= self.total + length:
            return length
        if start > self.total:
            tree.split(node, start - self.total, self.extra)
        fresh = self.slots[start - self.total : length]
        # Another request reads the tree's slots: only their window slots are exchanged.
        if node.locks[FULL]:
            windows = pool.mapping[fresh]
            pool.mapping[fresh] = 0
            pool.mapping[node.slots] = windows
            pool.free_full(fresh)
        else:
            if tree.rules.tree.frees_by_a_stale_map:
                pool.free_window(node.slots)
            pool.free_full(node.slots)
            node.value = fresh
        tree.publish(node)
        return start - self.total

    # -- what is new -------------------------------------------------------------------------------

    def _leaf(self) -> None:
        """Add a leaf with the remaining tokens; its last window is a node of its own, so that it
        can be locked alone.

            [ gone | alive, not needed by the last window | the last window )
        """
        tree, total = self.tree, self.total
        parent = self.node
        node = tree.hang(parent, self.key, self.slots, self.extra)
        node.priority = self.priority
        self.node = node
        if tree.windows is None:
            return
        alive = max(total, self.gone)
        if alive >= total + len(node):
            return
        # What has lost its window is a node of its own, since a node's window is alive or gone as a
        # whole.
        if alive > total:
            tree.split(node, alive - total, self.extra)
        upper = self._split_for_lock(node)
        if upper is not None:
            tree.publish(upper)
        tree.publish(node)

    def _split_for_lock(self, leaf: Node) -> Node | None:
        """Follows `_maybe_split_leaf_for_swa_lock`."""
        page = self.tree.shape.page
        tail = -(-self.tree.shape.window // page) * page
        # Only longer leaves: else the window is the whole leaf.
        if leaf.locks[PART] or len(leaf) <= tail:
            return None
        return self.tree.split(leaf, len(leaf) - tail, self.extra)

    def _commit_state(self, *, fresh: bool) -> None:
        """Give the state to the last node, unless that has one. Follows
        `commit_insert_component_data`.
        """
        tree, node = self.tree, self.node
        if not tree.has_states or self.state is None:
            return
        # The first state of a node stays; the caller frees the duplicate.
        if not fresh and node.state is not None:
            tree.state_lru.use(node)
            node.last_access = tree.clock.tick()
            return
        self.state_was_there = False
        if tree.host is not None:
            tree.host.came_back(node, STATE)
        node.state = self.state
        tree.state_lru.insert(node)
        if fresh or not node.locks[STATE]:
            tree.evictable[STATE] += 1
        if not fresh:
            node.last_access = tree.clock.tick()
        tree.kept_state(node)
        tree.cap_path_states(node)
