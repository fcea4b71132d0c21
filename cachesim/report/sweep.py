"""What servers made of a trace: a line for each, what was lost by which cause, and a plot.

A row is what `cachesim replay` and `cachesim sweep` tell of a cell, as plain data.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

BAR: Final = 24
"""Columns of a whole bar."""

MOST_ROWS: Final = 60
"""Lines of the table of causes."""


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Flat rows as a table; where one has no such flag or cause the cell is empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    written = io.StringIO()
    table = csv.DictWriter(written, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return written.getvalue()


def sweep_page(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One table for each trace and model, and what was lost by cause."""
    parts: list[RenderableType] = []
    for title, members in by_trace(rows):
        parts += [Text(title, style="name"), Text(), _shares(members), Text()]
        if any(row["lost"] for row in members):
            parts += [Text("computed before and not reused, by cause"), _losses(members), Text()]
    return Group(*parts)


def by_trace(
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """The rows that may be compared: one trace, as much of it, at one scale."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(title_of(row), []).append(row)
    yield from groups.items()


def title_of(row: Mapping[str, Any]) -> str:
    """What was played, in words."""
    told = f"{row['trace']}: {row['requests']:,} requests"
    if row["scale"] != 1:
        told += f", {row['scale']} tokens of the trace as one"
    if row["replies"] is not None:
        told += f", replies of {row['replies']}"
    if row["turn"]:
        told += f", turns of {row['turn']} ms"
    return told


def settings_of(row: Mapping[str, Any]) -> str:
    """The flags of a row."""
    return ", ".join(f"{name}={value}" for name, value in row["settings"].items())


def _shares(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("server", overflow="fold")
    for head in ("tokens", "reused", "share"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    refused = any(row["refused"] for row in rows)
    if refused:
        table.add_column("refused", justify="right")
    for row in rows:
        cells = [
            server_of(row),
            f"{row['prompt_tokens']:,}",
            f"{row['cached']:,}",
            f"{row['rate']:.4f}",
            "█" * round(BAR * row["rate"]),
        ]
        table.add_row(*cells, *([f"{row['refused']:,}"] if refused else []))
    return table


def server_of(row: Mapping[str, Any]) -> str:
    """A row's server, model and flags."""
    if row["profile"] == "bound":
        return "bound: no cache can reuse more"
    told = f"{row['profile']}, {row['model']}"
    return f"{told}, {settings_of(row)}" if row["settings"] else told


def causes_in(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The causes of these rows, the largest first."""
    totals: dict[str, int] = {}
    for row in rows:
        for cause, count in row["lost"].items():
            totals[cause] = totals.get(cause, 0) + abs(count)
    return sorted(totals, key=lambda cause: (-totals[cause], cause))


def _losses(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each server: its causes, the largest first; a restored checkpoint gives back."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("server", overflow="fold", ratio=2)
    table.add_column("tokens", overflow="fold", ratio=3)
    for row in rows[:MOST_ROWS]:
        if row["profile"] != "bound":
            told = (f"{count:,} {cause}" for cause, count in row["lost"].items() if count)
            table.add_row(server_of(row), ", ".join(told))
    if len(rows) > MOST_ROWS:
        table.add_row(f"{len(rows) - MOST_ROWS} more", "in --format json, --csv and --report")
    return table
