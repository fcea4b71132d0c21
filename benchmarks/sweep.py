"""A sweep of 200 cells: by one process, two, a Dask cluster of two; killed, interrupted, resumed.

Each way begins with an empty store. The digest is that of the whole table as CSV: where two are
alike, so is every byte. A worker is killed, or the sweep interrupted, when half of the cells are
kept. Wall-clock time; the Dask cluster's start is in it.
"""

import hashlib
import importlib
import importlib.util
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from cachesim.cli.jobs import cluster, processes
from cachesim.report.sweep import as_csv
from cachesim.traces.plan import plan_of
from cachesim.traces.replay import Cell, row_of
from cachesim.traces.sweep import Workers, flat, open_store, play_cells

if TYPE_CHECKING:
    from distributed import Client

REQUESTS: Final = 300
PLAN: Final[dict[str, Any]] = {
    "format": 1,
    "trace": [{"made": REQUESTS, "seed": [0, 1, 2, 3, 4], "scale": 32}],
    "server": [
        {
            "profile": ["vllm@0.30.0", "vllm@0.33.0"],
            "model": ["dense", "hybrid"],
            "set": {"num_gpu_blocks_override": [250, 500, 1000, 2000, 4000]},
        },
        {
            "profile": ["sglang@0.5.9", "sglang@0.5.23"],
            "model": "dense",
            "set": {"page_size": 16, "max_total_tokens": [4000, 8000, 16000, 32000, 64000]},
        },
        {
            "profile": ["llama.cpp@b9538", "llama.cpp@b11549"],
            "model": "dense",
            "set": {"cache_ram": [1, 2, 4, 8, 16]},
        },
    ],
}


@dataclass
class Way:
    """One way to run the plan, and its result."""

    name: str
    hands: Workers
    at_half: Callable[[], None] = lambda: None
    given: int = 0  # cells that were handed to somebody
    seconds: float = 0.0
    digest: str = ""
    done: bool = field(default=False, init=False)

    def play(self, cells: tuple[Cell, ...], store: Path | None) -> None:
        """Play it, and hold on to time and digest."""
        begun, half = time.perf_counter(), len(cells) // 2

        def hear(count: int) -> None:
            if count >= half and not self.done:
                self.done = True
                self.at_half()

        with open_store(store) as known:
            outcomes = play_cells(cells, known, self._counted, hear)
        rows = [flat(row_of(*each)) for each in zip(cells, outcomes, strict=True)]
        self.digest = hashlib.sha256(as_csv(rows).encode()).hexdigest()
        self.seconds = time.perf_counter() - begun

    @contextmanager
    def _counted(self) -> Iterator[Executor]:
        with self.hands() as pool:
            yield _Counted(pool, self)


class _Counted(Executor):
    """Hands tasks on and counts them."""

    def __init__(self, pool: Executor, way: Way) -> None:
        self._pool, self._way = pool, way

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self._way.given += 1
        return self._pool.submit(fn, *args, **kwargs)


def _kill_own() -> None:
    """End a process of this one as the system would for want of memory."""
    pid = multiprocessing.active_children()[0].pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


def _kill_far(client: "Client") -> None:
    """End a worker of a cluster."""
    workers = client.cluster.workers.values()
    pids = client.run(os.getpid, workers=[next(iter(workers)).worker_address])
    os.kill(next(iter(pids.values())), signal.SIGKILL)


def _interrupt() -> None:
    raise KeyboardInterrupt


def ways(folder: Path, cells: tuple[Cell, ...]) -> Iterator[Way]:
    """Every way, played."""
    one = Way("1 process", lambda: processes(1))
    two = Way("2 processes", lambda: processes(2))
    far = Way("Dask, 2 workers", lambda: cluster("2"))
    killed = Way("2 processes, one killed", lambda: processes(2), _kill_own)
    for way in (one, two, far, killed):
        way.play(cells, None)
        yield way
    dask = importlib.import_module("distributed")
    with (
        dask.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as own,
        dask.Client(own) as client,
    ):
        address = own.scheduler_address
        way = Way("Dask, a worker killed", lambda: cluster(address), lambda: _kill_far(client))
        way.play(cells, None)
        yield way
    stopped = Way("2 processes, interrupted", lambda: processes(2), _interrupt)
    with suppress(KeyboardInterrupt):
        stopped.play(cells, folder / "store")
    with open_store(folder / "store") as known:
        kept = len(known)
    stopped.digest = f"{kept} cells kept"
    yield stopped
    resumed = Way("  and resumed", lambda: processes(2))
    resumed.play(cells, folder / "store")
    if resumed.given + kept != len(cells):
        msg = f"{kept} cells were kept, and {resumed.given} of {len(cells)} played again"
        raise AssertionError(msg)
    yield resumed


def run(out: Console) -> None:
    """A line for each way."""
    if importlib.util.find_spec("distributed") is None:
        out.print("sweep: not measured, distributed is missing: pip install 'cachesim[dask]'")
        return
    cells = plan_of(PLAN)
    table = Table(title=f"{len(cells)} cells of {REQUESTS} requests", title_style="")
    table.add_column("way")
    for head in ("seconds", "times as fast", "cells handed out", "digest of the table"):
        table.add_column(head, justify="right")
    first = 0.0
    with TemporaryDirectory() as folder:
        for way in ways(Path(folder), cells):
            first = first or way.seconds
            whole = way.seconds > 0 and not way.name.startswith("  ")
            table.add_row(
                way.name,
                f"{way.seconds:.1f}" if way.seconds else "",
                f"{first / way.seconds:.2f}" if whole else "",
                f"{way.given}",
                way.digest[:16],
            )
    out.print(table)


if __name__ == "__main__":
    run(Console(width=120, highlight=False))
