"""Processor time until a blind search finds a known defect: `python -m benchmarks bugs`.

    python -m benchmarks bugs                                     three seeds, two seconds each
    python -m benchmarks.bugs --seeds 3 4 --seconds 60 --only vllm --json bugs.json
    python -m benchmarks.bugs --scope 3 --seconds 60              all small workloads in their order

A search draws as `cachesim check --all` does, on the report's model with flags of its own, in one
process. It has found the defect at the first workload that fails on the profile with it, and does
not fail at that step on the profile without it; only the first counts as time, unless the search
compares both.
"""

import json
import time
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.defects import BEYOND, SHAPE, Defect, defects
from cachesim.errors import InputError
from cachesim.scenario.format import Scenario
from cachesim.testing.scope import WholeScope
from cachesim.testing.search import shrink, workloads
from cachesim.testing.workloads import words_of

SEEDS: Final = (0, 1, 2)
SECONDS: Final = 2.0
TRIALS: Final = 100
"""Most simplifications of a counterexample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search for one defect from one seed."""

    defect: Defect
    seed: int
    seconds: float
    workloads: int
    found: Scenario | None


def searched(defect: Defect, seed: int, seconds: float, scope: int | None = None) -> Search:
    """Search until the defect is found or the processor time is spent, or a scope is played."""
    spent, number = 0.0, 0
    drawn = workloads(defect.profile, defect.model, seed=seed, shape=SHAPE)
    if scope is not None:
        drawn = _scope(defect, scope)
    found = None
    while found is None and spent < seconds:
        begin = time.process_time()
        scenario = next(drawn, None)
        if scenario is None:
            break
        steps = defect.shown(scenario, number)
        middle = time.process_time()
        if steps and defect.is_own(scenario, steps):
            found = scenario
        spent += (time.process_time() if defect.effect == "less" else middle) - begin
        number += 1
    return Search(defect=defect, seed=seed, seconds=spent, workloads=number, found=found)


def _scope(defect: Defect, requests: int) -> Iterator[Scenario]:
    """The workloads of a small scope; none where the server of the model has no scope."""
    try:
        small = WholeScope(profile=defect.profile, model=defect.model, requests=requests)
    except InputError:
        return
    for _, scenario in small.workloads():
        yield scenario


def size(search: Search) -> tuple[int, int] | None:
    """Steps and prompt tokens of the shrunk counterexample."""
    if search.found is None:
        return None

    defect = search.defect

    def holds(candidate: Scenario) -> bool:
        try:
            return defect.is_own(candidate, defect.shown(candidate, 0))
        except InputError:
            return False

    steps = shrink(search.found, holds, trials=TRIALS).step
    turns = (turn for step in steps for turn in step.messages)
    return len(steps), sum(len(step.ids) for step in steps) + sum(len(words_of(t)) for t in turns)


def rows(found: Sequence[Search]) -> Iterator[dict[str, Any]]:
    """Each defect with its searches, as the JSON holds it."""
    for defect, group in groupby(found, key=lambda each: each.defect):
        searches = list(group)
        first = next((each for each in searches if each.found is not None), searches[0])
        yield {
            "name": defect.name,
            "effect": defect.effect,
            "profile": str(defect.profile),
            "control": str(defect.control),
            "model": defect.model,
            "shrunk": size(first),
            "searches": [
                {
                    "seed": each.seed,
                    "seconds": round(each.seconds, 4),
                    "workloads": each.workloads,
                    "found": each.found is not None,
                }
                for each in searches
            ],
        }


def table(found: Sequence[dict[str, Any]], scope: int | None = None) -> Table:
    """A row for each engine, each effect, and one for all."""
    how = "a blind search" if scope is None else f"small scopes of up to {scope} requests"
    shown = Table(title=f"defects found by {how}, processor seconds", title_style="")
    shown.add_column("engine or effect")
    for head in ("defects", "searches", "median", "slowest", "workloads", "shrunk, tokens"):
        shown.add_column(head, justify="right")
    groups = defaultdict(list)
    for each in found:
        for group in (each["profile"].partition("@")[0], each["effect"], "all"):
            groups[group].append(each)
    for group, some in sorted(groups.items(), key=lambda each: len(each[1])):
        searches = [search for each in some for search in each["searches"]]
        right = [each for each in searches if each["found"]]
        seen = sum(any(search["found"] for search in each["searches"]) for each in some)
        sizes = [each["shrunk"][1] for each in some if each["shrunk"]]
        seconds = [each["seconds"] for each in right]
        shown.add_row(
            group,
            f"{seen} of {len(some)}",
            f"{len(right)} of {len(searches)}",
            f"{median(seconds):.3f}" if right else "-",
            f"{max(seconds):.2f}" if right else "-",
            f"{median(each['workloads'] for each in right):.0f}" if right else "-",
            f"{median(sizes):.0f}" if sizes else "-",
        )
    return shown


def run(
    out: Console,
    *,
    seeds: Sequence[int] = SEEDS,
    seconds: float = SECONDS,
    only: str = "",
    file: Path | None = None,
    scope: int | None = None,
) -> None:
    """Print the table and the defects not found; keep all of it where a file is named."""
    seeds = seeds if scope is None else (0,)  # a scope draws nothing
    searches = [searched(each, n, seconds, scope) for each in defects(only) for n in seeds]
    found = list(rows(searches))
    out.print(table(found, scope))
    for each in found:
        if not any(search["found"] for search in each["searches"]):
            last = each["searches"][0]
            reason = BEYOND.get(each["name"], "too rare for this time")
            if scope is not None:
                whole = last["seconds"] < seconds
                reason = f"not in {last['workloads']:,} workloads" + ", all" * whole
            out.print(f"not found: {each['name']} ({each['effect']}, {each['profile']}): {reason}")
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    given = ArgumentParser(prog="python -m benchmarks.bugs")
    given.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    given.add_argument("--seconds", type=float, default=SECONDS)
    given.add_argument("--only", default="")
    given.add_argument("--scope", type=int, choices=range(2, 5))
    given.add_argument("--json", type=Path, dest="file")
    run(Console(width=120, highlight=False), **vars(given.parse_args()))
