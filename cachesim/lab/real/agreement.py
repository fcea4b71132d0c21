"""A real engine beside the simulator: where two runs first differ, and how many agree, by kind."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, Final

from rich.table import Table

from cachesim.engines.family import Family
from cachesim.lab.real.playing import console, releases_of, table_of_counts
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import load_all
from cachesim.typed import Json

Workload = dict[str, Any]

MOST_LINES: Final = 12
"""Fields of a difference that are printed."""

MOST_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first step of a run at which the simulator differs from the real engine."""

    step: int
    real: Json = None
    simulated: Json

    def lines(self) -> Iterator[str]:
        """A line for each field that differs, as many as fit on a screen."""
        found = list(islice(differing(self.real, self.simulated, ""), MOST_LINES + 1))
        for where, real, simulated in found[:MOST_LINES]:
            yield f"  {where}: real {_short(real)}, simulated {_short(simulated)}"
        if len(found) > MOST_LINES:
            yield "  ..."


def _short(value: Json) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def first_difference(real: Iterable[Json], simulated: Iterable[Json]) -> Difference | None:
    """The first results that are not equal; one that is missing on a side is null."""
    for step, (one, other) in enumerate(zip_longest(real, simulated)):
        if one != other:
            return Difference(step=step, real=one, simulated=other)
    return None


def differing(real: Json, simulated: Json, where: str) -> Iterator[tuple[str, Json, Json]]:
    """The places where two JSON values differ, as deep as both have the same shape."""
    if isinstance(real, dict) and isinstance(simulated, dict):
        for key in sorted({*real, *simulated}):
            inside = f"{where}.{key}" if where else str(key)
            yield from differing(real.get(key), simulated.get(key), inside)
    elif isinstance(real, list) and isinstance(simulated, list) and len(real) == len(simulated):
        for i, (one, other) in enumerate(zip(real, simulated, strict=True)):
            yield from differing(one, other, f"{where}[{i}]")
    elif real != simulated:
        yield where, real, simulated


@dataclass(slots=True, kw_only=True)
class Agreement:
    """Counts of what was run on both, a column and a kind each, and the first difference."""

    title: str = ""
    kinds: str = "kind"  # the head of the kinds
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    difference: tuple[Any, Difference] | None = None  # and what was run

    @property
    def all_agree(self) -> bool:
        """True when nothing differs, and something was run."""
        return self.difference is None and any(each.total() for each in self.counts.values())

    def add(self, kind: str, played: object, difference: Difference | None, **numbers: int) -> None:
        """Count something that was run, and keep it if it is the first that differs."""
        for column, number in numbers.items():
            self.counts[column.replace("_", " ")][kind] += number
        if difference is not None and self.difference is None:
            self.difference = played, difference

    def total(self, column: str) -> int:
        return self.counts[column].total()

    def table(self) -> Table:
        """A row for each kind, and the sums."""
        return table_of_counts(self.title, self.kinds, self.counts)

    def show(self) -> int:
        """Print the table and the first difference; the exit status."""
        out = console()
        out.print(self.table())
        if self.difference is not None:
            played, difference = self.difference
            out.print(f"first difference, workload {played}, step {difference.step}:")
            for line in difference.lines():
                out.print(line, markup=False)
        return 0 if self.all_agree else 1


def play_on_runner(
    family: Family[Any, Any],
    name: str,
    wanted: str,
    differs_in: Callable[[Scenario, str], Difference | None],
) -> int:
    """Compare a release's model runner on the steps of scenarios; the exit status."""
    agree = True
    for _, scenario in load_all([name]):
        for release in releases_of(family, scenario, wanted):
            found = differs_in(scenario, release)
            verdict = "equal" if found is None else f"DIFFERENT in step {found.step}"
            title = f"{scenario.name} on {family.name} {release}"
            console().print(f"{title}: reads, writes and copies of its model runner: {verdict}")
            if found is not None:
                console().print("\n".join(found.lines()), markup=False)
            agree = agree and found is None
    return 0 if agree else 1
