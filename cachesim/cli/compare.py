"""`cachesim compare`: one workload, all engines, one table."""

import re
from pathlib import Path
from typing import Final, Literal

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.outputs import output_at, page_at, print_report, write, write_page
from cachesim.errors import ScenarioError
from cachesim.files import PLOT
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.comparing import Row, compare, newest, policies, rows_in
from cachesim.report.compared import comparison, plot
from cachesim.scenario.shipped import load_all

NEXT_FLAG: Final = re.compile(r",(?=\s*-*[A-Za-z][\w-]*\s*=)")
"""A comma before the name of a flag; values may have commas of their own."""


def compare_command(
    workload: str,
    *,
    rows: str = "engines",
    settings: tuple[str, ...] = (),
    arithmetic: ArithmeticName = "ring",
    output: Literal["text", "json"] = "text",
    picture: Path | None = None,
    report: Path | None = None,
) -> int:
    """Play the workload on every row; 1 if any answer was wrong."""
    file, page = output_at(picture, "--plot", PLOT), page_at(report)
    loaded = load_all([workload])
    if len(loaded) != 1:
        msg = f"{workload} is {len(loaded)} scenarios: name one"
        raise ScenarioError(msg)
    [(_, scenario)] = loaded
    chosen = rows_of(rows, settings)
    found = list(compare(scenario, chosen, arithmetic=arithmetic))
    if file is not None:
        write(file, plot(scenario.name, found))
    parts = comparison(scenario.name, found)
    write_page(page, f"cachesim compare {scenario.name}", parts)
    values = {"format": 1, "workload": scenario.name, "rows": [each.as_dict() for each in found]}
    print_report(parts, values, format=output, indent=2)
    return NOT_AS_EXPECTED if any(each.wrong for each in found) else AS_EXPECTED


def rows_of(rows: str, settings: tuple[str, ...]) -> tuple[Row, ...]:
    """The rows that were asked for, and one more for each `PROFILE,flag=value,...`."""
    more = tuple(map(row_of, settings))
    if rows == "policies":
        return (*policies(), *more)
    if rows in {"engines", "releases"}:
        return (*newest(releases=rows == "releases"), *more)
    return (*rows_in(Path(rows)), *more)


def row_of(text: str) -> Row:
    """Read a row as users write it: `sglang@0.5.23,page_size=16`."""
    from cachesim.cli.jobs import setting

    profile, *flags = NEXT_FLAG.split(text)
    return Row(name=text, profile=profile, options=dict(map(setting, flags)))
