"""Fleets in a report: what their replicas held, and how evenly they worked."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cachesim.report.document import FittingTable, Heading


def fleet_report(
    rows: Sequence[Mapping[str, Any]], name_of: Callable[[Mapping[str, Any]], str]
) -> Iterator[RenderableType]:
    """A line for each fleet; nothing without any."""
    by_server: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if "fleet" in row:
            by_server.setdefault(name_of(row).partition(", router ")[0], []).append(row)
    if not by_server:
        return
    yield Heading("fleets: what other replicas held when the router chose", level=3)
    for server, members in by_server.items():
        table = FittingTable()
        table.add_column(server, overflow="fold", ratio=1)
        for head in ("reused", "held elsewhere", "best choice", "busiest", "shares"):
            table.add_column(head, justify="right", no_wrap=True)
        for row in members:
            fleet = row["fleet"]
            rates = [each["rate"] for each in fleet["by_replica"] if each["requests"]]
            table.add_row(
                fleet["router"],
                f"{row['cached']:,}",
                _count(fleet["elsewhere"]),
                _count(fleet["best"]),
                f"{fleet['spread']:.2f}",
                f"{min(rates):.3f} to {max(rates):.3f}" if rates else "",
            )
        yield table
        yield Text()
    yield Text(
        "held elsewhere: tokens computed again though another replica held them. best choice: "
        "tokens reused if each request had gone to the replica that held most of it. busiest: "
        "tokens computed by the busiest replica, over the mean. shares: of the prompts' tokens "
        "that a replica reused, from the lowest to the highest."
    )
    yield Text()


def _count(number: int | None) -> str:
    return "not known" if number is None else f"{number:,}"
