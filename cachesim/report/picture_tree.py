"""The rows of a tree of prefixes: each node begins where its parent ends, children below it.

0       30            94
root
+-- [ S: shared ] o
|                 +-- [ a: one question ] o
|                 +-- [ b: another ]
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from cachesim.engines.tokens import get_common_prefix
from cachesim.report.picture_bars import Bar, Branch, Mark, Row, Texts
from cachesim.scenario.provenance import cut, size_of
from cachesim.scenario.states import Pieces, TreeNode, TreeState

MOST_NODES: Final = 24
"""More rows than this are counted, not drawn."""

ROOT: Final = 0


def tree_rows(texts: Texts, tree: TreeState) -> Iterator[Row]:
    """The root, then each node below its parent, and what it holds that is not its own."""
    by_number = {node.number: node for node in tree.nodes}
    shown = tree.nodes[:MOST_NODES]
    children: dict[int, list[TreeNode]] = {}
    for node in shown:
        children.setdefault(node.parent, []).append(node)
    yield Row(
        kind="tree",
        label=f"{tree.name}, root: {_counted(tree)}",
        bars=(),
        branch=Branch(start=0, end=0, root=True, leads_on=bool(shown)),
    )
    for node in shown:
        yield from _node(texts, node, by_number, children)
    if len(tree.nodes) > len(shown):
        yield Row(kind="tree", label=f"{len(tree.nodes) - len(shown)} more nodes", bars=())


def _counted(tree: TreeState) -> str:
    count = len(tree.nodes)
    saved = sum(bool(node.saved) for node in tree.nodes)
    what = "state" if tree.of == "memory" else "cache"
    told = f"{count} node{'s'[: count != 1]}"
    if not any(node.saved or node.lacks for node in tree.nodes):
        return told
    return f"{told}, {saved} {what}{'s'[: saved != 1]}"


def _node(
    texts: Texts,
    node: TreeNode,
    by_number: Mapping[int, TreeNode],
    children: Mapping[int, Sequence[TreeNode]],
) -> Iterator[Row]:
    path = _path(node, by_number)
    own = sum(map(size_of, node.tokens))
    end = node.start + own
    astray = tuple(_astray(texts, node, path))
    follows = [each is not children[each.parent][-1] for each in path]
    passes = [each.start for each, more in zip(path, follows, strict=True) if more]
    mark: Mark = "saved" if node.saved else "lacks" if node.lacks else ""
    branch = Branch(
        start=node.start,
        end=end,
        lines=tuple(follows[:-1]),
        passes=tuple(dict.fromkeys(passes)),
        leads_on=node.number in children,
        last=not follows[-1],
        mark="wrong" if astray else mark,
        window=node.window,
    )
    yield Row(kind="tree", label=_label(node, end), bars=tuple(_bars(texts, node)), branch=branch)
    inside = (*passes, end) if branch.leads_on else passes
    lines = (*follows, branch.leads_on)
    for label, bars in astray:
        hung = replace(
            branch, lines=lines, passes=tuple(dict.fromkeys(inside)), root=True, leads_on=False,
            mark="", window=None, start=0, end=0,
        )  # fmt: skip
        yield Row(kind="tree", label=label, bars=bars, branch=hung)


def _path(node: TreeNode, by_number: Mapping[int, TreeNode]) -> list[TreeNode]:
    found = [node]
    while found[-1].parent != ROOT:
        found.append(by_number[found[-1].parent])
    return found[::-1]


def _label(node: TreeNode, end: int) -> str:
    parent = "the root" if node.parent == ROOT else str(node.parent)
    said = []
    if node.saved:
        said.append(f"{node.saved} after {end} token{'s'[: end != 1]}")
    elif node.lacks:
        said.append(f"no {node.lacks}")
    if node.window is False:
        said.append("window evicted")
    if node.kept != "here":
        said.append("on the host only" if node.kept == "host" else "evicted")
    return f"node {node.number}, under {parent}{': ' if said else ''}{', '.join(said)}"


def _bars(texts: Texts, node: TreeNode) -> Iterator[Bar]:
    start = node.start
    for piece in node.tokens:
        if node.kept == "here":
            yield texts.bar(start, piece)
        else:
            where = "evicted, on the host" if node.kept == "host" else "evicted"
            bar = texts.bar(start, piece, "gone", also=f", {where}")
            yield replace(bar, text=f"{where}: {bar.text}")
        start += size_of(piece)


def _astray(
    texts: Texts, node: TreeNode, path: Sequence[TreeNode]
) -> Iterator[tuple[str, tuple[Bar, ...]]]:
    way = [token for each in path for token in texts.spelled(each.tokens)]
    if node.folded is not None:
        held = texts.spelled(node.folded)
        if held != tuple(way):
            yield "its state has folded in", _wrong_from(texts, node.folded, way)
    for each in node.holds:
        yield f"its {each.place} holds", _wrong_from(texts, each.tokens, way)


def _wrong_from(texts: Texts, pieces: Pieces, way: Sequence[int]) -> tuple[Bar, ...]:
    """Tokens in a row, outlined from the first that is not on the way."""
    held = texts.spelled(pieces)
    right = get_common_prefix(held, way)
    start, bars = 0, []
    for piece in (*cut(pieces, 0, right), *cut(pieces, right, sum(map(size_of, pieces)))):
        bars.append(texts.bar(start, piece, "held" if start < right else "wrong"))
        start += size_of(piece)
    return tuple(bars)
