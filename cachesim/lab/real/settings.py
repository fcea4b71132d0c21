"""`cachesim real ENGINE --settings`: where a comparison differs from a server as users start it."""

from collections.abc import Sequence
from dataclasses import dataclass

from cachesim.lab.real.playing import console


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """A setting that a real server would have otherwise."""

    field: str
    default: str  # as a server starts with the same flags
    ours: str  # as it is compared
    why: str = ""  # no result depends on it; empty: nobody has given a reason


def show_overrides(title: str, overrides: Sequence[Override]) -> int:
    """Overrides with their reasons; the exit status: 1 where one of them has none."""
    out = console()
    out.print(f"{title}: {len(overrides)}")
    for each in overrides:
        out.print(f"\n{each.field}: {each.default} -> {each.ours}", markup=False)
        out.print(f"    {each.why or 'NO REASON GIVEN'}", markup=False)
    return 0 if all(each.why for each in overrides) else 1
