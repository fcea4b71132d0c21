"""What the tree holds: as plain data, and with the marks of a traced network."""

from typing import Any

import numpy as np

from cachesim.engines.held import (
    ROOT,
    UNKNOWN,
    Amounts,
    CellsHeld,
    Held,
    Marks,
    NodeHeld,
    RowHeld,
    TreeHeld,
    runs_of,
)
from cachesim.engines.marconi.tree import Node, Tree
from cachesim.model.arithmetic import Network, Place


def snapshot(tree: Tree) -> dict[str, Any]:
    """The nodes, their bytes, and the weight of what they save."""
    return {
        "slots": [],
        "prompt_cache": [],
        "nodes": [{"n_tokens": node.end, "own": len(node.key)} for node in tree.all()],
        "bytes": tree.size,
        "weight": tree.weight,
    }


def held(tree: Tree, network: Network) -> Held:
    """The tokens of every node, and the state at its end."""
    marks = Marks.of(network)
    nodes = [(node, node.end) for node in tree.all() if node.content is not None]
    places = {shape.place for shape in network.shapes}
    cells = [_cells(place, nodes, marks) for place in ("attention", "window") if place in places]
    layer = marks.layers.get("recurrent")
    rows = [
        RowHeld(
            row=number,
            position=depth - 1,
            owners=0,
            node=UNKNOWN if layer is None else int(node.content.state[layer][0]),
        )
        for number, (node, depth) in enumerate(nodes)
        if node.content.state
    ]
    drawn = TreeHeld(
        name="radix tree", of="memory", nodes=tuple(_node(*node, marks) for node in nodes)
    )
    return Held(cells=tuple(cells), rows=tuple(rows), tree=drawn)


def _node(node: Node, depth: int, marks: Marks) -> NodeHeld:
    cells = _cells("attention", [(node, depth)], marks)
    layer = marks.layers.get("recurrent")
    has_state = bool(node.content.state)
    return NodeHeld(
        number=node.number,
        parent=ROOT if node.parent is None else node.parent.number,
        tokens=tuple(token for upper in node.path() for token in upper.key),
        count=len(node.key),
        runs=cells.runs,
        saved="state" if has_state else "",
        node=int(node.content.state[layer][0]) if has_state and layer is not None else UNKNOWN,
    )


def _cells(place: Place, nodes: list[tuple[Node, int]], marks: Marks) -> CellsHeld:
    layer = marks.layers.get(place)
    positions = [np.arange(depth - len(node.key), depth, dtype=np.int64) for node, depth in nodes]
    at = np.concatenate(positions) if positions else np.zeros(0, np.int64)
    births = None
    if layer is not None and len(at):
        keys = [node.content.keys[layer][0].reshape(len(node.key), -1)[:, 0] for node, _ in nodes]
        births = np.concatenate(keys).astype(np.int64)
    numbers = np.arange(len(at), dtype=np.int64)
    return CellsHeld(
        part=place,
        stream=0,
        size=len(at),
        window=None,
        runs=runs_of(numbers, at, np.zeros_like(numbers), births),
    )


def amounts(tree: Tree) -> Amounts:
    """Number of tokens in the tree, and of nodes, each of which counts as a state."""
    return Amounts(attention=tree.tokens, window=tree.tokens, states=tree.nodes)
