"""The table of small scopes is that of its numbers, and has every release."""

from typing import Any

import make_scopes
import pytest

from cachesim.engines.family import FAMILIES, Profile
from cachesim.testing.scope import WholeScope

LINES = make_scopes.PAGE.numbers()["lines"]


def search(**changes: Any) -> dict[str, Any]:
    scope = {"whole": True, "requests": 2}
    found = {
        "profile": "marconi@paper",
        "model": "hybrid",
        "workloads": 9,
        "seconds": 1.5,
        "failed": {"wrong answer": 1},
        "findings": [{"evidence": "source only, not run"}],
        "scope": scope,
    }
    return found | changes


def test_the_table_is_that_of_its_numbers() -> None:
    assert make_scopes.PAGE.is_current()


def test_every_release_has_a_line() -> None:
    releases = [f"{name}@{each}" for name in FAMILIES for each in FAMILIES[name].names()]

    assert releases == [each["profile"] for each in LINES]


def test_every_failure_has_its_evidence() -> None:
    assert [bool(each["failed"]) for each in LINES] == [bool(each["evidence"]) for each in LINES]


@pytest.mark.parametrize("line", LINES[::9], ids=lambda line: line["profile"])
def test_a_line_counts_the_workloads_of_today(line: dict[str, Any]) -> None:
    profile = Profile.parse(line["profile"])
    scope = WholeScope(profile=profile, model=line["model"], requests=line["requests"])

    assert line["workloads"] == scope.count()


def test_a_scope_that_is_not_whole_has_no_line() -> None:
    with pytest.raises(ValueError, match="the scope of marconi@paper was run whole"):
        make_scopes.line_of(search(scope={"whole": False, "requests": 2}))


def test_a_new_line_replaces_that_of_its_release() -> None:
    old = make_scopes.line_of(search(workloads=8))
    other = make_scopes.line_of(search(profile="marconi@artifact"))

    (first, second) = make_scopes.merged([old, other], [make_scopes.line_of(search())])

    assert ("marconi@artifact", "marconi@paper", 9) == (
        first["profile"],
        second["profile"],
        second["workloads"],
    )
    assert "| marconi@paper | 9 | 1.5 | wrong answer 1 | source |" in (
        make_scopes.written({"lines": [second]})
    )
