"""Every shipped scenario exported, and its test run red and green.

    python -m conformance.exported [ENGINE ...] [--only NAME] [--table docs/exports.csv]

Writes a row for each scenario: the form, what the test asserts, the releases on which it failed and
passed, or the reason why there is no such test. Rows of engines that are not named are kept.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path

from cachesim.errors import CachesimError
from cachesim.export.case import Case, case_of
from cachesim.export.forms import form_of
from cachesim.export.issue import issue_of
from cachesim.export.proof import Ran, prove
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import load_all, shipped_files

TABLE = Path(__file__).parent.parent / "docs" / "exports.csv"
HEADS = ("scenario", "form", "asserts", "fails on", "passes on", "why")


def main() -> int:
    """The exit status: 1 if a test that was run did not do what the simulation says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--table", type=Path, default=TABLE)
    given = parser.parse_args()
    table: dict[str, dict[str, str]] = {}
    if given.table.exists():
        with given.table.open(newline="", encoding="utf-8") as file:
            table = {row["scenario"]: row for row in csv.DictReader(file)}
    wrong = 0
    for path in shipped_files():
        [(_, scenario)] = load_all([str(path)])
        if given.engines and scenario.engine.name not in given.engines:
            continue
        if given.only and given.only not in scenario.name:
            continue
        row = dict(zip(HEADS, (scenario.name, *row_of(scenario)), strict=True))
        wrong += row["why"].startswith("not as simulated")
        table[scenario.name] = row
        sys.stdout.write(f"{', '.join(row.values())}\n")
        sys.stdout.flush()
        with given.table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, HEADS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(table[name] for name in sorted(table))
    return int(wrong > 0)


def row_of(scenario: Scenario) -> Iterator[str]:
    """The form of a scenario's export, its law, where it fails and passes, and why not."""
    try:
        case = case_of(scenario)
    except CachesimError as error:
        yield from ("none", "", "", "", str(error).removeprefix(f"{scenario.name}: "))
        return
    try:
        form = form_of(case, "test")
        text = form.write(case)
    except CachesimError as error:
        yield from (
            _reported(case),
            case.law,
            "",
            "",
            str(error).removeprefix(f"{scenario.name}: "),
        )
        return
    proof = prove(case, text)
    missed = [
        f"{ran.profile} {ran.result}"
        for ran, wanted in ((proof.red, "fails"), (proof.green, "passes"))
        if ran is not None and ran.result != wanted
    ]
    why = f"not as simulated: {', '.join(missed)}" if missed else proof.left_out(case)
    yield from (form.kind, case.law, _on(proof.red, "fails"), _on(proof.green, "passes"), why)


def _reported(case: Case) -> str:
    try:
        issue_of(case)
    except CachesimError:
        return "none"
    return "issue"


def _on(ran: Ran | None, wanted: str) -> str:
    return str(ran.profile) if ran is not None and ran.result == wanted else ""


if __name__ == "__main__":
    sys.exit(main())
