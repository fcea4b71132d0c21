"""The contents of the tree at one moment, in the form that pages are drawn from."""

from collections.abc import Iterator, Sequence

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
from cachesim.engines.sglang.contents import Contents
from cachesim.engines.sglang.node import FULL, STATE, Node
from cachesim.engines.sglang.tree import Tree
from cachesim.model.arithmetic import Network, Place
from cachesim.model.histories import NodeId
from cachesim.model.spec import ModelSpec
from cachesim.model.trace import Traced
from cachesim.units import Tokens, as_tokens


def held(tree: Tree, contents: Contents, host: Contents, network: Network) -> Held:
    """Every node: cells of attention and of windows, and states with what they have folded in;
    what the host has, as parked prompts.

    Owners are the locks: who uses a node now is a running request's business.
    """
    marks = Marks.of(network)
    parked = tuple(_parked(tree, host, network))
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
    nodes_held = tuple(_node(each, tree, contents, marks) for each in tree.nodes())
    drawn = TreeHeld(name="radix tree", of="memory", nodes=nodes_held)
    return Held(cells=tuple(cells), rows=tuple(rows), entries=parked, tree=drawn)


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
    """A node's slots of attention, or of what has none of it, with the births of their tokens."""
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
    """The tokens of what the host has."""
    return Texts(entries=tuple(_tokens(tree, path) for path in _paths_of_parked(tree)))


def amounts(tree: Tree, spec: ModelSpec) -> Amounts:
    """Amounts of each kind in the tree."""
    sizes = _sizes(spec, tree)
    tokens = window = states = parked = 0
    for node in tree.nodes():
        if node.value is not None:
            tokens += len(node)
            window += len(node) * (bool(node.window) or not tree.has_windows)
            states += node.state is not None
        if node.host_full is not None:
            parked += _bytes(node, sizes)
    return Amounts(attention=tokens, window=window, states=states, parked=parked)


def _parked(tree: Tree, host: Contents, network: Network) -> Iterator[EntryHeld]:
    """The longest prompts of which the host has everything, with the states on their way.

    What several share is counted with the first of them.
    """
    counted: set[int] = set()
    sizes = _sizes(network.spec, tree)
    for path in _paths_of_parked(tree):
        mine = [each for each in path if each.id not in counted and each.host_full is not None]
        counted.update(each.id for each in mine)
        tokens = _tokens(tree, path)
        yield EntryHeld(
            tokens=tokens,
            checkpoints=sum(each.host_state is not None for each in path),
            size=sum(_bytes(each, sizes) for each in mine),
            kind="host",
            held=tuple(_astray(network, host, path, tokens)),
        )


def _paths_of_parked(tree: Tree) -> Iterator[list[Node]]:
    """From the root to each node that the host has, where it has none of its children."""
    for node in tree.nodes():
        if node.host_full is not None and all(
            each.host_full is None for each in node.children.values()
        ):
            yield list(node.path())[::-1]


def _tokens(tree: Tree, path: Sequence[Node]) -> Tokens:
    key = np.concatenate([node.key for node in path])
    if tree.shape.bigrams:
        key = np.append(key >> 32, key[-1] & 0xFFFFFFFF)
    return as_tokens(key.tolist())


def _sizes(spec: ModelSpec, tree: Tree) -> tuple[int, int, int]:
    """Bytes of a token's attention, of its windows, and of a state, as the tree keeps them."""
    token, window, state = sizes_of(spec)
    return (token, window, state) if tree.has_windows else (token + window, 0, state)


def _bytes(node: Node, sizes: tuple[int, int, int]) -> int:
    token, window, state = sizes
    size = token * len(node)
    size += window * len(node) if node.host_window is not None else 0
    return size + (state if node.host_state is not None else 0)


def _astray(
    network: Network, host: Contents, path: Sequence[Node], tokens: Tokens
) -> Iterator[tuple[str, Tokens]]:
    """States on the host that have folded in other tokens than those that lead to them."""
    if not isinstance(network, Traced):
        return
    clean, end = network.histories.clean(tokens), 0
    for node in path:
        end += len(node)
        if node.host_state is None:
            continue
        layer = Marks.of(network).layers["recurrent"]
        found = NodeId(int(host.row(layer, node.host_state)[0]))
        if found != clean[end]:
            folded = network.histories.tokens(found)
            yield f"state after {end} tokens", as_tokens(folded)


def _cells(
    place: Place,
    nodes: list[tuple[Node, int]],
    tree: Tree,
    contents: Contents,
    marks: Marks,
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
