"""What servers hold by kind, in bytes, while a trace is played."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from cachesim.report.document import FittingTable

KINDS: Final = {
    "attention": "attention, in use or cached",
    "window": "windows, in use or cached",
    "states": "recurrent states, live or cached",
    "checkpoints": "checkpoints of slots",
    "parked": "parked conversations",
}
"""The kinds in the order in which they are drawn, and what they are."""

LEVELS: Final = "▁▂▃▄▅▆▇█"
UNITS: Final = ("bytes", "KiB", "MiB", "GiB")


def timeline_of(row: Mapping[str, Any]) -> tuple[list[int], dict[str, list[int]]]:
    """After how many requests, and the bytes of each kind that a row held at some time."""
    held = row["held"]
    return held["requests"], {kind: held[kind] for kind in KINDS if kind in held}


def in_words(size: float) -> str:
    """`1.2 MiB`."""
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} {UNITS[0]}" if unit == 0 else f"{size:,.1f} {UNITS[unit]}"


def sparkline(numbers: Sequence[float], most: float | None = None) -> str:
    """A character for each number, from nothing to the most."""
    top = max(numbers, default=0) if most is None else most
    if not top:
        return LEVELS[0] * len(numbers)
    return "".join(LEVELS[min(7, int(8 * number / top))] for number in numbers)


def holdings_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """For each server its kinds over the requests; the highest of a server reaches the top."""
    table = FittingTable()
    table.add_column("server", overflow="fold")
    table.add_column("kind", no_wrap=True)
    table.add_column("over the requests", no_wrap=True)
    table.add_column("at most", justify="right", no_wrap=True)
    for name, row in rows:
        for at, cells in enumerate(_lines(row)):
            table.add_row("" if at else name, *cells)
    return table


def _lines(row: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    _, columns = timeline_of(row)
    top = max((max(column) for column in columns.values()), default=0)
    for kind, column in columns.items():
        yield kind, sparkline(_some(column), top), in_words(max(column))


def _some(column: Sequence[int]) -> Sequence[int]:
    if len(column) <= 20:
        return column
    return [column[(len(column) - 1) * (at + 1) // 20] for at in range(20)]
