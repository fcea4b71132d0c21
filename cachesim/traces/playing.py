"""A cell of a sweep or comparison: one server, a fleet, or a policy that keeps states."""

from collections.abc import Callable
from typing import Any

from cachesim.traces import replay
from cachesim.traces.fleet.serving import check_fleet, play_fleet
from cachesim.traces.replay import Cell, Seams
from cachesim.traces.retention import check_policy, is_policy, play_policy


def check(cell: Cell) -> None:
    """Raise for anything invalid, before the replay."""
    if is_policy(cell):
        check_policy(cell)
        return
    cell.check()
    check_fleet(cell)


def play(
    cell: Cell, progress: Callable[[int], None] = lambda _: None, seams: Seams | None = None
) -> dict[str, Any]:
    """Replay a cell; `progress` is called with the number of finished requests."""
    if is_policy(cell):
        return play_policy(cell, progress)
    return (replay.play if cell.fleet is None else play_fleet)(cell, progress, seams)
