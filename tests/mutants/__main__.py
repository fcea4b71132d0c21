"""The mutation tables: how each bug was caught, and that without it nothing is found."""

import sys

from rich.console import Console
from rich.table import Table

from tests.mutants import suite
from tests.mutants.hunt import caught, control
from tests.mutants.subtle import SUBTLE
from tests.mutants.test_mutants import ALL


def main() -> int:
    """Print both tables; 1 if one got away, or was found where it is not."""
    screen = Console(width=110, highlight=False)
    missed = _hunted(screen) + _subtle(screen)
    return 1 if missed else 0


def _hunted(screen: Console) -> int:
    """By search and by replay: the example that showed it, and the same hunt without it."""
    table = _table("mutant", "how", "after", "without it", "upstream")
    missed = crashes = 0
    for mutant in ALL:
        catch, alone = caught(mutant), control(mutant)
        missed += catch is None or alone is not None
        crashes += catch is not None and catch.how == "crash"
        table.add_row(
            mutant.name,
            "GOT AWAY" if catch is None else catch.how,
            "" if catch is None else str(catch.after),
            "nothing" if alone is None else f"{alone.how} after {alone.after}",
            mutant.upstream,
        )
    screen.print(table)
    screen.print(
        f"{len(ALL) - missed} of {len(ALL)} caught, {crashes} of them by a crash; the same hunts "
        "without them find nothing" + (", but for those named" if missed else "")
    )
    return missed


def _subtle(screen: Console) -> int:
    """By the ordinary suite: the test that fails."""
    table = _table("subtle mutant", "how", "test")
    missed = 0
    for each in SUBTLE:
        said = suite.noticed(each)
        missed += said is None
        table.add_row(each.name, "GOT AWAY" if said is None else said.how, each.test)
    sound = suite.passes_without(list(SUBTLE))
    screen.print(table)
    screen.print(
        f"{len(SUBTLE) - missed} of {len(SUBTLE)} noticed by the suite; without them its tests "
        + ("pass" if sound else "FAIL")
    )
    return missed + (not sound)


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head == "after" else "left", overflow="fold")
    return table


if __name__ == "__main__":
    sys.exit(main())
