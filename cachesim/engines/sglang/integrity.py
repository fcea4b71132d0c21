"""The tree's books: slots, states and locks must tell the same story."""

from collections import Counter
from collections.abc import Iterable

from cachesim.engines.sglang.node import FULL, PART, STATE
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import Tree
from cachesim.errors import ContractError


def check_books(tree: Tree, alive: Iterable[Req]) -> None:
    """Raise ContractError at the first disagreement."""
    running = [req for req in alive if req.has_row]
    locks = _locks(tree, running)
    slots = states = 0
    evictable = [0, 0, 0]
    for node in tree.nodes():
        states += node.state is not None
        if node.evicted and tree.shape.host is not None:
            if node.host_full is None:
                _fail(f"node {node.id} is neither on the device nor on the host")
            continue
        if len(node.slots) != len(node.key):
            _fail(f"node {node.id} has {len(node.key)} tokens and {len(node.slots)} slots")
        if node.locks[FULL] != locks[node.id]:
            _fail(f"node {node.id} has {node.locks[FULL]} locks and {locks[node.id]} holders")
        slots += len(node)
        evictable[FULL] += 0 if node.locks[FULL] else len(node)
        evictable[PART] += len(node) if node.window and not node.locks[PART] else 0
        evictable[STATE] += node.state is not None and not node.locks[STATE]
        if node.state is not None and tree.rules.tree.trees == "one-per-kind":
            continue
        if node.locks[STATE] and not node.locks[FULL]:
            _fail(f"node {node.id} is held for its state and not for its tokens")
    if evictable != tree.evictable:
        _fail(f"{evictable} tokens, window slots and states may be evicted, {tree.evictable} count")
    _free(tree, running, slots, states)
    _host(tree)


def _locks(tree: Tree, running: list[Req]) -> Counter[int]:
    anchors = [req.last_node for req in running if req.last_node is not None]
    return Counter(node.id for anchor in (*anchors, *tree.held_by_host()) for node in anchor.path())


def _free(tree: Tree, running: list[Req], slots: int, states: int) -> None:
    pool, page = tree.pool, tree.pool.page
    private = sum(-(-r.committed // page) * page - r.protected // page * page for r in running)
    if not running and pool.available + slots != pool.size // page * page:
        _fail(f"{pool.available} free slots and {slots} in the tree of {pool.size}")
    if pool.available + slots + private < pool.size // page * page:
        _fail(f"slots are lost: {pool.available} free, {slots} in the tree, {private} in use")
    if isinstance(pool, WindowPool) and not running:
        # Trap: a node may count as alive though its window slots were freed before it went in
        nodes = [n for n in tree.nodes() if n.window or not tree.rules.tree.frees_by_a_stale_map]
        alive = sum(int((pool.mapping[node.slots] > 0).sum()) for node in nodes)
        if pool.windows.available + alive != pool.windows.size // page * page:
            _fail(f"{pool.windows.available} free window slots and {alive} in the tree")
    if tree.states is not None and not running:
        total = tree.states.available + states
        if total > tree.states.size:
            _fail(f"{tree.states.available} free states and {states} in the tree")


def _host(tree: Tree) -> None:
    shape, free = tree.shape.host, tree.host_free()
    if shape is None:
        return
    held: Counter[str] = Counter()
    for node in tree.nodes():
        held["host_tokens"] += 0 if node.host_full is None else len(node.host_full)
        held["host_window_tokens"] += 0 if node.host_window is None else len(node.host_window)
        held["host_states"] += node.host_state is not None
    held.update(tree.host_underway())
    sizes = {
        "host_tokens": shape.tokens,
        "host_window_tokens": shape.window_tokens,
        "host_states": shape.states,
    }
    orphans = tree.rules.tree.trees == "one-per-kind"  # Trap: see `HiRadixCache`
    for name, count in free.items():
        total = count + held[name]
        if total > sizes[name] or (total < sizes[name] and not orphans):
            _fail(f"{name}: {count} are free, {held[name]} in the tree, of {sizes[name]}")


def _fail(what: str) -> None:
    msg = f"sglang: {what}"
    raise ContractError(msg)
