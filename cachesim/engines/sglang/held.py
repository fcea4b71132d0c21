"""What the tree holds at one moment, in the form that pages are drawn from."""

import numpy as np

from cachesim.engines.held import UNKNOWN, CellsHeld, Held, Marks, RowHeld, runs_of
from cachesim.engines.sglang.contents import Contents
from cachesim.engines.sglang.node import FULL, STATE, Node
from cachesim.engines.sglang.tree import Tree
from cachesim.model.arithmetic import Network, Place


def held(tree: Tree, contents: Contents, network: Network) -> Held:
    """Every node: cells of attention and of windows, and states with what they have folded in.

    Owners are the locks: who uses a node now is a running request's business.
    """
    marks = Marks.of(network)
    nodes = [(node, node.depth()) for node in tree.nodes()]
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
    return Held(cells=tuple(cells), rows=tuple(rows))


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
