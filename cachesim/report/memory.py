"""What memory holds after a step, and whose: cells part by part, and recurrent rows."""

from collections.abc import Iterator, Sequence

from cachesim.scenario.provenance import Piece, size_of
from cachesim.scenario.result import Run
from cachesim.scenario.states import CellPart


def memory_facts(run: Run, index: int) -> Iterator[tuple[str, str]]:
    """Cells and rows with the steps whose tokens they have seen; nothing without details."""
    detail = run.steps[index].detail
    if run.detail is None or detail is None or not detail.at:
        return
    memory = run.detail.states[detail.at[-1]].memory
    for part in memory.cells:
        yield "cells", f"{part.part}: {_cells(run, part)}"
    for row in memory.rows:
        if row.position >= 0:
            whose = f": {owners(run, row.tokens)}" if row.tokens else ""
            yield f"row {row.row}", f"stands at {row.position}{whose}"


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
