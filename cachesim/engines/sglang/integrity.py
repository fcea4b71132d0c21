"""The tree's books: slots, states and locks must tell the same story."""

from collections import Counter
from collections.abc import Iterable

from cachesim.engines.sglang.node import FULL, STATE
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.tree import Tree
from cachesim.errors import ContractError


def check_books(tree: Tree, alive: Iterable[Req]) -> None:
    """Raise ContractError at the first disagreement."""
    running = [req for req in alive if req.has_row]
    locks: Counter[int] = Counter()
    for req in running:
        for node in req.last_node.path() if req.last_node is not None else ():
            locks[node.id] += 1
    slots = states = evictable = 0
    for node in tree.nodes():
        if len(node.slots) != len(node.key):
            _fail(f"node {node.id} has {len(node.key)} tokens and {len(node.slots)} slots")
        if node.locks[FULL] != locks[node.id]:
            _fail(f"node {node.id} has {node.locks[FULL]} locks and {locks[node.id]} holders")
        slots += len(node)
        states += node.state is not None
        evictable += len(node) if not node.locks[FULL] else 0
        if node.state is not None and tree.rules.tree.trees == "one-per-kind":
            continue
        if node.locks[STATE] and not node.locks[FULL]:
            _fail(f"node {node.id} is held for its state and not for its tokens")
    if evictable != tree.evictable[FULL]:
        _fail(f"{evictable} tokens may be evicted, and {tree.evictable[FULL]} are counted")
    _free(tree, running, slots, states)


def _free(tree: Tree, running: list[Req], slots: int, states: int) -> None:
    """What is free, what the tree holds and what requests hold makes up the pools."""
    pool, page = tree.pool, tree.pool.page
    private = sum(-(-r.committed // page) * page - r.protected // page * page for r in running)
    if not running and pool.available + slots != pool.size // page * page:
        _fail(f"{pool.available} free slots and {slots} in the tree of {pool.size}")
    if pool.available + slots + private < pool.size // page * page:
        _fail(f"slots are lost: {pool.available} free, {slots} in the tree, {private} in use")
    if isinstance(pool, WindowPool) and not running:
        # Trap: a node may count as alive though its window slots were freed before it went in
        alive = sum(int((pool.mapping[node.slots] > 0).sum()) for node in tree.nodes())
        if pool.windows.available + alive != pool.windows.size // page * page:
            _fail(f"{pool.windows.available} free window slots and {alive} in the tree")
    if tree.states is not None and not running:
        total = tree.states.available + states
        if total > tree.states.size:
            _fail(f"{tree.states.available} free states and {states} in the tree")


def _fail(what: str) -> None:
    msg = f"sglang: {what}"
    raise ContractError(msg)
