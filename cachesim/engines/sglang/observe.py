"""What SGLang's tree and host hold, and whether tree, pools and counters agree."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from cachesim.engines.held import (
    ROOT,
    UNKNOWN,
    Amounts,
    CellsHeld,
    EntryHeld,
    Held,
    Kept,
    Marks,
    NodeHeld,
    RowHeld,
    Runs,
    Texts,
    TreeHeld,
    runs_of,
    sizes_of,
)
from cachesim.engines.sglang.account import Account
from cachesim.engines.sglang.hi_radix import HiRadixCache, extra_of
from cachesim.engines.sglang.hicache import HostTier
from cachesim.engines.sglang.node import FULL, HOST, PART, STATE, LruList, Node
from cachesim.engines.sglang.pools import WindowPool
from cachesim.engines.sglang.request import Req, Stream
from cachesim.engines.sglang.runner import Contents
from cachesim.engines.sglang.scheduler import Scheduler
from cachesim.engines.sglang.tree import Tree, joined
from cachesim.engines.sglang.unified import UnifiedRadixCache
from cachesim.engines.sglang.unified_core import UnifiedTreeCore
from cachesim.errors import ContractError
from cachesim.model.arithmetic import Network, Place
from cachesim.model.spec import ModelSpec
from cachesim.model.trace import NodeId, Traced
from cachesim.typed import there_is
from cachesim.units import Array, Integers, Tokens, as_tokens


def snapshot(tree: Tree, scheduler: Scheduler) -> dict[str, Any]:
    """The nodes, and the requests."""
    return {
        "slots": [],
        "prompt_cache": [],
        "nodes": [
            {
                "request": node.request,
                "n_tokens": node.depth(),
                "own": len(node),
                "state": node.state is not None,
                "window": node.window,
                "locks": node.locks[0],
            }
            for node in tree.nodes()
        ],
        "free": tree.pool.available,
        "running": [req.id for req in scheduler.running.reqs],
        "waiting": [req.id for req in scheduler.waiting],
    }


def held(tree: Tree, contents: Contents, host: Contents, network: Network) -> Held:
    """Every node: cells of attention and of windows, and states with what they have folded in;
    the host's content as prompt-cache entries.

    Owners are the locks; only running requests know their nodes.
    """
    marks = Marks.of(network)
    on_host = tuple(_host_entries(tree, host, network))
    nodes = [(node, node.depth()) for node in tree.nodes() if node.value is not None]
    places = {shape.place for shape in network.shapes}
    cells = [
        _cells(place, nodes, tree, contents, marks)
        for place in ("attention", "window")
        if place in places
    ]
    layer = marks.layers.get("recurrent")
    rows = [
        RowHeld(
            row=node.state,
            position=depth - 1,
            owners=1 if node.locks[STATE] else 0,
            node=UNKNOWN if layer is None else int(contents.row(layer, node.state)[0]),
        )
        for node, depth in nodes
        if node.state is not None
    ]
    nodes_held = tuple(_node(node, tree, contents, marks) for node in tree.nodes())
    drawn = TreeHeld(name="radix tree", of="memory", nodes=nodes_held)
    return Held(cells=tuple(cells), rows=tuple(rows), entries=on_host, tree=drawn)


def _node(node: Node, tree: Tree, contents: Contents, marks: Marks) -> NodeHeld:
    """A node with its parent; the root of upstream's count is 1, here it is 0."""
    tokens = _tokens(tree, list(node.path())[::-1])
    kept: Kept = "here" if node.value is not None else "host"
    if node.value is None and node.host_full is None:
        kept = "gone"
    saved = "state" if node.state is not None else ""
    if not saved and node.host_state is not None:
        saved = "state on the host"
    layer = marks.layers.get("recurrent")
    folded = UNKNOWN
    if layer is not None and node.state is not None:
        folded = int(contents.row(layer, node.state)[0])
    return NodeHeld(
        number=node.id - 1,
        parent=ROOT if node.parent is None else node.parent.id - 1,
        tokens=tokens,
        count=len(node),
        kept=kept,
        runs=_own_cells(node, contents, marks) if kept == "here" else (),
        saved=saved,
        lacks="state" if tree.has_states and not saved else "",
        node=folded,
        window=node.window if tree.has_windows else None,
    )


