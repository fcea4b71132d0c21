"""What memory holds after a step, and whose: cells part by part, recurrent rows, or the tree."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from cachesim.report.picture_bars import Texts
from cachesim.report.picture_tree import tree_rows
from cachesim.scenario.provenance import Piece, size_of
from cachesim.scenario.result import Run
from cachesim.scenario.states import CellPart, TreeState

UNDER: Final = re.compile(r", under (the root|\d+)")


def memory_facts(run: Run, index: int) -> Iterator[tuple[str, str]]:
    """Cells and rows with the steps whose tokens they have seen; nothing without details."""
    detail = run.steps[index].detail
    if run.detail is None or detail is None or not detail.at:
        return
    state = run.detail.states[detail.at[-1]]
    memory = state.memory
    for part in memory.cells:
        yield "cells", f"{part.part}: {_cells(run, part)}"
    if state.tree is not None and state.tree.nodes:
        yield "tree", "\n".join(_tree(run, state.tree))
    for row in memory.rows if state.tree is None else ():
        if row.position >= 0:
            whose = f", folded from {owners(run, row.tokens)}" if row.tokens else ""
            yield f"row {row.row}", f"state at position {row.position}{whose}"


def _tree(run: Run, tree: TreeState) -> Iterator[str]:
    """A line for each node under its parent, and whose tokens are its own."""
    for row in tree_rows(Texts(run), tree):
        pieces: list[Piece] = [
            {"tokens": bar.tokens} if bar.step is None else {"step": bar.step, "count": size}
            for bar in row.bars
            for size in [bar.end - bar.start]
        ]
        label = UNDER.sub("", row.label)  # the lines say it
        line = label if row.branch is None else f"{row.branch.stem}{label}"
        joint = " " if row.branch is not None and row.branch.root else "; "
        yield f"{line}{joint}{owners(run, pieces)}" if pieces else line


def _cells(run: Run, part: CellPart) -> str:
    held = [each.holds for each in part.runs if each.holds]
    used = sum(each.count for each in part.runs)
    if not used:
        return f"none of {part.size}"
    return f"{used} of {part.size}: {owners(run, held)}"


def owners(run: Run, pieces: Sequence[Piece]) -> str:
    """`1 token of A, 46 of C`, in the order of positions; neighbours of one step together."""
    counts: list[tuple[str, int]] = []
    for piece in pieces:
        whose = f"of {run.steps[piece['step']].name}" if "step" in piece else "astray"
        before = counts.pop() if counts and counts[-1][0] == whose else (whose, 0)
        counts.append((whose, before[1] + size_of(piece)))
    return ", ".join(
        f"{count}{' token' + 's'[: count != 1] if number == 0 else ''} {whose}"
        for number, (whose, count) in enumerate(counts)
    )
