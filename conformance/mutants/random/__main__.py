"""`make mutants`: random mutants of every port, and which means finds each."""

import argparse
import gc
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console
from rich.table import Table

from conformance.mutants.random import ports
from conformance.mutants.random.equivalent import EQUIVALENT
from conformance.mutants.random.means import MEANS, Means, examples_of, law
from conformance.mutants.random.ports import PORTS, Port, RandomMutant
from conformance.mutants.random.session import SHARE, Outcome, control, judge

COUNT: Final = 100
WANTED: Final = 0.9
"""The share that must be found."""

REPLAYED: Final = ("_vectors.py", "test_played_workloads.py")
"""Ends of the names of tests that replay vectors, which are a means of their own."""


@dataclass
class Planting:
    """A pytest plug-in that plants mutants where the tests would run once."""

    port: Port
    mutants: list[RandomMutant]
    jobs: int
    means: Sequence[Means]
    share: float = SHARE
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Everything; the tests that were collected are the laws."""
        laws = [law(item) for item in session.items if not item.path.name.endswith(REPLAYED)]
        examples = [
            example for example in (*laws, *examples_of(self.port)) if example.means in self.means
        ]
        ports.load(self.port)
        gc.freeze()
        known = control(examples, self.mutants, self.jobs)
        progress = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        wrong = [examples[at].name for at, played in sorted(known.items()) if not played.holds]
        progress.print(
            f"{self.port.name}: the control plays {len(examples)} examples in "
            f"{sum(played.seconds for played in known.values()):.0f} s; "
            f"{len(wrong)} that do not hold without a mutant are left out"
            f"{': ' if wrong else ''}{', '.join(wrong)}"
        )
        for number, outcome in judge(examples, known, self.mutants, self.jobs, self.share):
            self.outcomes[number] = outcome
            if outcome.means is None and self.mutants[number].key not in EQUIVALENT:
                progress.print(f"{len(self.outcomes)}: {_escaped(self.mutants[number])}")
        return True


def main() -> int:
    """Plant, and print the table; 1 if a port is not protected."""
    parser = argparse.ArgumentParser(prog="python -m conformance.mutants.random")
    parser.add_argument("ports", nargs="*", choices=[*PORTS, []], help="all if left out")
    parser.add_argument("--count", type=int, default=COUNT, help="mutants of each port")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--all", action="store_true", help="list those that are found too")
    parser.add_argument("--means", nargs="*", choices=MEANS, default=MEANS, help="only these")
    parser.add_argument("--again", type=Path, help="only what escaped in this output")
    parser.add_argument("--share", type=float, default=SHARE, help="seconds a means and mutant")
    wanted = parser.parse_args()
    screen = Console(width=150, highlight=False, markup=False)
    heads = ("port", "planted", "equivalent", *MEANS, "escaped", "found", "processor time")
    table = Table(*heads, box=None)
    missed = False
    for name in wanted.ports or PORTS:
        mutants = ports.draw(PORTS[name], wanted.count, wanted.seed)
        if wanted.again is not None:
            text = wanted.again.read_text()
            mutants = [mutant for mutant in mutants if f"{_escaped(mutant)}\n" in text]
        planting = Planting(PORTS[name], mutants, wanted.jobs, wanted.means, wanted.share)
        given = ["-qq", "-s", "--assert=plain", "-p", "no:cacheprovider", *planting.port.tests]
        pytest.main(given, plugins=[planting])
        missed |= not _tell(screen, table, planting, everything=wanted.all)
    screen.print(table)
    return int(missed)


def _escaped(mutant: RandomMutant) -> str:
    """The line of an escaped mutant."""
    return (
        f"ESCAPED: {mutant.place} ({mutant.operator})\n"
        f"    {mutant.source}\n    {mutant.old} -> {mutant.new}"
    )


def _tell(screen: Console, table: Table, planting: Planting, *, everything: bool) -> bool:
    """The mutants of one port, and its row; whether enough are found."""
    found: Counter[str] = Counter()
    equivalent = escaped = 0
    for number, outcome in sorted(planting.outcomes.items()):
        mutant = planting.mutants[number]
        change = f"{mutant.place} ({mutant.operator}): {mutant.old} -> {mutant.new}"
        if outcome.means is not None:
            found[outcome.means] += 1
            told = f"{outcome.means}, {outcome.how}: {change}, by {outcome.example}"
        elif mutant.key in EQUIVALENT:
            equivalent += 1
            told = f"equivalent: {change}: {EQUIVALENT[mutant.key]}"
        else:
            escaped += 1
            told = f"{_escaped(mutant)}\n    {sum(outcome.tried.values())} examples reach it"
        if outcome.means is None or everything:
            screen.print(told, soft_wrap=True)
    rest, caught = len(planting.outcomes) - equivalent, found.total()
    seconds = sum(each.seconds for each in planting.outcomes.values())
    counts = (len(planting.outcomes), equivalent, *(found[mean] for mean in MEANS), escaped)
    table.add_row(planting.port.name, *map(str, counts), f"{caught} of {rest}", f"{seconds:.0f} s")
    return caught >= WANTED * rest


if __name__ == "__main__":
    sys.exit(main())
