"""Print the tables: `python -m benchmarks`, or some of them by name.

A table is a module of this package with `run(out: Console) -> None`.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from benchmarks import against

MODULES: Final = (
    "profile", "model", "memory", "server", "search", "logs", "recorder", "vllm_manager",
    "sglang_tree", "traces", "sweep", "growth", "probe", "bugs", "fleet",
)  # fmt: skip
"""Every table, in the order they are printed."""

WIDTH: Final = 120


def main(names: Sequence[str]) -> int:
    """Run the tables of those names, or all of them; 2 for a name that does not exist.

    `against COMMIT` compares with another commit, and is not among all of them.
    """
    if names and names[0] == "against":
        if len(names) != 2:
            print("write a commit: python -m benchmarks against COMMIT", file=sys.stderr)
            return 2
        return against.run(Console(highlight=False, width=WIDTH), names[1])
    there = [name for name in MODULES if importlib.util.find_spec(f"benchmarks.{name}")]
    unknown = [name for name in names if name not in there]
    if unknown:
        known = ", ".join(there)
        print(f"there is no benchmark {unknown[0]!r}; there are {known}", file=sys.stderr)
        return 2
    out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    status = 0
    for name in names or there:
        status |= importlib.import_module(f"benchmarks.{name}").run(out) or 0
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
