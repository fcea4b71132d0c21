"""The table for programs that read test results: JUnit XML, and SARIF for code scanning."""

from cachesim import suites
from cachesim.conform.laws import LAWS, Verdict
from cachesim.conform.result import Examined, Table, evidence
from cachesim.suites import Case, Failure, Suite


def junit(table: Table) -> str:
    """A test suite for each model, and a test for each law."""
    return suites.junit("cachesim conform", [*map(_suite, table.columns)])


def sarif(table: Table) -> str:
    """A rule for each law, and a result for each violation."""
    rules = {law.name: law.sentence for law in LAWS.values()}
    return suites.sarif([*map(_suite, table.columns)], rules)


def _suite(column: Examined) -> Suite:
    return Suite(
        name=f"{column.server} {column.model}",
        model=column.model,
        cases=tuple(_case(column, verdict) for verdict in column.verdicts),
        seconds=column.seconds,
    )


def _case(column: Examined, verdict: Verdict) -> Case:
    asked = not verdict.status.startswith("not")
    return Case(
        name=verdict.law,
        failures=tuple(
            Failure(sentence=finding.sentence, evidence=evidence(finding))
            for finding in verdict.findings
        ),
        skipped="" if asked else f"{verdict.status}: {verdict.reason}",
        file=next((file for file in column.files if file.suffix == ".md"), None),
    )
