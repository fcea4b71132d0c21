"""Pictures of a run for the page: each row drawn once, to be put below each other by a script."""

from dataclasses import asdict
from typing import Any

from cachesim.report.chain import chain
from cachesim.report.picture import positions_of
from cachesim.report.picture_rows import held, request
from cachesim.report.svg import AXIS, axis_svg, row_svg
from cachesim.report.svg_tree import LINE
from cachesim.scenario.result import Run


def drawn(run: Run) -> dict[str, Any]:
    """The rows of every request and of every state, and the walk to what went wrong.

    A row is a list of one text: so equal rows are written once.
    """
    wide = positions_of(run)
    states = () if run.detail is None else run.detail.states
    return {
        "line": LINE,
        "foot": AXIS,
        "axis": axis_svg(wide),
        "requests": [
            [[row_svg(row, wide, "")] for row in request(run, index)]
            for index in range(len(run.steps))
        ],
        "states": [[[row_svg(row, wide, "")] for row in held(run, state)] for state in states],
        "chains": [[asdict(link) for link in chain(run, index)] for index in range(len(run.steps))],
    }
