"""What the tree holds at one moment, in the form that pages are drawn from."""

import numpy as np

from cachesim.engines.held import UNKNOWN, Amounts, CellsHeld, Held, Marks, RowHeld, runs_of
from cachesim.engines.marconi.tree import Node, Tree
from cachesim.model.arithmetic import Network, Place


def held(tree: Tree, network: Network) -> Held:
    """Every node's tokens, and the state at its end."""
    marks = Marks.of(network)
    nodes = [(node, node.depth()) for node in tree.all() if node.content is not None]
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
    return Held(cells=tuple(cells), rows=tuple(rows))


def _cells(place: Place, nodes: list[tuple[Node, int]], marks: Marks) -> CellsHeld:
    """One place per token, in the order of the nodes."""
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
    """The same in numbers: a state at every node's end, a token's place in every layer."""
    return Amounts(attention=tree.tokens, window=tree.tokens, states=tree.nodes)
