"""Draws families by operations from the results of `cachesim real transformers`.

    cachesim real transformers --output results.jsonl
    python docs/make_transformers.py results.jsonl

Without a file the picture is drawn again from the verdicts that are kept beside it. The verdicts of
known causes in several releases are kept, too; later ones replace those of the same release:

    cachesim real transformers --causes --release 5.7.0 --release 5.8.0 --output causes.jsonl
    python docs/make_transformers.py --causes causes.jsonl
"""

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final

from cachesim.prove.transformers.scripts import OPERATIONS
from conformance.real.transformers.causes import SHOWN

FOLDER: Final = Path(__file__).parent / "measurements"
VERDICTS: Final = FOLDER / "transformers.json"
PICTURE: Final = FOLDER / "transformers.html"
REPORTS: Final = FOLDER / "transformers-reports.csv"
"""A verdict for each report and release that was played."""

CAUSES: Final = FOLDER / "transformers-causes.csv"
"""A verdict for what shows a cause, and each release that was played."""

CODES: Final = {"right": "r", "wrong": "w", "limit": "l", "unclear": "u", "refused": "-"}
CRASH, ABSENT = "c", " "
LEGEND: Final = {
    "w": "wrong",
    "l": "limit, or wrong without a cache too",
    "c": "crash",
    "-": "refused",
    "u": "unclear",
    "r": "right",
}
CELL, LEFT, TOP = 17, 190, 132
STYLE: Final = """<style>
.families{overflow-x:auto} .families svg{min-width:700px} .families text{font-size:11px}
.families .r{fill:#8884;fill-opacity:.25} .families .w{fill:#d33} .families .l{fill:#e8a33d}
.families .c{fill:#8b4ac0} .families .u{fill:#77a9d8} .families [class="-"]{fill:none;stroke:#8886}
</style>"""


def compact(lines: list[str]) -> dict[str, object]:
    """Release, operations, and a letter for each family and operation."""
    cells = [json.loads(line) for line in lines]
    played = {cell["operation"] for cell in cells}
    operations = [operation for operation in OPERATIONS if operation in played]
    families: dict[str, dict[str, str]] = defaultdict(dict)
    for cell in cells:
        families[cell["family"]][cell["operation"]] = CODES.get(cell["verdict"], CRASH)
    rows = {
        family: "".join(row.get(operation, ABSENT) for operation in operations)
        for family, row in families.items()
    }
    return {"release": cells[0]["release"], "operations": operations, "families": rows}


def picture(operations: list[str], families: Mapping[str, str]) -> str:
    """A row for all families with the same verdicts; those of most families come first."""
    alike: dict[str, list[str]] = defaultdict(list)
    for family, row in families.items():
        alike[row].append(family)
    order = sorted(alike.items(), key=lambda each: (-len(each[1]), each[1]))
    width, height = LEFT + CELL * len(operations) + 60, TOP + CELL * len(order) + 30
    parts = [f'<div class="families"><svg viewBox="0 0 {width} {height}" role="img">']
    parts.append("<title>Verdicts of each family and operation</title>")
    for column, name in enumerate(operations):
        x = LEFT + CELL * column + 12
        parts.append(f'<text transform="translate({x} {TOP - 6}) rotate(-60)">{name}</text>')
    for row, (codes, names) in enumerate(order):
        y = TOP + CELL * row
        label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        parts.append(
            f'<g><title>{escape(", ".join(names))}</title><text y="{y + 12}">{label}</text>'
        )
        for column, code in enumerate(codes):
            if code != ABSENT:
                parts.append(
                    f'<rect class="{code}" x="{LEFT + CELL * column}" y="{y}" width="15"'
                    ' height="15"/>'
                )
        parts.append("</g>")
    for place, (code, words) in enumerate(LEGEND.items()):
        x, y = 100 * place + 120 * (place > 1), height - 18
        parts.append(f'<rect class="{code}" x="{x}" y="{y}" width="15" height="15"/>')
        parts.append(f'<text x="{x + 20}" y="{y + 12}">{words}</text>')
    return "\n".join((STYLE, *parts, "</svg></div>", ""))


def courses() -> dict[str, str]:
    """The verdicts of each report's operation, from release to release."""
    rows: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with REPORTS.open(newline="", encoding="utf-8") as table:
        for each in csv.DictReader(table):
            name = f"#{each['report']}, {each['family']}, {each['operation']}"
            rows[name].append((each["release"].rpartition(".")[0], each["verdict"]))
    return {name: course(verdicts) for name, verdicts in rows.items()}


def keep_causes(lines: list[str]) -> None:
    """Add verdicts of causes to those that are kept."""
    kept = {(*shown, release): verdict for shown, release, verdict in _causes_kept()}
    for each in map(json.loads, lines):
        if (each["family"], each["operation"]) in SHOWN:
            kept[each["family"], each["operation"], each["release"]] = each["verdict"]
    order = {shown: number for number, shown in enumerate(SHOWN)}
    rows = sorted(kept.items(), key=lambda each: (order[each[0][:2]], numbers(each[0][2])))
    with CAUSES.open("w", newline="", encoding="utf-8") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("family", "operation", "release", "verdict"))
        writer.writerows((*key, verdict) for key, verdict in rows)


def _causes_kept() -> Iterator[tuple[tuple[str, str], str, str]]:
    with CAUSES.open(newline="", encoding="utf-8") as table:
        for each in csv.DictReader(table):
            yield (each["family"], each["operation"]), each["release"], each["verdict"]


def courses_of_causes() -> dict[str, str]:
    """The verdicts of each cause's example, from release to release."""
    rows: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for (family, operation), release, verdict in _causes_kept():
        rows[f"{family}, {operation}"].append((release.rpartition(".")[0], verdict))
    return {name: course(verdicts) for name, verdicts in rows.items()}


def numbers(release: str) -> tuple[int, ...]:
    """The numbers of a release, for an order."""
    return tuple(map(int, release.split(".")))


def course(verdicts: list[tuple[str, str]]) -> str:
    """Releases with one verdict after another as one range."""
    parts = []
    for verdict, group in groupby(verdicts, key=lambda each: each[1]):
        releases = [release for release, _ in group]
        last = f" to {releases[-1]}" if len(releases) > 1 else ""
        parts.append(f"{releases[0]}{last} {verdict}")
    return ", ".join(parts)


def drawn() -> str:
    """The picture of the verdicts that are kept."""
    kept = json.loads(VERDICTS.read_text(encoding="utf-8"))
    return picture(kept["operations"], kept["families"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--causes"]:
        for name in sys.argv[2:]:
            keep_causes(Path(name).read_text(encoding="utf-8").splitlines())
    elif sys.argv[1:]:
        lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
        VERDICTS.write_text(json.dumps(compact(lines), indent=1) + "\n", encoding="utf-8")
    PICTURE.write_text(drawn(), encoding="utf-8")
