"""Every report that was looked at has a scenario, or a reason why it has none."""

import re
from pathlib import Path
from typing import Final

from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_files

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parents[1] / "docs" / "out-of-reach.md"
REPORTS: Final = frozenset((HERE / "reports.txt").read_text().split())


def cited() -> set[str]:
    sources = [load(file).source for file in shipped_files()]
    return {each for source in sources for each in (source.issue, *source.also) if each}


def without_scenario() -> list[str]:
    return re.findall(r"^\| ([\w./-]+#\d+) \|", PAGE.read_text(), flags=re.MULTILINE)


def test_no_report_is_forgotten() -> None:
    assert set() == REPORTS - cited() - set(without_scenario())


def test_the_page_names_only_reports_without_a_scenario() -> None:
    assert set() == cited() & set(without_scenario())
    assert set() == set(without_scenario()) - REPORTS


def test_each_report_stands_once() -> None:
    assert sorted(set(without_scenario())) == sorted(without_scenario())
