"""The picture of Transformers' families is that of the verdicts beside it."""

import json
import re
import subprocess

import make_transformers
import pytest

from cachesim.lab.real.transformers.environments import NEWEST, environment_for
from cachesim.lab.real.transformers.scripts import OPERATIONS

CELL = {"release": "5.23.0", "family": "a", "operation": "crop", "verdict": "wrong"}


def test_the_picture_has_the_verdicts_of_its_operations_in_the_newest_release() -> None:
    kept = json.loads(make_transformers.VERDICTS.read_text(encoding="utf-8"))

    assert (NEWEST, list(OPERATIONS)) == (kept["release"], kept["operations"])
    assert make_transformers.drawn() == make_transformers.PICTURE.read_text(encoding="utf-8")


def test_the_page_has_the_counts_of_the_verdicts() -> None:
    families = json.loads(make_transformers.VERDICTS.read_text(encoding="utf-8"))["families"]
    letters = "".join(families.values()).replace(make_transformers.ABSENT, "")
    page = make_transformers.PICTURE.with_suffix(".md").read_text(encoding="utf-8")

    assert f"{len(families)} families, {len(letters):,} scripts" in page
    assert f"{letters.count('r'):,} are right, {letters.count('w'):,} silently wrong" in page


def test_families_with_the_same_verdicts_have_one_row() -> None:
    cells = [CELL, CELL | {"family": "b"}, CELL | {"family": "c", "verdict": "right"}]
    kept = make_transformers.compact([json.dumps(each) for each in cells])

    assert {"a": "w", "b": "w", "c": "r"} == kept["families"]
    text = make_transformers.picture(["crop"], {"a": "w", "b": "w", "c": "r"})
    assert "<title>a, b</title>" in text
    assert ">a and 1 more</text>" in text
    assert 2 == text.count('class="w"')  # a cell, and one of the legend


@pytest.mark.wheel
@pytest.mark.skipif(not environment_for(NEWEST).is_ready(), reason="torch is not installed")
def test_the_program_of_the_page_prints_what_the_page_says() -> None:
    page = make_transformers.PICTURE.with_suffix(".md").read_text(encoding="utf-8")
    [program] = re.findall(r"```py\n(.*?)```", page, flags=re.DOTALL)
    printed = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)[-1]
    command = [environment_for(NEWEST).python, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert printed == done.stdout
