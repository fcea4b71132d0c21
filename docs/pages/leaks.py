"""Text that wrong answers give: a table by defect, from `docs/leaks.csv`."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from cachesim.scenario.labels import CONFIRMED
from pages.collected import DOCS
from pages.tables import table

Row: TypeAlias = Mapping[str, str]

INTRODUCTION: Final = """\
# Leaks

Each shipped wrong answer with a recall model: every prompt is rewritten, so that a fact stands
where the wrong memory lies, and the last prompt asks for it. A leak is a reply with a value that
only other requests contained. `docs/leaks.csv` has the reply, the uncached reply and the positions;
`python -m conformance.leaks` writes it.
"""

SHORT: Final = {CONFIRMED: "real engine", "": "patched"}
"""Evidence labels in a cell."""

TEXTS: Final = ("wrong text", "unchanged", "not reproduced")
"""Outcomes of wrong answers that are no leak."""


def page() -> str:
    """Leaks by scenario, then the count of other wrong answers by reason."""
    with (DOCS / "leaks.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    leaks = [row for row in rows if row["outcome"] == "leak"]
    others = [row for row in rows if row["outcome"] != "leak"]
    parts = (
        INTRODUCTION,
        table(("leak", "releases", "evidence"), _grouped(leaks, "scenario", _leak)),
        table(("no leak, because", *TEXTS), _grouped(others, "why", _other)),
    )
    return "\n\n".join(parts) + "\n"


def _grouped(
    rows: Sequence[Row], key: str, cells: Callable[[Sequence[Row]], Sequence[str]]
) -> Iterator[Sequence[str]]:
    for name in dict.fromkeys(row[key] for row in rows):
        yield name, *cells([row for row in rows if row[key] == name])


def _leak(rows: Sequence[Row]) -> Sequence[str]:
    labels = {SHORT.get(row["evidence"], row["evidence"]) for row in rows}
    return ", ".join(row["profile"] for row in rows), ", ".join(sorted(labels))


def _other(rows: Sequence[Row]) -> Sequence[str]:
    return [str(sum(row["outcome"] == text for row in rows) or "") for text in TEXTS]