def _own_cells(node: Node, contents: Contents, marks: Marks) -> Runs:
    """A node's attention slots, or its window's, with the origins of their tokens."""
    layer = marks.layers.get("attention")
    if layer is not None:
        contents.reach(layer, node.slots)
    end = node.depth()
    return runs_of(
        node.slots,
        np.arange(end - len(node), end, dtype=np.int64),
        np.zeros(len(node), np.int64),
        marks.births(contents.keys, "attention", node.slots),
    )


def texts(tree: Tree) -> Texts:
    """The token histories that the host holds."""
    return Texts(entries=tuple(_tokens(tree, path) for path in _host_paths(tree)))


def amounts(tree: Tree, spec: ModelSpec) -> Amounts:
    """Amounts of each kind in the tree."""
    sizes = _sizes(spec, tree)
    tokens = window = states = on_host = 0
    for node in tree.nodes():
        if node.value is not None:
            tokens += len(node)
            window += len(node) * (bool(node.window) or not tree.has_windows)
            states += node.state is not None
        if node.host_full is not None:
            on_host += _bytes(node, sizes)
    return Amounts(attention=tokens, window=window, states=states, prompt_cache=on_host)


def _host_entries(tree: Tree, host: Contents, network: Network) -> Iterator[EntryHeld]:
    """The longest prompts that the host holds whole, with the states on their paths.

    Shared tokens count with the first.
    """
    counted: set[int] = set()
    sizes = _sizes(network.spec, tree)
    for path in _host_paths(tree):
        mine = [node for node in path if node.id not in counted and node.host_full is not None]
        counted.update(node.id for node in mine)
        tokens = _tokens(tree, path)
        yield EntryHeld(
            tokens=tokens,
            checkpoints=sum(node.host_state is not None for node in path),
            size=sum(_bytes(node, sizes) for node in mine),
            kind="host",
            held=tuple(_misplaced(network, host, path, tokens)),
        )


def _host_paths(tree: Tree) -> Iterator[list[Node]]:
    """The path to each node on the host that has no child there."""
    for node in tree.nodes():
        if node.host_full is not None and all(
            child.host_full is None for child in node.children.values()
        ):
            yield list(node.path())[::-1]


def _tokens(tree: Tree, path: Sequence[Node]) -> Tokens:
    key = np.concatenate([node.key for node in path])
    if tree.shape.bigrams:
        key = np.append(key >> 32, key[-1] & 0xFFFFFFFF)
    return as_tokens(key.tolist())


def _sizes(spec: ModelSpec, tree: Tree) -> tuple[int, int, int]:
    """Bytes of a token's attention, of its windows, and of a state."""
    token, window, state = sizes_of(spec)
    return (token, window, state) if tree.has_windows else (token + window, 0, state)


def _bytes(node: Node, sizes: tuple[int, int, int]) -> int:
    token, window, state = sizes
    size = token * len(node)
    size += window * len(node) if node.host_window is not None else 0
    return size + (state if node.host_state is not None else 0)


def _misplaced(
    network: Network, host: Contents, path: Sequence[Node], tokens: Tokens
) -> Iterator[tuple[str, Tokens]]:
    """States on the host that have folded in other tokens than those on their path."""
    if not isinstance(network, Traced):
        return
    clean, end = network.histories.clean(tokens), 0
    for node in path:
        end += len(node)
        if node.host_state is None:
            continue
        layer = Marks.of(network).layers["recurrent"]
        held = NodeId(int(host.row(layer, node.host_state)[0]))
        if held != clean[end]:
            folded = network.histories.tokens(held)
            yield f"state after {end} tokens", as_tokens(folded)


