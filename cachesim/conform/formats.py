"""The table for programs that read test results: JUnit XML, and SARIF for code scanning."""

import json
from typing import Final
from xml.etree import ElementTree as ET

from cachesim.conform.laws import LAWS
from cachesim.conform.result import Examined, Table, evidence
from cachesim.printable import printable
from cachesim.typed import JsonObject

SARIF: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def junit(table: Table) -> str:
    """A test suite for each model, and a test for each law."""
    root = ET.Element("testsuites", name="cachesim conform")
    for column in table.columns:
        status = [verdict.status for verdict in column.verdicts]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=printable(f"{column.server} {column.model}"),
            tests=str(len(status)),
            failures=str(status.count("violated")),
            skipped=str(sum(one.startswith("not") for one in status)),
            time=f"{column.seconds:.1f}",
        )
        for verdict in column.verdicts:
            test = ET.SubElement(suite, "testcase", name=verdict.law, classname=column.model)
            for finding in verdict.findings:
                failure = ET.SubElement(test, "failure", message=printable(finding.sentence))
                failure.text = printable(evidence(finding))
            if verdict.status.startswith("not"):
                ET.SubElement(
                    test, "skipped", message=printable(f"{verdict.status}: {verdict.reason}")
                )
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def sarif(table: Table) -> str:
    """A rule for each law, and a result for each violation."""
    results = [
        {
            "ruleId": verdict.law,
            "level": "error",
            "message": {"text": f"{column.server}, {column.model}: {evidence(finding)}"},
            "locations": [_place(column)],
        }
        for column in table.columns
        for verdict, finding in column.findings
    ]
    rules = [{"id": law.name, "shortDescription": {"text": law.sentence}} for law in LAWS.values()]
    driver = {"name": "cachesim", "rules": rules}
    found = {
        "$schema": SARIF,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
    return json.dumps(found, indent=1)


def _place(column: Examined) -> JsonObject:
    """The report of a violation; a server's own source is not known here."""
    report = next((file for file in column.files if file.suffix == ".md"), None)
    where: JsonObject = {
        "logicalLocations": [{"name": f"{column.server} {column.model}", "kind": "module"}]
    }
    if report is not None:
        where["physicalLocation"] = {"artifactLocation": {"uri": report.as_posix()}}
    return where
