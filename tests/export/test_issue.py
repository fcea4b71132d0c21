"""A scenario as a report in the project's own form."""

import re

import pytest

from cachesim.export.case import Case, case_of
from cachesim.export.issue import issue_of, patch_of
from cachesim.scenario.shipped import load_all


def case(name: str, release: str = "") -> Case:
    [(_, scenario)] = load_all([name])
    return case_of(scenario, release)


REPORTED = {
    "llama.cpp-two-codes": "### Problem description & steps to reproduce",
    "ik_llama.cpp-1332-shorter-request": "### What happened?",
    "vllm-40696-below-one-block": "### 🐛 Describe the bug",
    "mlx-lm-1215-exact-hit": "### Describe the bug",
}


@pytest.mark.parametrize(("name", "heading"), REPORTED.items())
def test_a_report_has_the_headings_of_the_projects_form(name: str, heading: str) -> None:
    text = issue_of(case(name))

    assert heading in text
    assert "cachesim" not in text.lower()
    assert "Expected: " in text
    assert "Got: " in text


def test_a_report_repeats_the_requests_as_curl() -> None:
    text = issue_of(case("llama.cpp-24143-load-consumes-entry-hybrid"))

    assert re.search(r"^S=\$\(span \d+ 500\)$", text, re.MULTILINE)
    assert 'localhost:8080/completion -d "{\\"prompt\\": [$S, $a]' in text


def test_a_release_with_a_change_laid_over_it_is_not_accused() -> None:
    with pytest.raises(Exception, match="a report names a release"):
        issue_of(case("vllm-29387-same-prompt-in-one-step"))


def test_a_release_that_does_as_expected_is_not_accused() -> None:
    with pytest.raises(Exception, match="nothing to report"):
        issue_of(case("llama.cpp-two-codes", "b10809"))


def test_a_patch_is_its_place_and_its_conditions() -> None:
    text = patch_of(case("llama.cpp-two-codes"))

    assert "tools/server/server-context.cpp of b11549" in text
    assert "- `reuse.erasure`: beyond -> pos_end" in text
