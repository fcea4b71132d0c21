"""One workload on several engines: what each reused, request by request, and what it cost."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cachesim.report.fitting import FittingTable
from cachesim.scenario.comparing import Compared

WIDE: Final = 9
"""Up to so many requests, each has a column of its own."""

BAR: Final = 14
"""Characters of a bar that reaches the bound."""

LOSSES: Final = 2
"""Causes that are named in a row."""


def comparison(title: str, rows: Sequence[Compared]) -> RenderableType:
    """What was reused, then what of the rest went to which cause."""
    steps = max((len(row.cached) for row in rows), default=0)
    labels = [Text(f"wrong answers of {row.name}: {row.evidence}") for row in rows if row.evidence]
    return Group(_reused(title, rows, steps if steps <= WIDE else 0), _account(rows), *labels)


def _table(title: str = "") -> Table:
    table = FittingTable(title=title or None, title_style="", pad_edge=True)
    table.add_column("policy", overflow="fold", ratio=None)
    return table


def _reused(title: str, rows: Sequence[Compared], steps: int) -> Table:
    """Tokens reused of each request, and in all, with a bar up to the bound."""
    table = _table(f"{title}: tokens reused of each request")
    most = max((row.reused for row in rows), default=0)
    for number in range(1, steps + 1):
        table.add_column(str(number), justify="right", no_wrap=True)
    table.add_column("sum", justify="right", no_wrap=True)
    if not steps:
        table.add_column("share", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
    for row in rows:
        if row.problem:
            continue
        counts = [Text("-" if each is None else str(each)) for each in row.cached] if steps else []
        cells = [Text(row.name), *counts, Text(f"{row.reused:,}", style="bold")]
        if not steps:
            cells += [Text(f"{row.reused / (row.asked or 1):.1%}"), _bar(row, most)]
        table.add_row(*cells)
    return table


def _bar(row: Compared, most: int) -> Text:
    return Text("█" * round(BAR * row.reused / most) if most else "")


def _account(rows: Sequence[Compared]) -> Table:
    """Wrong answers, bytes held, and where the tokens went that were not reused."""
    table = _table()
    most = max((row.reused for row in rows), default=0)
    table.add_column("against the bound", no_wrap=True)
    table.add_column("wrong", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("lost to", overflow="fold")
    for row in rows:
        wrong = "" if row.wrong is None else str(row.wrong)
        size = "" if row.bytes is None else f"{row.bytes:,}"
        told = row.problem or _lost_to(row)
        cells = (_bar(row, most), Text(wrong, style="wrong" if row.wrong else ""), Text(size))
        table.add_row(Text(row.name), *cells, Text(told, style="quiet" if row.problem else "lost"))
    return table


def _lost_to(row: Compared) -> str:
    causes = sorted(row.lost.items(), key=lambda each: -each[1])
    named = [f"{cause} {count:,}" for cause, count in causes]
    more = len(named) - LOSSES
    return ", ".join(named[:LOSSES]) + (f" and {more} more" if more > 0 else "")
