"""The reports that were collected: each with its scenario, and the verdict of a second reader."""

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parents[1]

COLLECTIONS: Final[Mapping[str, str]] = {
    "first": "first collection",
    "newer": "newer ones",
    "autumn": "autumn 2026",
}
"""One of September 2026; what came after or was missed; one made without a look at those."""

READINGS: Final[Mapping[str, str]] = {
    "agrees": "a second reader agrees",
    "in part": "a second reader: in part",
    "unread": "not yet read by another",
}
"""The finding of a second reader, beside the report."""

THREADS: Final[Mapping[str, str]] = {
    "found": "read in a stored copy",
    "not found": "searched for in vain",
    "": "not looked for",
}
"""Results of a second search for the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """One report; `scenario` is empty where none shows it."""

    report: str  # OWNER/REPOSITORY#NUMBER, and "(second report)" where a thread has two
    collection: str
    scenario: str
    agrees: str
    evidence: str  # of `evidence` and `checked`: see `report_rows.py`
    checked: str
    thread: str
    note: str

    @property
    def issue(self) -> str:
        """The thread of the report."""
        return self.report.split(" ", maxsplit=1)[0]


def collected() -> tuple[Collected, ...]:
    """Every report of `docs/reports.csv`."""
    with (DOCS / "reports.csv").open(newline="", encoding="utf-8") as table:
        return tuple(Collected(**each) for each in csv.DictReader(table))


def counts() -> dict[str, Counter[str]]:
    """Of each collection: how many reports have a scenario of which reading, or none."""
    found = {collection: Counter[str]() for collection in COLLECTIONS}
    for each in collected():
        found[each.collection][each.agrees or "none"] += 1
    return found


def readings() -> dict[str, list[Collected]]:
    """The second reading of each scenario."""
    found: dict[str, list[Collected]] = {}
    for each in collected():
        if each.scenario:
            found.setdefault(each.scenario, []).append(each)
    return found


def wheels() -> dict[str, list[dict[str, str]]]:
    """Results of the real servers for each scenario, by release (`docs/wheels.csv`)."""
    found: dict[str, list[dict[str, str]]] = {}
    path = DOCS / "wheels.csv"
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as table:
            for each in csv.DictReader(table):
                found.setdefault(each["scenario"], []).append(each)
    return found