def _cells(
    place: Place, nodes: list[tuple[Node, int]], tree: Tree, contents: Contents, marks: Marks
) -> CellsHeld:
    own = place == "window" and tree.has_windows
    numbers, positions, owners = [], [], []
    for node, depth in nodes:
        if own and not node.window:
            continue
        slots = node.slots
        if own and contents.windows is not None:
            slots = contents.windows.mapping[slots]
        numbers.append(slots)
        positions.append(np.arange(depth - len(node), depth, dtype=np.int64))
        owners.append(np.full(len(node), int(bool(node.locks[FULL]))))
    empty = np.zeros(0, np.int64)
    at = np.concatenate(numbers) if numbers else empty
    layer = marks.layers.get(place)
    if layer is not None and len(at):
        contents.reach(layer, at)
    size = tree.pool.size
    if own and contents.windows is not None:
        size = contents.windows.windows.size
    return CellsHeld(
        part=place,
        stream=0,
        size=size,
        window=contents.window if place == "window" else None,
        runs=runs_of(
            at,
            np.concatenate(positions) if positions else empty,
            np.concatenate(owners) if owners else empty,
            marks.births(contents.keys, place, at) if len(at) else None,
        ),
    )


MASK: Final = (1 << 32) - 1
"""The bits of a pair's second token."""


def check_books(tree: Tree, alive: Iterable[Req], streams: Iterable[Stream] = ()) -> None:
    """Raise ContractError at the first disagreement."""
    lent = [stream for stream in streams if stream.holder is not None]
    held = {id(req): req for req in (*alive, *(there_is(stream.holder) for stream in lent))}
    running = [req for req in held.values() if req.has_row]
    locks = _locks(tree, [*running, *lent])
    evictable = [0, 0, 0]
    for node in tree.nodes():
        if node.evicted and tree.shape.host is not None:
            if node.host_full is None:
                _fail(f"node {node.id} is neither on the device nor on the host")
            continue
        if len(node.slots) != len(node.key):
            _fail(f"node {node.id} has {len(node.key)} tokens and {len(node.slots)} slots")
        if node.locks[FULL] != locks[node.id]:
            _fail(f"node {node.id} has {node.locks[FULL]} locks and {locks[node.id]} holders")
        evictable[FULL] += 0 if node.locks[FULL] else len(node)
        evictable[PART] += len(node) if node.window and not node.locks[PART] else 0
        evictable[STATE] += node.state is not None and not node.locks[STATE]
        if node.state is not None and tree.rules.tree.trees == "one-per-kind":
            continue
        if node.locks[STATE] and not node.locks[FULL]:
            _fail(f"node {node.id} is held for its state and not for its tokens")
    _lists(tree)
    if evictable != tree.evictable:
        _fail(f"{evictable} tokens, window slots and states may be evicted, {tree.evictable} count")
    _free(tree, running)
    _numbers(tree)
    _rows(tree, running, [*held.values()])
    _host(tree)
    _locked_at_idle(tree, running)
    if isinstance(tree, UnifiedRadixCache):
        most = tree.retries.attempts
        for req in held.values():
            if not 0 <= req.reissues <= most:
                _fail(f"request {req.id} has queried {req.reissues} times again, of {most} times")


