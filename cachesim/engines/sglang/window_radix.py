"""The tree of models with sliding windows. Follows `SWARadixCache` of 0.5.9.

    root --[0 .. 60)--> gone --[60 .. 100)--> alive

Each node knows whether the window layers' slots are alive. A match may end where the window before
it is alive; a prefix from the root on is alive as far as nothing of it is gone.
"""

from collections.abc import Hashable
from math import inf

from cachesim.engines.sglang.node import FULL, PART, LruList, Node
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import Match, Tree, joined, matching
from cachesim.typed import of_kind
from cachesim.units import Integers


class SWARadixCache(Tree):
    """Slots for tokens, whose window parts come and go; two lists of last use (`SWARadixCache`)."""

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
        found: list[Integers] = []
        alive: float = inf
        best, usable = node, 0
        while len(key):
            child = node.children.get(self.child_key(key, extra))
            if child is None:
                break
            if not child.window:
                if alive >= window:
                    best, usable = node, len(found)
                alive = 0
            length = matching(child, key, page)
            partly = length < len(child)
            node = self._split(child, length, extra) if partly else child
            found.append(node.slots)
            if node.window:
                alive += len(node)
            if partly:
                break
            key = key[length:]
        if alive >= window:
            best, usable = node, len(found)
        self.full_lru.use_path(best.path())
        self.window_lru.use_path(best.path())
        self._used_path(best)
        return Match(joined(found[:usable]), best, sum(map(len, found)))

    def _split(self, child: Node, length: int, extra: Hashable) -> Node:
        new = self._halves(child, length, extra)
        new.window = child.window
        new.locks[FULL], new.locks[PART] = child.locks[FULL], child.locks[PART]
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
        """Put a key in; a tombstone on the way gets the request's fresh slots.

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
            if own < total + length:
                self._overlap(node, slots[:length], gone - total, extra)
            total += length
            key, slots = key[length:], slots[length:]
        self.kept(total + len(key), len(key))
        if len(key):
            dead = gone - total
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
        for each in node.path():
            if not each.locks[FULL]:
                self.evictable[FULL] -= len(each)
            each.locks[FULL] += 1
            if covered < self.shape.window:
                if not each.locks[PART]:
                    self.evictable[PART] -= len(each)
                each.locks[PART] += 1
                covered += len(each)
                if covered >= self.shape.window:
                    if not each.window_mark:
                        self._marks += 1
                        each.window_mark = self._marks
                    mark = each.window_mark
        return mark

    def unlock(self, node: Node, held: object = None) -> None:
        holds = True
        for each in node.path():
            if each.locks[FULL] == 1:
                self.evictable[FULL] += len(each)
            each.locks[FULL] -= 1
            if holds:
                if each.locks[PART] == 1:
                    self.evictable[PART] += len(each)
                each.locks[PART] -= 1
                holds = not (held and each.window_mark == held)

    # -- evict -------------------------------------------------------------------------------------

    def _evict(self, tokens: int, window: int, states: int) -> None:
        """Leaves first, for attention; then windows, of inner nodes too. Follows `evict`."""
        del states
        evicted = windows = 0
        if tokens > 0:
            node = self.full_lru.oldest(leaves=True)
            while evicted < tokens and node is not None and node in self.full_lru:
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
        more, last = self._delete_tombstones(node, self.full_lru, lambda each: not each.window)
        return len(node) + more, last

    # -- requests ----------------------------------------------------------------------------------

    def _own(self, req: Req) -> int:
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
            gone = 0 if self.rules.tree.inserts_gone_windows else req.window_evicted
            self.insert(key, slots, req.extra_key, own, gone)
        else:
            self.pool.free(req.row[own:count].copy())
        self.pool.free(req.row[count:committed].copy())
        if req.last_node is not None:
            self.unlock(req.last_node, req.lock)
