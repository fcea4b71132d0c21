"""The mutation table: how many examples each bug took."""

import sys

from rich.console import Console
from rich.table import Table

from tests.mutants.hunt import caught_after
from tests.mutants.test_mutants import ALL


def main() -> int:
    """Print the table; 1 if one got away."""
    table = Table(box=None, pad_edge=False)
    for head in ("mutant", "caught by", "after", "upstream"):
        table.add_column(head, justify="right" if head == "after" else "left")
    missed = 0
    for mutant in ALL:
        after = caught_after(mutant)
        missed += after is None
        table.add_row(
            mutant.name, mutant.caught_by, "GOT AWAY" if after is None else str(after),
            mutant.upstream,
        )  # fmt: skip
    screen = Console(width=100, highlight=False)
    screen.print(table)
    screen.print(f"{len(ALL) - missed} of {len(ALL)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
