"""A cell of a sweep or comparison, on one server or on a fleet."""

from collections.abc import Callable
from typing import Any

from cachesim.lab.traces import replay
from cachesim.lab.traces.fleet.serving import check_fleet, play_fleet
from cachesim.lab.traces.replay import Cell


def check(cell: Cell) -> None:
    """Raise for anything invalid, before the replay."""
    cell.check()
    check_fleet(cell)


def play(cell: Cell, progress: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
    """Replay a cell; `progress` is called with the number of finished requests."""
    return replay.play(cell, progress) if cell.fleet is None else play_fleet(cell, progress)
