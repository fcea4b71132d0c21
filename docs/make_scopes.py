"""Writes the table of small scopes from the output of `cachesim check --scope`, engine by engine.

    cachesim check vllm@0.32.0 vllm@0.33.0 --scope 3 --all --jobs 1 --format json > vllm.json
    python docs/make_scopes.py vllm.json ...

Lines of a file replace those of the same release; the others are kept. Without a file the table is
written again from the numbers that are kept beside it.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from measured import Measured, hold

from cachesim.engines.family import FAMILIES, Profile, family_of
from cachesim.scenario.labels import CONFIRMED, DERIVED, SOURCE
from cachesim.typed import Json

HEAD: Final = ("release", "workloads", "seconds", "failed", "evidence")
SHORT: Final = {CONFIRMED: "confirmed", DERIVED: "derived", SOURCE: "source"}
"""Labels of evidence in cells; the text above the table has them whole."""


def line_of(search: Mapping[str, Json]) -> dict[str, Json]:
    """The row of a search; an incomplete one has none."""
    scope, profile = search["scope"], search["profile"]
    hold(fact=bool(scope and scope["whole"]), what=f"the scope of {profile} was run whole")
    return {
        "profile": profile,
        "model": search["model"],
        "requests": scope["requests"],
        "workloads": search["workloads"],
        "seconds": search["seconds"],
        "failed": search["failed"],
        "evidence": sorted(
            {finding["evidence"] for finding in search["findings"] if finding["evidence"]}
        ),
    }


def merged(kept: Sequence[Json], new: Sequence[Json]) -> list[Json]:
    """One line for each release, engines and releases in the order of their families."""
    by_profile = {each["profile"]: each for each in (*kept, *new)}
    engines = list(FAMILIES)

    def place(name: str) -> tuple[int, int]:
        profile = Profile.parse(name)
        names = family_of(profile.engine).names()
        return engines.index(profile.engine), names.index(profile.release)

    return [by_profile[each] for each in sorted(by_profile, key=place)]


def _result(line: Mapping[str, Json]) -> tuple[Json, ...]:
    """All columns but the seconds; consecutive releases with equal results share a row."""
    engine = line["profile"].partition("@")[0]
    return engine, line["model"], line["workloads"], line["failed"], line["evidence"]


def _cells(lines: Sequence[Mapping[str, Json]]) -> Iterator[str]:
    first, last = lines[0], lines[-1]
    names = first["profile"]
    if first is not last:
        names += f" to {last['profile'].partition('@')[2]}"
    yield names if first["model"] == "hybrid" else f"{names}, {first['model']}"
    yield f"{first['workloads']:,}"
    seconds = sorted({f"{line['seconds']:.1f}" for line in lines}, key=float)
    yield seconds[0] if len(seconds) == 1 else f"{seconds[0]} to {seconds[-1]}"
    yield ", ".join(f"{kind} {count:,}" for kind, count in sorted(first["failed"].items()))
    yield ", ".join(SHORT[label] for label in first["evidence"])


def written(told: Json) -> str:
    """The table."""
    rows = ["| " + " | ".join(HEAD) + " |", "|---|" + "---:|" * 2 + "---|---|"]
    for _, group in groupby(told["lines"], key=_result):
        rows.append("| " + " | ".join(_cells(list(group))) + " |")
    total = sum(line["workloads"] for line in told["lines"])
    said = f"{total:,} workloads in all, in one process."
    said += " Releases in one row had equal results; the row counts one of them."
    return "\n".join((said, "", *rows))


def main(files: Sequence[str]) -> None:
    """Write the table, with the searches of these files."""
    kept = PAGE.numbers()["lines"]
    for file in files:
        searches = json.loads(Path(file).read_text(encoding="utf-8"))["searches"]
        kept = merged(kept, list(map(line_of, searches)))
    PAGE.keep({"lines": kept})


PAGE: Final = Measured(name="scopes", maker="make_scopes.py", written=written)

if __name__ == "__main__":
    main(sys.argv[1:])
