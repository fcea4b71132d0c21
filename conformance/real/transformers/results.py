"""Results of scripts on Transformers' models: counts, causes, and changes between releases."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from rich.table import Table

from cachesim.prove.playing import console
from cachesim.prove.transformers.scripts import Script

VERDICTS: Final = ("right", "wrong", "limit", "unclear", "refused", "crash")
WORDS: Final = ("", "operation", "wrong in", "cause", "operations", "families", "from release")
"""Heads of columns without numbers."""

NUMBER: Final = re.compile(r"\d+")
UNCACHED: Final = "not the cache's: calls without one give other logits than cold runs, too"
LIMITS: Final = {
    "is_croppable is False": (
        "documented by Cache.is_croppable in cache_utils.py, which says whether `crop` can put a "
        "cache back as it was"
    ),
    "the same without a cache": UNCACHED,
    "padding changes it without a cache too": UNCACHED,
    "tokens after padding on the right": (
        "documented by a warning of `generate`: results of decoders are correct with "
        "`padding_side='left'`"
    ),
}
"""Documentation of each limit, or the reason why it is none of the cache's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A script on a family's model, and its result."""

    release: str
    family: str
    operation: str
    verdict: str
    script: Script
    gap: float | None = None
    place: str = ""
    error: str = ""
    cause: str = ""  # what makes a wrong script right, or a limit


@dataclass(slots=True)
class Found:
    """All cells of a release."""

    release: str
    cells: list[Cell] = field(default_factory=list)
    unbuilt: dict[str, str] = field(default_factory=dict)
    not_causal: list[str] = field(default_factory=list)


def show(found: Found, title: str) -> None:
    """Counts of verdicts by operation, and the families of each that is wrong."""
    by_operation: dict[str, list[Cell]] = defaultdict(list)
    for cell in found.cells:
        by_operation[cell.operation].append(cell)
    table = _table("operation", *VERDICTS, "wrong in", title=title)
    for name, cells in by_operation.items():
        counts = Counter(each.verdict for each in cells)
        wrong = [each.family for each in cells if each.verdict == "wrong"]
        table.add_row(name, *(str(counts[verdict]) for verdict in VERDICTS), ", ".join(wrong))
    totals = Counter(each.verdict for each in found.cells)
    table.add_row("all", *(str(totals[verdict]) for verdict in VERDICTS), "")
    console().print(table)
    show_causes(found)
    families = len({each.family for each in found.cells})
    console().print(f"{families} families, {len(found.cells)} checks")
    if found.not_causal:
        console().print(
            "left out, since a cold run depends on later tokens: " + ", ".join(found.not_causal)
        )
    for family, reason in found.unbuilt.items():
        console().print(f"not built: {family}: {reason}", markup=False)


def show_causes(found: Found) -> None:
    """Fix of each wrong script, error of each crash, and their families."""
    by_cause: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in found.cells:
        if cell.verdict in ("wrong", "limit"):
            by_cause[cell.verdict, cell.cause].append(cell)
        elif cell.verdict == "crash":
            by_cause[cell.verdict, normal(cell.error)].append(cell)
    if not by_cause:
        return
    table = _table("", "cause", "scripts", "operations", "families")
    for (verdict, cause), cells in sorted(by_cause.items(), key=lambda each: -len(each[1])):
        operations = _listed(each.operation for each in cells)
        families = _listed(each.family for each in cells)
        table.add_row(verdict, cause or "not known", str(len(cells)), operations, families)
    console().print(table)
    for verdict, cause in by_cause:
        if verdict == "limit":
            console().print(f"limit, {cause}: {LIMITS[cause]}", markup=False)


def normal(error: str) -> str:
    """An error without its numbers."""
    return NUMBER.sub("n", error[:100])


def steps_of(verdicts: Sequence[tuple[str, str]]) -> str:
    """Each release whose verdict is another than that of the release before."""
    steps = [next(group) for _, group in groupby(verdicts, key=lambda each: each[1])]
    return ", ".join(f"{name} {verdict}" for name, verdict in steps)


def show_changes(releases: Sequence[Found]) -> bool:
    """List results that are not the same in all releases; False if there are none."""
    verdicts: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for found in releases:
        for cell in found.cells:
            verdicts[cell.family, cell.operation].append((cell.release, cell.verdict))
    by_course: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for key, course in verdicts.items():
        if len({verdict for _, verdict in course}) > 1:
            by_course[steps_of(course)].append(key)
    if not by_course:
        console().print(f"{len(verdicts):,} results are the same in all releases")
        return False
    heads = ("from release", "scripts", "operations", "families")
    table = _table(*heads, title="Changes between releases")
    for changes, keys in sorted(by_course.items(), key=lambda each: -len(each[1])):
        families, operations = zip(*keys, strict=True)
        table.add_row(changes, str(len(keys)), _listed(operations), _listed(families))
    console().print(table)
    return True


def is_worse(before: Found, after: Found) -> bool:
    """True if what is wrong or a crash was not so before, or a family is no longer run."""
    bad = ("wrong", "crash")
    known = {(cell.family, cell.operation) for cell in before.cells if cell.verdict in bad}
    gone = {cell.family for cell in before.cells} - {cell.family for cell in after.cells}
    return bool(gone) or any(
        cell.verdict in bad and (cell.family, cell.operation) not in known for cell in after.cells
    )


def _table(*heads: str, title: str | None = None) -> Table:
    table = Table(box=None, title=title, title_justify="left")
    for head in heads:
        table.add_column(head, justify="left" if head in WORDS else "right")
    return table


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
