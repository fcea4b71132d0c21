"""Jobs of a command: scenarios on profiles, validated before the first run; run in parallel."""

import os
import re
import signal
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from logging import CRITICAL
from multiprocessing import active_children
from typing import Any, Final, TypeAlias

from rich.text import Text

from cachesim.engines.family import Profile
from cachesim.errors import InputError, ScenarioError
from cachesim.model.spec import LARGEST
from cachesim.processes import pool_of
from cachesim.report.consoles import notes, show
from cachesim.scenario import Scenario, full_profile
from cachesim.scenario.checks import chosen_profiles, misfits
from cachesim.scenario.shipped import load_all
from cachesim.typed import check_whole

WORD: Final = re.compile(r"""[^\s"'\[\]{}#=]+""")
"""A string that needs no quotes: a name, a path, names separated by commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A scenario on one profile."""

    source: str
    scenario: Scenario
    profile: Profile
    changed: bool = False  # by a seed or flags of the command: no file holds it so


def jobs_of(
    names: Sequence[str],
    profiles: Sequence[str],
    seed: int | None,
    settings: Mapping[str, Any] | None = None,
) -> list[Job]:
    """The requested jobs in order; all are validated before the first run.

    One scenario is run on every named profile. Several are each run on the profiles of
    their engine that have their options; skipped profiles are reported.
    """
    if not names:
        msg = "name a scenario to run: a file, a folder, `-`, or one that `cachesim list` names"
        raise InputError(msg)
    return jobs_for(load_all(names), profiles, seed, settings)


def jobs_for(
    scenarios: Sequence[tuple[str, Scenario]],
    profiles: Sequence[str],
    seed: int | None,
    settings: Mapping[str, Any] | None = None,
) -> list[Job]:
    """The jobs of scenarios that were read, each with its origin."""
    loaded = [(source, changed(scenario, seed, settings or {})) for source, scenario in scenarios]
    if len(loaded) == 1 or not profiles:
        jobs = _requested(loaded, profiles, changed=bool(profiles or settings))
    else:
        jobs = _fitting(loaded, profiles)
    if seed is None and not settings:
        return jobs
    return [replace(job, changed=True) for job in jobs]


def only_source(name: str, use: str) -> tuple[str, Scenario]:
    """The scenario of that name with its origin; an error where a folder holds several."""
    loaded = load_all([name])
    if len(loaded) > 1:
        raise InputError(f"{name}: {use} takes one scenario, and these are {len(loaded)}")
    return loaded[0]


def only_scenario(name: str, use: str) -> Scenario:
    """The scenario of that name; an error where a folder holds several."""
    return only_source(name, use)[1]


def changed(scenario: Scenario, seed: int | None, settings: Mapping[str, Any]) -> Scenario:
    """The scenario with another seed and other flags; expectations hold for the original flags
    only.
    """
    if seed is not None:
        check_whole("--seed", seed, 0, LARGEST["seed"])
        scenario = replace(scenario, model=replace(scenario.model, seed=seed))
    if settings:
        options = {**scenario.engine.options, **settings}
        engine = replace(scenario.engine, options=options)
        scenario = replace(scenario.without_promises(), engine=engine)
    return scenario


def _requested(
    loaded: Sequence[tuple[str, Scenario]], profiles: Sequence[str], *, changed: bool
) -> list[Job]:
    jobs, problems = [], []
    for source, scenario in loaded:
        wanted = profiles or scenario.engine.profiles
        if not wanted:
            problems.append(f"{source}: lists no profile; name one with --profile")
        if changed:
            problems += [f"{source}: {misfit}" for misfit in misfits(scenario, wanted)]
        if not problems:
            played = (full_profile(scenario.engine.name, text) for text in wanted)
            jobs += [Job(source=source, scenario=scenario, profile=profile) for profile in played]
    if problems:
        raise ScenarioError(*problems)
    return jobs


