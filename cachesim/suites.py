"""Results for programs that read those of tests: JUnit XML, and SARIF for code scanning.

A command states what it did as suites of cases; the two formats are here and nowhere else.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from cachesim.printable import printable
from cachesim.typed import JsonObject

SARIF: Final = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a case has shown: a sentence, and its evidence."""

    sentence: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that was asked. It passes without failures, and with those that are known."""

    name: str
    failures: tuple[Failure, ...] = ()
    skipped: str = ""  # why it was not asked
    known: bool = False  # a baseline has the failures
    file: Path | None = None  # the report of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The cases of one subject, such as a server with a model."""

    name: str
    model: str
    cases: tuple[Case, ...]
    seconds: float = 0.0


def junit(program: str, suites: Sequence[Suite]) -> str:
    """A test suite for each subject, and a test for each case."""
    root = ET.Element("testsuites", name=program)
    for each in suites:
        suite = ET.SubElement(
            root,
            "testsuite",
            name=printable(each.name),
            tests=str(len(each.cases)),
            failures=str(sum(bool(case.failures) and not case.known for case in each.cases)),
            skipped=str(sum(bool(case.skipped) for case in each.cases)),
            time=f"{each.seconds:.1f}",
        )
        for case in each.cases:
            test = ET.SubElement(suite, "testcase", name=printable(case.name), classname=each.model)
            for failure in case.failures:
                if case.known:
                    ET.SubElement(test, "system-out").text = printable(failure.evidence)
                    continue
                failed = ET.SubElement(test, "failure", message=printable(failure.sentence))
                failed.text = printable(failure.evidence)
            if case.skipped:
                ET.SubElement(test, "skipped", message=printable(case.skipped))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def sarif(suites: Sequence[Suite], rules: Mapping[str, str], *, compared: bool = False) -> str:
    """A rule for each name with its sentence, and a result for each failure.

    `compared` with a baseline, each result says whether it is new.
    """
    results = [
        {
            "ruleId": case.name,
            "level": "note" if case.known else "error",
            "message": {"text": f"{suite.name}: {failure.evidence}"},
            "locations": [_place(suite, case)],
        }
        | ({"baselineState": "unchanged" if case.known else "new"} if compared else {})
        for suite in suites
        for case in suite.cases
        for failure in case.failures
    ]
    listed = [{"id": name, "shortDescription": {"text": text}} for name, text in rules.items()]
    driver = {"name": "cachesim", "rules": listed}
    found = {
        "$schema": SARIF,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(found, indent=1)


def _place(suite: Suite, case: Case) -> JsonObject:
    """The report of a failure; a server's own source is not known here."""
    where: JsonObject = {"logicalLocations": [{"name": suite.name, "kind": "module"}]}
    if case.file is not None:
        where["physicalLocation"] = {"artifactLocation": {"uri": case.file.as_posix()}}
    return where
