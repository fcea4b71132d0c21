"""The difference between two releases of an engine, on one trace with the same flags.

lost more  <-----|----->  lost less           what is reused more or less is the sum of both,
state-missing | attention-evicted          for all that was known is reused or lost
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from rich.console import RenderableType

from cachesim.engines.words import counted
from cachesim.report.document import FittingTable

Rows = Sequence[Mapping[str, Any]]

SHOWN: Final = 4
"""Causes that are named in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """What changes from one release to the next one that was played."""

    server: str
    before: str
    after: str
    reused: int  # tokens more, or less
    points: float  # of the share
    lost: Mapping[str, int]  # by cause: tokens more that are lost, or less; what changed alone

    @property
    def releases(self) -> str:
        """From which to which."""
        return f"{self.before} to {self.after}"

    @property
    def changes(self) -> bool:
        """Whether anything does."""
        return bool(self.reused or self.lost)


def upgrades(rows: Rows) -> list[Upgrade]:
    """Each pair of releases that follow each other in the rows, with all else alike."""
    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        engine, at, _ = row["profile"].partition("@")
        if at:
            flags = ", ".join(f"{name}={value}" for name, value in row["settings"].items())
            alike.setdefault((engine, row["model"], flags), []).append(row)
    return [
        _upgrade(", ".join(filter(None, key)), before, after)
        for key, members in alike.items()
        for before, after in pairwise(members)
    ]


def _upgrade(server: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Upgrade:
    causes = dict.fromkeys([*before["lost"], *after["lost"]])
    more = {each: after["lost"].get(each, 0) - before["lost"].get(each, 0) for each in causes}
    return Upgrade(
        server=server,
        before=before["profile"].partition("@")[2],
        after=after["profile"].partition("@")[2],
        reused=after["cached"] - before["cached"],
        points=round(100 * (after["rate"] - before["rate"]), 4),
        lost={cause: count for cause, count in _largest(more.items()) if count},
    )


def _largest(counts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(counts, key=lambda each: (-abs(each[1]), each[0]))


def sentence_of(found: Sequence[Upgrade]) -> str:
    """The number of pairs of releases, and of those without a difference."""
    pairs = counted(len(found), "pair")
    same = sum(not each.changes for each in found)
    if same == len(found):
        return f"No difference between releases ({pairs} compared, all else equal)."
    return f"{pairs} of releases compared, all else equal: {same} without a difference."


def upgrades_table(changed: Sequence[Upgrade]) -> RenderableType:
    """A line for each pair that differs."""
    table = FittingTable()
    table.add_column("server", overflow="fold", ratio=2)
    table.add_column("reused", justify="right", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("lost more, or less", overflow="fold", ratio=2)
    for each in changed:
        causes = [f"{count:+,} {cause}" for cause, count in each.lost.items()]
        more = len(causes) - SHOWN
        causes = causes[:SHOWN] + ([f"{more} more"] if more > 0 else [])
        table.add_row(
            f"{each.server}: {each.releases}",
            f"{each.reused:+,}",
            f"{each.points:+.2f}",
            ", ".join(causes),
        )
    return table
