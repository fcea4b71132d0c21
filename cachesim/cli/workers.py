"""Scenarios in parallel: one process per processor, results in order."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from multiprocessing import active_children
from typing import Any, Final, TypeAlias

from cachesim.errors import InputError
from cachesim.processes import pool_of

Do: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]

MOST_JOBS: Final = 256

NO_DASHBOARD: Final[Mapping[str, Any]] = {
    "dashboard_address": None,
    "scheduler_kwargs": {"dashboard_address": ":0"},
}
"""No dashboard and no fixed port for a local cluster."""

ANSWERS_WITHIN: Final = 10
"""Seconds until a scheduler has to answer."""

ALONE: Final = 6
"""Most tasks for which one process is faster than several."""


@contextmanager
def workers(tasks: int, wanted: int | None = None) -> Iterator[Do]:
    """A map function, in this process or in several."""
    count = how_many(tasks, wanted)
    if count == 1:
        yield map
        return
    with processes(count) as pool:
        yield pool.map


def how_many(tasks: int, wanted: int | None = None) -> int:
    """Number of processes for a number of tasks."""
    if wanted is None and tasks <= ALONE:
        return 1
    return max(1, min(wanted or processors(), tasks))


@contextmanager
def processes(count: int) -> Iterator[Executor]:
    """A pool of local processes; an interrupt does not wait for them.

    They begin at once: who shows a bar has a thread, and a process with threads does not fork well.
    """
    pool = pool_of(count, _end_silently_when_interrupted)
    try:
        pool.submit(int).result()
        yield pool
    except Exception:
        for each in active_children():  # their results are no longer needed
            each.terminate()
        pool.shutdown(cancel_futures=True)  # without waiting, Python's own exit may print a trace
        raise
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def cluster(where: str) -> Iterator[Executor]:
    """The workers of a Dask scheduler at an address, or local ones."""
    with crew(where) as (executor, _):
        yield executor


@contextmanager
def crew(where: str) -> Iterator[tuple[Executor, int]]:
    """The map function and the number of tasks that it runs at once.

    Whoever has lost a worker gets its tasks from another one. All must run this very code: what
    they find is kept as if it had been found here.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        msg = "--dask needs distributed, which is not installed here: pip install 'cachesim[dask]'"
        raise InputError(msg) from None
    from cachesim.lab.traces.sweep import engines_digest, everything_digest

    own = int(where) if where.isdigit() else 0
    if where.isdigit() and not 1 <= own <= MOST_JOBS:
        msg = f"--dask is {where}; write a number of workers from 1 to {MOST_JOBS}, or an address"
        raise InputError(msg)
    with ExitStack() as opened:
        address: Any = where
        if own:
            address = opened.enter_context(
                LocalCluster(n_workers=own, threads_per_worker=1, **NO_DASHBOARD)
            )
        try:
            client = opened.enter_context(Client(address, timeout=ANSWERS_WITHIN))
        except (OSError, ValueError) as error:
            msg = f"--dask {where}: there is no scheduler: {error}"
            raise InputError(msg) from None
        for what, digest in {
            "cachesim": everything_digest,
            "the installed engines": engines_digest,
        }.items():
            own_code, theirs = digest(), client.run(digest)
            strangers = [name for name, code in theirs.items() if code != own_code]
            if strangers:
                msg = f"--dask {where}: other code of {what} on {', '.join(strangers)}"
                raise InputError(msg)
        yield client.get_executor(), max(1, sum(client.nthreads().values()))


def processes_wanted(jobs: int | None) -> int | None:
    """Value of `--jobs`, checked."""
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        msg = f"--jobs is {jobs}; write a whole number from 1 to {MOST_JOBS}"
        raise InputError(msg)
    return jobs


def processors() -> int:
    """Number of processors available to this process."""
    able: Sequence[int] | set[int] = range(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        able = os.sched_getaffinity(0)
    return len(able)


def _end_silently_when_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
