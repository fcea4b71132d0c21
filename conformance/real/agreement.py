"""What agreed between a real engine and the simulator, by kind, and the first difference."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from rich.table import Table

from cachesim.engines.family import Family
from cachesim.prove.playing import Difference, Override, console, not_compared, releases_of
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import load_all
from cachesim.typed import Json


def table_of_numbers(title: str, name: str, *heads: str) -> Table:
    """A name for each row, and numbers behind it."""
    table = Table(title=title, title_style="")
    table.add_column(name)
    for head in heads:
        table.add_column(head, justify="right")
    return table


def differing_defaults(
    family: Family[Any, Any], release: str, started: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Rows of the simulator's options whose default differs from a real server's."""
    defaults = {
        option.name: str(family.default(option, release))
        for option in family.declared
        if option.name in started and not option.internal
    }
    return [
        (f"simulator: {name}", started[name], ours)
        for name, ours in defaults.items()
        if started[name] != ours
    ]


def show_overrides(title: str, overrides: Sequence[Override]) -> int:
    """Overrides with their reasons; the exit status: 1 where one of them has none."""
    out = console()
    out.print(f"{title}: {len(overrides)}")
    for override in overrides:
        out.print(f"\n{override.field}: {override.default} -> {override.ours}", markup=False)
        out.print(f"    {override.why or 'NO REASON GIVEN'}", markup=False)
    return 0 if all(override.why for override in overrides) else 1


@dataclass(frozen=True, slots=True)
class Race:
    """A run that is equal to the real one if its requests arrive in another order."""

    order: str  # in words


def first_difference(real: Iterable[Json], simulated: Iterable[Json]) -> Difference | None:
    """The first results that are not equal; one that is missing on a side is null."""
    for step, (one, other) in enumerate(zip_longest(real, simulated)):
        if one != other:
            return Difference(step=step, real=one, simulated=other)
    return None


@dataclass(slots=True, kw_only=True)
class Agreement:
    """Counts of what was run on both, a column and a kind each, and the first difference."""

    title: str = ""
    kinds: str = "kind"  # the head of the kinds
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    difference: tuple[Any, Difference] | None = None  # and what was run
    reasons: Counter[str] = field(default_factory=Counter)  # why something was not compared

    @property
    def all_agree(self) -> bool:
        """True when nothing differs, and something was run."""
        return self.difference is None and any(count.total() for count in self.counts.values())

    def require(self) -> None:
        """End the command if nothing was compared."""
        compared = any(self.total(each) for each in ("agreeing", "requests"))
        if self.difference is None and not compared:
            not_compared(next(iter(self.reasons), "no workload was run on both"))

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
        columns = self.counts.values()
        table = table_of_numbers(self.title, self.kinds, *self.counts)
        for kind in sorted(next(iter(columns), ())):
            table.add_row(kind, *(f"{column[kind]:,}" for column in columns))
        table.add_section()
        table.add_row("all", *(f"{column.total():,}" for column in columns))
        return table

    def show(self) -> int:
        """Print the table and the first difference; the exit status."""
        out = console()
        out.print(self.table())
        for reason, number in self.reasons.most_common():
            out.print(f"not compared, {number:,}: {reason}", markup=False)
        if self.difference is not None:
            played, difference = self.difference
            out.print(f"first difference, workload {played}, step {difference.step}:")
            for line in difference.lines():
                out.print(line, markup=False)
        self.require()
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
