"""Keeps `docs/reports.csv` true, and names the rows that a new release may have changed.

    python docs/report_rows.py --accept             # the columns that follow from other files
    python docs/report_rows.py vllm notes.md        # which rows to read again, by release notes

Columns `evidence` and `checked` follow from the scenarios and from `docs/wheels.csv`: how far what
`[shows]` claims is confirmed, of a patch never, and the newest release on which the real engine
agreed, or the newest one that was simulated where none was played. A row is to be read again if
the notes of a release name its thread, a kin of it, or the pull request of a patch that its
scenario plays. Rows of the engine that are not fixed in any release come next: any release may
have fixed them.
"""

import csv
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Final

from pages.collected import DOCS, Collected, collected, wheels

from cachesim.engines import FAMILIES
from cachesim.scenario import Scenario, full_profile, load
from cachesim.scenario.labels import CONFIRMED, SOURCE, label_of
from cachesim.scenario.shipped import shipped_files

NEWEST_LAST: Final[Mapping[str, Sequence[str]]] = {
    name: family.names() for name, family in FAMILIES.items()
}


def followed(
    row: Collected, scenario: Scenario | None, played: Sequence[dict[str, str]]
) -> Collected:
    """A row with the columns that follow from its scenario and from the real engines' results."""
    if scenario is None:
        return replace(row, evidence="", checked="")
    engine = scenario.engine.name
    agreed = {
        full_profile(engine, each["release"]).release
        for each in played
        if each["result"] == "agrees"
    }
    simulated = {full_profile(engine, each).release for each in scenario.engine.profiles}
    releases = NEWEST_LAST[engine]
    checked = max(agreed or simulated, key=releases.index)
    before = scenario.shows.before
    profile = full_profile(engine, before.profile) if before.profile else None
    if profile is not None and profile.patches:
        evidence = SOURCE
    elif profile is not None and (before.answer not in {None, "same"} or before.error is not None):
        evidence = label_of(scenario, profile, before.step) or SOURCE
    else:
        evidence = CONFIRMED if agreed else SOURCE
    return replace(row, evidence=evidence, checked=checked)


def all_followed() -> list[Collected]:
    """Every row with the columns that follow."""
    files = {file.stem: load(file) for file in shipped_files()}
    played = wheels()
    return [
        followed(each, files.get(each.scenario), played.get(each.scenario, []))
        for each in collected()
    ]


def write(rows: Sequence[Collected]) -> None:
    """Write the table, in its order."""
    with (DOCS / "reports.csv").open("w", newline="", encoding="utf-8") as table:
        names = [field.name for field in fields(Collected)]
        writer = csv.DictWriter(table, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def numbers_of(row: Collected, scenario: Scenario) -> set[str]:
    """The threads and pull requests of a row."""
    source, engine = scenario.source, scenario.engine
    patches = "+".join(engine.profiles).split("+")
    texts = (row.issue, source.issue, *source.also, source.note, scenario.about)
    found = {number for text in texts for number in re.findall(r"#(\d{2,6})\b", text)}
    return found | {patch for patch in patches if patch.isdigit()}


def touched(engine: str, notes: str) -> Iterator[tuple[str, Collected]]:
    """Rows of an engine that a release may have changed, with the reason; named ones first."""
    named = set(re.findall(r"(?:#|/pull/|/issues/)(\d{2,6})\b", notes))
    files = {file.stem: load(file) for file in shipped_files()}
    rows = [(each, files[each.scenario]) for each in collected() if each.scenario]
    own = [(row, scenario) for row, scenario in rows if scenario.engine.name == engine]
    for row, scenario in own:
        both = sorted(numbers_of(row, scenario) & named, key=int)
        if both:
            yield f"the notes name #{', #'.join(both)}", row
    for row, scenario in own:
        after = scenario.shows.after.profile
        if not numbers_of(row, scenario) & named and (not after or "+" in after):
            yield f"fixed in no release, last checked against {row.checked}", row


def main(arguments: Sequence[str]) -> int:
    """Write the columns, or print the rows to read again; 2 for wrong words."""
    if list(arguments) == ["--accept"]:
        write(all_followed())
        return 0
    if not arguments or arguments[0] not in FAMILIES or len(arguments) > 2:
        sys.stdout.write(
            f"write --accept, or an engine and a file of notes: {', '.join(FAMILIES)}\n"
        )
        return 2
    notes = Path(arguments[1]).read_text("utf-8") if len(arguments) == 2 else ""
    for reason, row in touched(arguments[0], notes):
        sys.stdout.write(f"{row.report:40} {row.scenario:50} {reason}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
