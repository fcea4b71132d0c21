"""What servers made of a trace: a line for each, what was lost by which cause, and a plot.

A row is what `cachesim replay` and `cachesim sweep` tell of a cell, as plain data.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cachesim.engines.words import counted
from cachesim.report.fitting import FittingTable
from cachesim.report.holdings import holdings_table, sparkline, timeline_of
from cachesim.report.knees import knees
from cachesim.report.upgrades import upgrades, upgrades_page

BAR: Final = 24
"""Columns of a whole bar."""

MOST_ROWS: Final = 60
"""Lines of the table of causes."""

MOST_HELD: Final = 12
"""Servers in the table of bytes."""

MOST_LIMITS: Final = 6
"""Servers of which it is printed what their limits in bytes count."""

Rows = Sequence[Mapping[str, Any]]


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
        for sentence in (*endings(members), *notes(members)):
            parts += [Text(sentence), Text()]
        if any(row["lost"] for row in members if row["profile"] != "bound"):
            parts += [Text("computed before and not reused, by cause"), _losses(members), Text()]
        parts += [*_curves(members), *_upgrades(members), *_holdings(members)]
    return Group(*parts)


def endings(rows: Rows) -> list[str]:
    """A sentence for each server that did not live to the end of the trace."""
    return [
        f"{server_of(row)} ended before the trace did, at {row['ended']}"
        for row in rows
        if row["ended"]
    ]


def notes(rows: Rows) -> list[str]:
    """How the trace was read, then whose bytes each server's limits counted."""
    found = list(dict.fromkeys(note for row in rows for note in row["notes"]))
    limits = [
        f"{server_of(row)}: {row['bytes']['note']}"
        for row in rows
        if row["bytes"] and row["bytes"]["note"]
    ]
    left = len(limits) - MOST_LIMITS
    more = [f"{counted(left, 'server')} more with a limit in bytes, in --format json"]
    return found + limits[:MOST_LIMITS] + (more if left > 0 else [])


def whose_bytes(rows: Rows) -> str:
    """Whose bytes are held, for a heading."""
    given = {row["bytes"]["of"] == "given" for row in rows if row["bytes"]}
    if len(given) > 1:
        return "your model's where its sizes are given, else a small network's"
    return "your model's" if given == {True} else "a small network's"


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
    told = f"{row['trace']}: {counted(row['requests'], 'request')}"
    if row["scale"] != 1:
        told += f", {row['scale']} tokens of the trace as one"
    if row["replies"] is not None:
        told += f", replies of {row['replies']}"
    if row["rank"] is not None:
        told += f", data-parallel rank {row['rank']}"
    if row["turn"]:
        told += f", turns of {row['turn']} ms"
        told += f", timestamps in {row['timestamps']}" if row["timestamps"] else ""
    return told


def settings_of(row: Mapping[str, Any]) -> str:
    """The flags of a row."""
    return ", ".join(f"{name}={value}" for name, value in row["settings"].items())


def _shares(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = FittingTable()
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


def swept(rows: Rows) -> list[str]:
    """The flags that have several numbers as values."""
    values: dict[str, set[float]] = {}
    for row in rows:
        for flag, value in row["settings"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(flag, set()).add(value)
    return [flag for flag, found in values.items() if len(found) > 1]


def lines(rows: Rows, flag: str) -> dict[str, list[tuple[float, float]]]:
    """A line for each server that is alike but for the flag, and one for the bound."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if flag in row["settings"]:
            rest = {name: value for name, value in row["settings"].items() if name != flag}
            server = server_of({**row, "settings": rest})
            found.setdefault(server, []).append((row["settings"][flag], row["rate"]))
    ends = sorted({at for points in found.values() for at, _ in points})
    for row in rows:
        if row["profile"] == "bound":
            found[server_of(row)] = [(ends[0], row["rate"]), (ends[-1], row["rate"])]
    return found


def holding(rows: Rows) -> list[tuple[str, Mapping[str, Any]]]:
    """The rows that hold something at some time, with their names."""
    return [(server_of(row), row) for row in rows if timeline_of(row)[1]]


def server_of(row: Mapping[str, Any]) -> str:
    """A row's server, model and flags."""
    if row["profile"] == "bound":
        return "bound: no cache can reuse more"
    told = f"{row['profile']}, {row['model']}"
    return f"{told}, {settings_of(row)}" if row["settings"] else told


def _curves(rows: Rows) -> Iterator[RenderableType]:
    for flag in swept(rows):
        table = FittingTable()
        table.add_column("server", overflow="fold")
        table.add_column("share", no_wrap=True)
        table.add_column("knees", overflow="fold")
        drawn = {name: sorted(points) for name, points in lines(rows, flag).items()}
        top = max(share for points in drawn.values() for _, share in points)
        for server, points in drawn.items():
            bends = "; ".join(knee.sentence for knee in knees(points))
            table.add_row(server, sparkline([share for _, share in points], top), bends)
        yield from (Text(f"share over {flag}"), table, Text())


def _upgrades(rows: Rows) -> Iterator[RenderableType]:
    found = upgrades(rows)
    if found:
        yield from (Text("difference between releases"), upgrades_page(found), Text())


def _holdings(rows: Rows) -> Iterator[RenderableType]:
    shown = holding(rows)
    if shown:
        yield from (
            Text(f"bytes held, by kind ({whose_bytes(rows)})"),
            holdings_table(shown[:MOST_HELD]),
        )
        if len(shown) > MOST_HELD:
            yield Text(f"{len(shown) - MOST_HELD} servers more, in --format json")
        yield Text()


def causes_in(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The causes of these rows, the largest first."""
    totals: dict[str, int] = {}
    for row in rows:
        for cause, count in row["lost"].items():
            totals[cause] = totals.get(cause, 0) + abs(count)
    return sorted(totals, key=lambda cause: (-totals[cause], cause))


def _losses(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each server: its causes, the largest first; a restored checkpoint gives back."""
    table = FittingTable()
    table.add_column("server", overflow="fold", ratio=2)
    table.add_column("tokens", overflow="fold", ratio=3)
    for row in rows[:MOST_ROWS]:
        if row["profile"] != "bound":
            told = (f"{count:,} {cause}" for cause, count in row["lost"].items() if count)
            table.add_row(server_of(row), ", ".join(told))
    if len(rows) > MOST_ROWS:
        table.add_row(f"{len(rows) - MOST_ROWS} more", "in --format json, --csv and --report")
    return table