def _lists(tree: Tree) -> None:
    """The LRU lists of nodes, and the set of evictable leaves."""
    nodes = [*tree.nodes()]
    members = {
        "full_lru": {node.id for node in nodes},
        "window_lru": {node.id for node in nodes if node.window},
        "state_lru": {node.id for node in nodes if node.state is not None},
    }
    for name, wanted in members.items():
        lru: LruList | None = getattr(tree, name, None)
        if lru is not None and not wanted == lru.members == {node.id for node in lru}:
            _fail(f"{name} has {len(lru)} nodes, not the {len(wanted)} of the tree")
        if lru is None or tree.rules.tree.trees == "unified":
            continue
        times = [node.last_access for node in lru]  # as `LRUList.sanity_check` compares them
        if times != sorted(times, reverse=True):
            _fail(f"{name} is not in the order of last use")
    if isinstance(tree, UnifiedTreeCore):
        leaves = {*tree.leaves}
        for node in nodes:
            tree.update_leaf(node)
        if leaves != tree.leaves:
            _fail(f"{len(leaves)} leaves may be evicted, not {len(tree.leaves)}")


def _locks(tree: Tree, holders: Sequence[Req | Stream]) -> Counter[int]:
    nodes = (holder.node if isinstance(holder, Stream) else holder.last_node for holder in holders)
    anchors = [node for node in nodes if node is not None]
    return Counter(node.id for anchor in (*anchors, *tree.held_by_host()) for node in anchor.path())


