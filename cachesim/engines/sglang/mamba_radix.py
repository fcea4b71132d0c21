"""The tree of models with recurrent layers. Follows `MambaRadixCache` of 0.5.9.

    root --[0 .. 64)--> (S) --[64 .. 100)--> ( ) --[100 .. 120)--> (S)

A node may hold a state (S), valid at its end. A match goes on from the deepest one on its way; what
attention holds behind it is computed again. A leaf without a state does not stay.
"""

from collections.abc import Hashable

from cachesim.engines.sglang.node import FULL, STATE, LruList, Node
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import Match, Tree, joined, matching
from cachesim.errors import UpstreamAbort
from cachesim.units import Integers


class MambaRadixCache(Tree):
    """Slots for tokens, and states at the ends of some nodes; two lists of last use.

    Upstream: `MambaRadixCache`.
    """

    has_states = True

    def _begin(self) -> None:
        self.full_lru = LruList(FULL)
        self.state_lru = LruList(STATE)

    # -- match -------------------------------------------------------------------------------------

    def match(self, key: Integers, extra: Hashable) -> Match:
        """The deepest state on the way. Follows `_match_prefix_helper`, `_match_post_processor`.

        Trap: the limit of a prompt's length minus one divides the very node that has the state, so
        with `no_buffer` a prompt that is sent again reuses nothing.
        """
        if not len(key):
            return Match(joined([]), self.root)
        page, node = self.shape.page, self.root
        found: list[Integers] = []
        best, usable = node, 0
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            if node.state is not None:
                best, usable = node, len(found)
            length = matching(child, key, page)
            if length < len(child):
                node = self._split(child, length, extra)
                found.append(node.slots)
                break
            found.append(child.slots)
            node, key = child, key[length:]
        if node.state is not None:
            best, usable = node, len(found)
        self.full_lru.use_path(best.path())
        self.state_lru.use_path(best.path())
        self._used_path(best)
        attention = sum(map(len, found))
        branch = None
        if len(found) > usable:
            branch = attention // self.shape.grid * self.shape.grid or None
        return Match(joined(found[:usable]), best, attention, branch)

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
            if slot is None:
                self.lock(node)
                slot = self.state_or_room("MambaRadixCache.match_prefix")
                self.unlock(node)
            req.state = slot
        self.state_pool.copy(node.state, req.state)
        if self.rules.runner.shares_states:
            req.state_source = node.state

    # -- insert ------------------------------------------------------------------------------------

    def insert(
        self, key: Integers, slots: Integers, extra: Hashable, state: int
    ) -> tuple[int, bool]:
        """Put a key with the state at its end in; how much was there, and whether the state was.

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
        for each in node.path():
            if not each.locks[FULL]:
                self.evictable[FULL] -= len(each)
            each.locks[FULL] += 1

    def unlock(self, node: Node, held: object = None) -> None:
        del held
        if node.state is not None:
            if node.locks[STATE] == 1:
                self.evictable[STATE] += 1
            node.locks[STATE] -= 1
        for each in node.path():
            if each.locks[FULL] == 1:
                self.evictable[FULL] += len(each)
            each.locks[FULL] -= 1

    # -- evict -------------------------------------------------------------------------------------

    def _evict(self, tokens: int, window: int, states: int) -> None:
        del window
        if tokens > 0:
            evicted, node = 0, self.full_lru.oldest(leaves=True)
            while evicted < tokens and node is not None and node in self.full_lru:
                freed, last, following = self._evict_leaf(node, from_states=False)
                evicted += freed
                if last.parent is not None and not last.parent.children:
                    following = self.full_lru.oldest(leaves=True)
                node = following
        if states > 0:
            self._evict_states(states)

    def _evict_states(self, states: int) -> None:
        """A leaf goes with its state; of an inner node only the state does (a tombstone)."""
        evicted, node = 0, self.state_lru.oldest()
        while evicted < states and node is not None and node in self.state_lru:
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
        more, last = self._delete_tombstones(node, self.full_lru, lambda each: each.state is None)
        return len(node) + more, last, following

    # -- requests ----------------------------------------------------------------------------------

    def cache_unfinished(self, req: Req) -> None:
        """Insert what has a state at its end, a copy of it. Follows `cache_unfinished_req`."""
        fill = req.fill
        count = req.tracked if self.shape.extra_buffer else fill
        if count is None or req.state is None:
            req.prefix = fill
            return
        key = self._whole_pages(req, count, "MambaRadixCache.cache_unfinished_req")
        source = req.state
        if self.shape.extra_buffer and req.tracks is not None:
            source = req.tracks[1 - req.next_track]
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
        """Donate the state that stands at the end of what is inserted. Follows
        `cache_finished_req`.
        """
        committed, there, keep = req.committed, True, None
        if insert and req.state is not None:
            count = (req.tracked or 0) if self.shape.extra_buffer else committed
            if self.rules.tree.key_without_reply:
                count = len(self.key_of(req.tokens[: min(count, req.num_prompt)]))
            if count != committed:
                self.pool.free(req.row[max(count, req.protected) : committed].copy())
            state = req.state
            if self.shape.extra_buffer and req.tracks is not None:
                keep = 1 - req.next_track
                state = req.tracks[keep]
            self.by_request = req.id
            key = self._whole_pages(req, count, "MambaRadixCache.cache_finished_req")
            known, there = self.insert(key, req.row[:count].copy(), req.extra_key, state)
            self.pool.free(req.row[req.protected : known].copy())
        else:
            self.pool.free(req.row[req.protected : committed].copy())
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
