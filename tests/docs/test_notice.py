"""NOTICE names what the ports follow: each engine, with its releases."""

import re
from pathlib import Path

import pytest

from cachesim.engines import FAMILIES

NOTICE = (Path(__file__).parents[2] / "NOTICE").read_text()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_notice_names_each_engine_with_its_oldest_and_newest_release(name: str) -> None:
    family = FAMILIES[name]
    lines = (row for row in NOTICE.splitlines() if f"  {family.repository}  " in row)
    oldest, newest = family.releases[0].name, family.releases[-1].name

    line = next(row for row in lines if name == "marconi" or (oldest in row and newest in row))
    assert re.search(r"(MIT|Apache-2\.0|AGPL-3\.0|CC-BY-NC-4\.0)$", line)
