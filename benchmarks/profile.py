"""The profile of a decoded token, a prefill, a search and `make run`.

A row is a function of ours, with whatever NumPy and the standard library do for it. Rows stand in
the order in which the functions are first called, so that two profiles can be laid side by side;
the twelve that take most have one, the last row adds up the others. Bytes are what memory rose by
while a function's own lines ran. Time is the processor's own, so that a busy machine counts for
less. Watching takes time too: the title has the time without it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.search import SIX
from benchmarks.tally import Account, Clock, Memory
from cachesim.cli.jobs import jobs_of
from cachesim.cli.run import play as play_jobs
from cachesim.engines.base import Engine, Request
from cachesim.engines.family import Profile
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import preset
from cachesim.play.findings import play
from cachesim.testing.search import workloads
from conformance.real.llama_cpp.logits import drawn_prompt

SERVER: Final = "llama.cpp@b9538"
PRESETS: Final = ("dense", "hybrid", "hybrid-delta")
BEFORE: Final = 100
DECODED: Final = 64
PREFILL: Final = 1_000
SEARCHED: Final = 10
SCENARIOS: Final = Path(__file__).parents[1] / "scenarios"
EVERY: Final = 10
"""Of the scenarios each tenth is enough to see where the time goes."""

ROWS: Final = 12
"""Functions that have a row of their own."""

RUNS: Final = 3
"""The quickest of so many runs counts for the time, because a machine is never slow by itself."""

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Subject:
    """A profiled subject."""

    title: str
    units: int  # how many of what the title names are done
    ready: Callable[[], Work]  # sets up what is not to be counted
    runs: int = RUNS


def decoding(name: str) -> Work:
    """A request whose prompt is processed, with some tokens left to generate."""
    server = Engine.create(SERVER, model=preset(name))
    prompt = drawn_prompt(np.random.default_rng(0), BEFORE)
    server.submit(Request(prompt=prompt, predict=DECODED + 1))
    server.step()
    return server.run


def prefilling(name: str) -> Work:
    """A request with a long prompt."""
    server = Engine.create(SERVER, model=preset(name))
    prompt = drawn_prompt(np.random.default_rng(0), PREFILL)
    server.submit(Request(prompt=prompt, predict=1))
    return server.run


def searching(arithmetic: ArithmeticName) -> Work:
    """Workloads of six requests, each played and judged."""
    profile = Profile.parse(SERVER)
    drawn = list(islice(workloads(profile, "hybrid", shape=SIX), SEARCHED))

    def search() -> None:
        for scenario in drawn:
            play(scenario, profile, arithmetic=arithmetic, stop_early=False)

    return search


def some_scenarios() -> Work:
    """A part of the runs of `make run`, in one process: the files are read in that time too."""

    def play_some() -> None:
        files = sorted(map(str, SCENARIOS.rglob("*.toml")))[::EVERY]
        for _ in play_jobs(jobs_of(files, (), None), "ring", verify=True, processes=1):
            pass

    return play_some


def subjects() -> list[Subject]:
    """Everything that is profiled, in the order of the tables."""
    return [
        *(
            Subject(f"a decoded token, {name}, {BEFORE} before", DECODED, partial(decoding, name))
            for name in PRESETS
        ),
        *(
            Subject(f"a prefill of {PREFILL:,} tokens, {name}", 1, partial(prefilling, name))
            for name in PRESETS
        ),
        Subject("a searched workload, ring", SEARCHED, partial(searching, "ring")),
        Subject("a searched workload, float", SEARCHED, partial(searching, "float")),
        Subject(f"make run, each {EVERY}th scenario, one process", 1, some_scenarios, runs=1),
    ]


def seconds(work: Work) -> float:
    """The time without a profiler."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def profile(subject: Subject) -> Table:
    """One subject's table."""
    plain = min(seconds(subject.ready()) for _ in range(subject.runs)) / subject.units
    watched = (Clock().of(subject.ready()) for _ in range(subject.runs))
    times = min(watched, key=lambda accounts: sum(account.spent for account in accounts.values()))
    return table(f"{subject.title}: {told(plain)}", subject.units, times, held(subject))


def held(subject: Subject) -> Mapping[str, Account]:
    """The bytes of each function; the first run may fill what later ones find."""
    return Memory().of(subject.ready())


def table(
    title: str, units: int, times: Mapping[str, Account], sizes: Mapping[str, Account]
) -> Table:
    """Calls, kilobytes and share of the time, function by function."""
    result = Table(title=title, title_style="", title_justify="left")
    for head in ("function", "calls", "kB", "share"):
        result.add_column(head, justify="left" if head == "function" else "right")
    total = sum(account.spent for account in times.values())
    most = sorted(times, key=lambda name: times[name].spent)[-ROWS:]
    shown = [name for name in times if name in most]
    rest = [name for name in times if name not in most]
    for label, names in (*((name, [name]) for name in shown), (f"{len(rest)} others", rest)):
        calls = sum(times[name].calls for name in names) / units
        size = sum(sizes[name].spent for name in names if name in sizes) / units / 1000
        share = sum(times[name].spent for name in names) / total
        result.add_row(label, f"{calls:,.1f}", f"{size:,.1f}", f"{share:.0%}")
    return result


def told(duration: float) -> str:
    """Seconds, in words."""
    if duration < 1e-3:
        return f"{duration * 1e6:,.0f} microseconds"
    return f"{duration * 1e3:,.1f} milliseconds" if duration < 1 else f"{duration:,.1f} seconds"


def run(out: Console) -> None:
    """Print the tables."""
    for subject in subjects():
        out.print(profile(subject))
