"""All cells of a plan, replayed by processes or machines.

A cell knows nothing of the others, so it may be played anywhere, at any time, and more than once:
its result is the same. Results are stored as they arrive and reported in the order of the plan. A
process that dies loses nothing: its unfinished cells are played again by others.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from cachesim.errors import InputError
from cachesim.lab.traces.plan import plan_of, read_plan
from cachesim.lab.traces.replay import Cell, play, row_of
from cachesim.lab.traces.request import TraceError
from cachesim.lab.traces.store import Store, key_of, open_store

Workers: TypeAlias = Callable[[], AbstractContextManager[Executor]]
"""Context of the workers: processes of this machine, or a cluster."""

ATTEMPTS: Final = 3
"""Most attempts for a cell that ends its process."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A cell that could not be replayed, with the reason."""

    complaint: str
    of_trace: bool = False  # wrong for every cell that plays it


def attempt(cell: Cell) -> dict[str, Any] | Failed:
    """Replay a cell; invalid input is returned as a value, since workers may be remote."""
    try:
        return play(cell)
    except InputError as error:
        return Failed(str(error), of_trace=isinstance(error, TraceError))


def sweep(
    plan: Mapping[str, Any] | str | Path,
    *,
    store: str | Path | None = None,
    processes: int = 1,
) -> list[dict[str, Any]]:
    """Replay a plan (a file or a mapping): a flat row for each cell.

    `pandas.DataFrame(cachesim.sweep("plan.toml"))` is one. With a `store` what was played before
    with the same code is not played again.
    """
    read = plan_of(plan) if isinstance(plan, Mapping) else read_plan(Path(plan))
    path = None if store is None else Path(store)
    with open_store(path) as known:
        outcomes = play_cells(read.cells, known, lambda: ProcessPoolExecutor(processes))
    return [flat(row_of(*each)) for each in zip(read.cells, outcomes, strict=True)]


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without nested tables: each flag, cause and kind becomes a column.

    Of what is held over time, what there was of each kind at most.
    """
    tables = {"settings", "lost", "held", "bytes", "notes"}
    plain = {name: value for name, value in row.items() if name not in tables}
    flags = {f"set.{name}": value for name, value in row["settings"].items()}
    lost = {f"lost.{name}": count for name, count in row["lost"].items()}
    kinds = {name: column for name, column in row["held"].items() if name != "requests"}
    most = {f"held.{name}": max(kinds[name]) for name in kinds}
    sizes = row["bytes"] or {}
    bytes_ = {f"bytes.{name}": value for name, value in sizes.items() if name != "limits"}
    return plain | flags | lost | most | bytes_ | {"notes": "; ".join(row["notes"])}


def play_cells(
    cells: Sequence[Cell],
    store: Store,
    workers: Workers,
    progress: Callable[[int], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Results of cells in order; `progress` is called with the number done."""
    digests = {
        name: source.digest() for name, source in {c.source.name: c.source for c in cells}.items()
    }
    keys = [key_of(cell, digests[cell.source.name]) for cell in cells]
    waiting = {key: cell for key, cell in zip(keys, cells, strict=True) if store.get(key) is None}
    progress(len(set(keys)) - len(waiting))
    for left in reversed(range(ATTEMPTS)):
        if not waiting:
            break
        try:
            _play_all(waiting, store, workers, lambda: progress(len(set(keys)) - len(waiting)))
        except BrokenProcessPool:
            if not left:
                names = ", ".join(sorted({cell.profile for cell in waiting.values()}))
                msg = f"the processes that played {names} were ended {ATTEMPTS} times"
                raise InputError(msg) from None
    return [outcome for key in keys if (outcome := store.get(key)) is not None]


def _play_all(
    waiting: dict[str, Cell], store: Store, workers: Workers, progress: Callable[[], None]
) -> None:
    """Replay pending cells; each result is stored at once."""
    with workers() as pool:
        played = {pool.submit(attempt, cell): key for key, cell in waiting.items()}
        for future in as_completed(played):
            key, outcome = played.pop(future), future.result()  # a cluster need not keep it
            if isinstance(outcome, Failed):
                cell = waiting[key]
                where = f"{cell.source.name} on {cell.profile}, {cell.model}: "
                msg = outcome.complaint if outcome.of_trace else f"{where}{outcome.complaint}"
                raise InputError(msg)
            store.put(key, waiting.pop(key), outcome)
            progress()


def default_store(plan: Path) -> Path:
    """The store's default path, beside the plan."""
    return plan.with_suffix(".results")