def _fitting(loaded: Sequence[tuple[str, Scenario]], profiles: Sequence[str]) -> list[Job]:
    """Scenarios on the profiles of their engine that have their options."""
    jobs: list[Job] = []
    foreign, reasons = 0, []
    for source, scenario in loaded:
        own = chosen_profiles(scenario, profiles)
        foreign += not own
        for profile in own:
            wrong = misfits(scenario, [str(profile)])
            if wrong:
                reasons.append(f"{source}: left out: {wrong[0]}")
            else:
                jobs.append(Job(source=source, scenario=scenario, profile=profile))
    if not jobs:
        engines = ", ".join(sorted({scenario.engine.name for _, scenario in loaded}))
        wanted = ", ".join(profiles)
        msg = f"none of the {len(loaded)} scenarios ({engines}) can be run on {wanted}"
        raise ScenarioError(msg, *reasons[:5])
    lines = [*reasons[:5]]
    if len(reasons) > len(lines):
        lines.append(f"{len(reasons) - len(lines)} more left out, as flags or patches do not fit")
    if foreign:
        lines.append(f"{foreign} of {len(loaded)} scenarios are for other engines: left out")
    show(notes(), *map(Text, lines))
    return jobs


def setting(text: str) -> tuple[str, Any]:
    """A flag and its value in the syntax of a scenario file."""
    name, equals, value = text.partition("=")
    flag = name.strip().lstrip("-").replace("-", "_")
    if flag and equals and not value.strip():
        return flag, ""
    try:
        return flag, tomllib.loads(f"v = {value if flag else ''}")["v"]
    except tomllib.TOMLDecodeError:
        if flag and WORD.fullmatch(value.strip()):  # a shell takes the quotes of a string away
            return flag, value.strip()
        msg = f"--set {text} cannot be read; write a flag and its value, as in cache_reuse=0"
        raise InputError(msg) from None


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

    They start at once: a progress bar adds a thread, and a process with threads forks badly.
    """
    pool = pool_of(count, _end_silently_when_interrupted)
    try:
        pool.submit(int).result()
        yield pool
    except Exception:
        for child in active_children():  # their results are no longer needed
            child.terminate()
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

    Tasks of a lost worker are run by another one. All workers must run the same code: their results
    are stored like local ones.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        msg = "--dask needs distributed, which is not installed here: pip install 'cachesim[dask]'"
        raise InputError(msg) from None
    from cachesim.traces.sweep import EVERYTHING, code_digest, engines_digest

    own = int(where) if where.isdigit() else 0
    if where.isdigit() and not 1 <= own <= MOST_JOBS:
        msg = f"--dask is {where}; write a number of workers from 1 to {MOST_JOBS}, or an address"
        raise InputError(msg)
    with ExitStack() as opened:
        address: Any = where
        if own:
            address = opened.enter_context(
                # A heartbeat that meets the closing scheduler is logged with its traceback.
                LocalCluster(
                    n_workers=own, threads_per_worker=1, silence_logs=CRITICAL, **NO_DASHBOARD
                )
            )
        try:
            client = opened.enter_context(Client(address, timeout=ANSWERS_WITHIN))
        except (OSError, ValueError) as error:
            raise InputError(f"--dask {where}: there is no scheduler: {error}") from None
        digests: dict[str, Callable[[], object]] = {
            "cachesim": partial(code_digest, EVERYTHING),
            "the installed engines": engines_digest,
        }
        for what, digest in digests.items():
            own_code, theirs = digest(), client.run(digest)
            strangers = [name for name, code in theirs.items() if code != own_code]
            if strangers:
                raise InputError(f"--dask {where}: other code of {what} on {', '.join(strangers)}")
        yield client.get_executor(), max(1, sum(client.nthreads().values()))


def processes_wanted(jobs: int | None) -> int | None:
    """Value of `--jobs`, checked."""
    check_whole("--jobs", jobs, 1, MOST_JOBS)
    return jobs


def processors() -> int:
    """Number of processors available to this process."""
    able: Sequence[int] | set[int] = range(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        able = os.sched_getaffinity(0)
    return len(able)


def _end_silently_when_interrupted() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
