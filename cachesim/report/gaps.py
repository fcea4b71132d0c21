"""Policies that keep states, beside the bound for the same bytes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from cachesim.report.document import FittingTable, Heading

BOUND: Final = "keep:bound"


def gaps(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int | str, float]]:
    """For each policy and memory, the points of the share that the bound has more."""
    best = {_place(row): row["rate"] for row in rows if row["profile"] == BOUND}
    found: dict[str, dict[int | str, float]] = {}
    for row in rows:
        if row["profile"].startswith("keep:") and row["profile"] != BOUND and _place(row) in best:
            rest = {name: value for name, value in row["settings"].items() if name != "memory"}
            flags = "".join(f", {name}={value}" for name, value in rest.items())
            name = f"{row['profile']}, {row['model']}{flags}"
            gap = 100 * (best[_place(row)] - row["rate"])
            found.setdefault(name, {})[row["settings"]["memory"]] = gap
    return found


def _place(row: Mapping[str, Any]) -> tuple[str, object]:
    return row["model"], row["settings"].get("memory")


def gaps_report(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """A line for each policy, a column for each memory; nothing without the bound."""
    found = gaps(rows)
    if not found:
        return
    yield Heading("policies: points of the share below the bound for the same bytes", level=3)
    table = FittingTable()
    table.add_column("policy", overflow="fold", ratio=1)
    sizes = list(dict.fromkeys(size for each in found.values() for size in each))
    for size in sizes:
        table.add_column(_text(size), justify="right", no_wrap=True)
    for name, each in found.items():
        table.add_row(name, *(f"{each[size]:.1f}" if size in each else "" for size in sizes))
    yield table
    yield Text()


def _text(size: int | str) -> str:
    return size if isinstance(size, str) else f"{size / 10**9:,g} GB"
