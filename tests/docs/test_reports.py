"""Every report that was collected has a scenario, or a reason why it has none."""

import re
from pathlib import Path
from typing import Final

import pytest
from pages.collected import COLLECTIONS, READINGS, THREADS, Collected, collected, counts
from pages.gallery import card, page, playground_link
from report_rows import all_followed, touched

from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_file, shipped_files

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "out-of-reach.md"

REPORTS: Final = {each.issue for each in collected()}
READ: Final = {
    "first": {"agrees": 112, "in part": 17, "none": 38},
    "newer": {"agrees": 20, "in part": 7, "none": 14},
    "autumn": {"agrees": 32, "in part": 10, "none": 12},
}
"""The numbers of reports confirmed by a second reader, in part, and without a scenario; each
standing is counted for itself, and a change that moves a report from one to another says so
here."""


def sources() -> dict[str, set[str]]:
    """The reports that each scenario cites."""
    found = {file.stem: load(file).source for file in shipped_files()}
    return {name: {source.issue, *source.also} - {""} for name, source in found.items()}


def without_scenario() -> list[str]:
    rows = re.findall(r"^\| ([\w./-]+#\d+(?:, [\w./-]+#\d+)*) \|", PAGE.read_text(), re.MULTILINE)
    return [part for row in rows for part in row.split(", ")]


def test_no_report_is_forgotten() -> None:
    shown = {each.issue for each in collected() if each.scenario}

    assert REPORTS - shown == set(without_scenario())


def test_each_report_stands_once() -> None:
    assert sorted(set(without_scenario())) == sorted(without_scenario())
    names = [each.report for each in collected()]
    assert sorted(set(names)) == sorted(names)


def test_a_report_is_cited_by_the_scenario_that_shows_it() -> None:
    cited = sources()

    assert [] == [
        each.report
        for each in collected()
        if each.scenario and each.issue not in cited.get(each.scenario, set())
    ]


def test_nothing_is_cited_that_is_not_shown() -> None:
    shown = {each.issue for each in collected() if each.scenario}
    cited = {issue for issues in sources().values() for issue in issues}

    assert set() == (cited & REPORTS) - shown


def test_what_is_shown_was_read_beside_its_report_or_says_that_it_was_not() -> None:
    for each in collected():
        assert (each.agrees in READINGS) == bool(each.scenario), each.report
        assert (len(each.note.split()) > 2) == bool(each.scenario), each.report


def test_the_collections_are_counted_apart() -> None:
    found = counts()

    assert {"first": 167, "newer": 41, "autumn": 54} == {
        name: found[name].total() for name in COLLECTIONS
    }
    assert {name: dict(each) for name, each in found.items()} == READ


def test_evidence_and_last_release_follow_from_what_the_real_engines_said() -> None:
    assert all_followed() == list(collected())
    assert {each.thread for each in collected()} == set(THREADS)


def test_what_a_patch_does_is_never_called_confirmed() -> None:
    patched = [
        each
        for each in collected()
        if each.scenario and "+" in load(shipped_file(each.scenario)).shows.before.profile
    ]

    assert len(patched) > 10
    assert {"source only, not run"} == {each.evidence for each in patched}


NOTES: Final = "Retain one alignment block (#57613). Rows are moved later (/pull/1)."


def test_the_notes_of_a_release_name_rows_to_read_again() -> None:
    found = [(each.report, reason) for reason, each in touched("vllm", NOTES)]
    later = [reason for _, reason in found[1:]]

    assert ("vllm-project/vllm#57610", "the notes name #57613") == found[0]
    assert all(each.startswith("fixed in no release, last checked against") for each in later)
    assert "vllm-project/vllm#45407" not in {report for report, _ in found}


@pytest.mark.thorough
def test_the_gallery_has_a_card_for_every_scenario() -> None:
    text = page()

    assert [] == [file.stem for file in shipped_files() if f'id="{file.stem}"' not in text]
    assert [] == [each.report for each in collected() if each.scenario and thread(each) not in text]


def thread(report: Collected) -> str:
    """The end of the address of a report's thread."""
    found = re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", report.issue)
    return f"github.com/{found[1]}/issues/{found[2]}" if found else report.issue


def test_a_card_has_picture_symptom_releases_label_and_links() -> None:
    text = card(load(shipped_file("llama.cpp-three-requests")), [])

    assert "<br><b>wrong answer</b><br>" in text
    assert "<code>b9538</code>, not <code>b11549+erase-equal</code>" in text
    assert "<code>llama.cpp-three-requests</code>" in text
    assert "<br>confirmed</p>" in text
    assert text.count('<rect class="new"') == 3
    assert text.count('<rect class="bad"') == 1
    assert 'href="reports/llama.cpp-three-requests.html"' in text


def test_a_link_to_the_playground_names_scenario_and_profile() -> None:
    link = playground_link(load(shipped_file("llama.cpp-three-requests")))

    assert "playground/index.html#scenario=llama.cpp-three-requests&profile=b9538" == link
