"""The mutation table: how each bug was caught, and that without it nothing is found."""

import sys

from rich.console import Console
from rich.table import Table

from conformance.mutants.hunt import caught, control
from conformance.mutants.others import ALL


def main() -> int:
    """Print the table; 1 if a mutant was not caught, or found where it is not."""
    screen = Console(width=110, highlight=False)
    table = Table(box=None, pad_edge=False)
    for head in ("mutant", "how", "after", "without it", "upstream"):
        table.add_column(head, justify="right" if head == "after" else "left", overflow="fold")
    missed = crashes = 0
    for mutant in ALL:
        catch, alone = caught(mutant), control(mutant)
        missed += catch is None or alone is not None
        crashes += catch is not None and catch.how == "crash"
        table.add_row(
            mutant.name,
            "NOT CAUGHT" if catch is None else catch.how,
            "" if catch is None else str(catch.after),
            "nothing" if alone is None else f"{alone.how} after {alone.after}",
            mutant.upstream,
        )
    screen.print(table)
    screen.print(
        f"{len(ALL) - missed} of {len(ALL)} caught, {crashes} of them by a crash; the same hunts "
        "without them find nothing" + (", but for those named" if missed else "")
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