def _free(tree: Tree, running: Sequence[Req]) -> None:
    """Slots: each is free, in the tree, or a running request's."""
    pool, page = tree.pool, tree.pool.page
    nodes = [*tree.nodes()]
    rows = [req.row[req.protected : req.allocated] for req in running]
    used = len(np.unique(joined([node.slots for node in nodes] + rows) // page)) * page
    if pool.available + used != pool.size // page * page:
        _fail(f"{pool.available} slots are free and {used} in use of {pool.size}")
    if not isinstance(pool, WindowPool):
        return
    # Trap: a node may count as alive though its window slots were freed before it went in
    alive = [n for n in nodes if n.window or not tree.rules.tree.frees_by_a_stale_map]
    windows = pool.mapping[joined([node.slots for node in alive] + rows)]
    used = len(np.unique(windows[windows > 0] // page)) * page
    if pool.windows.available + used != pool.windows.size // page * page:
        _fail(f"{pool.windows.available} window slots are free and {used} in use")


def _numbers(tree: Tree) -> None:
    """Free pages and states: each once, none beyond the pool, none that a node has."""
    pool, nodes = tree.pool, [*tree.nodes()]
    held = joined([node.slots for node in nodes])
    books = [("pages", pool.free_pages, pool.size // pool.page, held // pool.page)]
    if isinstance(pool, WindowPool):
        alive = pool.mapping[held]
        most, windows = pool.windows.size // pool.page, alive[alive > 0] // pool.page
        books.append(("window pages", pool.windows.free_pages, most, windows))
    if tree.states is not None:
        own = np.array([node.state for node in nodes if node.state is not None], np.int64)
        books.append(("states", tree.states.free_slots, tree.states.size, own))
    for name, ring, most, taken in books:
        free = ring.numbers()
        if len(free) and not 1 <= free.min() <= free.max() <= most:
            _fail(f"{name} from {free.min()} to {free.max()} are free, of {most}")
        marks = _marks(free, most)
        if np.count_nonzero(marks) < len(free) or _any_of(taken, marks):
            _fail(f"{name} are free twice, or a node has them")


def _marks(numbers: Integers, most: int) -> Array:
    """A mask of the numbers from 0 to `most`: pools are large, and sorting them takes long."""
    marks = np.zeros(most + 1, np.bool_)
    marks[_within(numbers, marks)] = True
    return marks


def _any_of(numbers: Integers, marks: Array) -> bool:
    """True if any of the numbers is marked; none beyond the marks is."""
    return bool(marks[_within(numbers, marks)].any())


def _within(numbers: Integers, marks: Array) -> Integers:
    within: Integers = numbers[(numbers >= 0) & (numbers < len(marks))]
    return within


def _rows(tree: Tree, running: Sequence[Req], alive: Sequence[Req]) -> None:
    """Slots and states of running requests: of one request each, none free, none of the tree."""
    page, nodes = tree.pool.page, [*tree.nodes()]
    free, held = tree.pool.free_pages.numbers(), joined([node.slots for node in nodes]) // page
    own = [req.row[-(-req.protected // page) * page : req.allocated] // page for req in running]
    pages = joined([np.unique(row) for row in own])
    marks = _marks(joined([free, held]), tree.pool.size // page)
    if len(np.unique(pages)) < len(pages) or _any_of(pages, marks):
        _fail("slots of a running request are free, or another's")
    if tree.states is None:
        return
    states = [state for req in alive for state in (req.state, *(req.tracks or ()))]
    used = [state for state in states if state is not None]
    used += [node.state for node in nodes if node.state is not None]
    if len(used) + tree.states.available != tree.states.size:
        _fail(f"{tree.states.available} free states and {len(used)} in use of {tree.states.size}")
    if len({*used}) < len(used) or np.isin(used, tree.states.free_slots.numbers()).any():
        _fail("states of a running request are free, or another's")
    for req in running:
        if req.next_track not in {0, 1}:
            _fail(f"request {req.id} tracks its next state in slot {req.next_track} of at most two")


def _host_lists(tree: Tree) -> None:
    """The host's lists of windows and states, and its evictable leaves."""
    tier = getattr(tree, "tier", None)
    if not isinstance(tier, HostTier):
        return
    for part in (PART, STATE):
        alone = [n for n in tree.nodes() if tier.has(n, part) and not tier.on_device(n, part)]
        free = {node.id for node in alone if not node.locks[HOST + part]}
        listed = {node.id for node in tier.lru(part)}
        if listed != tier.lru(part).members or not free <= listed <= {node.id for node in alone}:
            _fail(f"the host's list has {len(listed)} of {len(alone)} windows or states")
    leaves = {*tier.leaves}
    for node in tree.nodes():
        tier.update_leaf(node)
    if leaves != tier.leaves:
        _fail(f"{len(leaves)} leaves of the host may be evicted, not {len(tier.leaves)}")


def check_account(account: Account, tree: Tree) -> None:
    """Raise ContractError for a node, or a state, of which the account has no record.

    Nodes fetched from a storage have none: another server may have written them.
    """
    if tree.stores:
        return
    for node in tree.nodes():
        key = np.concatenate([ancestor.key for ancestor in reversed([*node.path()])])
        tokens = np.append(key >> 32, key[-1] & MASK) if tree.shape.bigrams else key
        extra, end = extra_of(node), len(key)
        if account.kept.find(tokens, extra)[0] < len(tokens):
            _fail(f"no record of {len(tokens)} tokens that node {node.id} ends")
        if node.state is not None and account.states.deepest(tokens, extra, end) < end:
            _fail(f"no record of the state after {end} tokens, at node {node.id}")


def _fetches(tree: Tree) -> None:
    """The tokens that prefetches from the storage occupy."""
    if isinstance(tree, HiRadixCache):
        tokens = sum(len(prefetch.tokens) for prefetch in tree.ongoing.values())
    elif isinstance(tree, UnifiedRadixCache) and tree.stores:
        tokens = sum(len(ongoing.fetch.key) for ongoing in tree.ongoing.values())
    else:
        return
    if tokens != tree.occupied:
        _fail(f"{tokens} tokens are prefetched, {tree.occupied} count")


def _locked_at_idle(tree: Tree, running: Sequence[Req]) -> None:
    """Locks of the host: none is below zero, and none is left once all copies are complete."""
    idle = not (running or tree.stores or any(tree.held_by_host()))
    for node in tree.nodes():
        if min(node.locks) < 0 or (idle and any(node.locks[HOST:])):
            _fail(f"node {node.id} has locks {node.locks} of the device and the host")


def _host(tree: Tree) -> None:
    shape, free = tree.shape.host, tree.host_free()
    if shape is None:
        return
    _host_lists(tree)
    _fetches(tree)
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
    raise ContractError(f"sglang: {what}")
