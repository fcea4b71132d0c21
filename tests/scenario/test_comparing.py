"""One workload on all engines: the rows that were measured on the engines' own classes."""

import json
from pathlib import Path
from typing import Final

import pytest

from cachesim.cli.main import main
from cachesim.engines import FAMILIES
from cachesim.errors import ScenarioError
from cachesim.scenario.comparing import BOUND, Row, compare, newest
from cachesim.scenario.files import load
from cachesim.scenario.format import Model
from cachesim.scenario.rows import policies, read
from cachesim.scenario.shipped import shipped_file

POLICIES: Final = policies()
HYBRID: Final = Model(preset="hybrid")
TRACE: Final = load(shipped_file("sglang-one-trace"))

MEASURED: Final = (
    (0, 199, 202, 150, 150, 199, 255),  # the bound
    (0, 199, 202, 150, 150, 199, 255),
    (0, 192, 192, 144, 144, 192, 240),
    (0, 192, 192, 144, 144, 192, 240),
    (0, 192, 192, 144, 144, 192, 240),
    (0, 192, 192, 0, 0, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 0, 192, 240),
    (0, 192, 192, 0, 0, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 144, 192, 240),
    (0, 192, 192, 0, 128, 192, 192),
    (0, 192, 192, 0, 128, 192, 192),
    (0, 192, 192, 0, 128, 192, 240),
    (0, 176, 176, 0, 0, 176, 224),
    (0, 0, 0, 0, 0, 0, 0),
    (0, 0, 176, 0, 128, 128, 176),
    (0, 176, 176, 0, 128, 176, 224),
    (0, 176, 176, 0, 128, 176, 224),
    (0, 192, 192, 0, 144, 192, 240),  # not measured: no wheel has the fixes
    (0, 0, 202, 0, 0, 0, 255),
    (0, 192, 192, 0, 128, 128, 192),
    (0, 0, 203, 0, 150, 150, 256),
    (0, 0, 202, 0, 150, 150, 255),
)
"""Every policy's hits, row by row; the last two are Marconi's, as in its artifact and as it should
be counted.
"""


def test_every_policy_reuses_what_was_measured() -> None:
    found = list(compare(TRACE, POLICIES, arithmetic="counts"))

    assert [BOUND, *(row.name for row in POLICIES)] == [each.name for each in found]
    assert MEASURED == tuple(each.cached for each in found)


def test_what_was_lost_adds_up_to_the_bound() -> None:
    bound, *found = compare(TRACE, POLICIES[:3] + POLICIES[-4:-2], arithmetic="counts")
    last_token_rule = 2  # of the two prompts that were sent again
    for each in found:
        assert bound.reused - each.reused == sum(each.lost.values()) - last_token_rule


def test_answers_are_judged_and_bytes_are_counted() -> None:
    rows = (
        Row(name="right", profile="sglang@0.5.23", model=HYBRID),
        Row(name="wrong", profile="sglang@0.5.23+no-29368", model=HYBRID),
    )
    _, right, wrong = compare(TRACE, rows)

    assert (0, True) == (right.wrong, (right.bytes or 0) > 0)
    assert wrong.wrong is not None
    assert wrong.wrong > 0


def test_all_engines_are_rows_and_what_cannot_be_played_says_why() -> None:
    assert set(FAMILIES) == {row.profile.partition("@")[0] for row in newest()}
    rows = (Row(name="x", profile="sglang@0.5.23", options={"page_size": 0}),)
    [found] = compare(TRACE, rows)
    assert "page_size" in found.problem


def test_the_command_prints_json_and_a_row_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "sglang-one-trace", "--row", "sglang@0.5.23,page_size=64"]

    assert 0 == main([*words, "--arithmetic", "counts", "--format", "json"])
    told = json.loads(capsys.readouterr().out)

    assert BOUND == told["rows"][0]["name"]
    assert 1155 == told["rows"][0]["reused"]
    assert "sglang@0.5.23,page_size=64" == told["rows"][-1]["name"]


def test_the_command_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "compared.svg"

    assert 0 == main(["compare", "sglang-one-trace", "--arithmetic", "counts", "--plot", str(file)])

    drawn = file.read_text()
    assert "sglang@0.5.23" in drawn
    assert "832 of 1,559" in drawn
    assert BOUND in capsys.readouterr().out


def test_the_table_fits_into_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["compare", "sglang-one-trace", "--arithmetic", "counts"])
    lines = capsys.readouterr().out.splitlines()
    assert any("against the bound" in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"write one or more \[\[row\]\]"),
        ("row = 3", r"write one or more \[\[row\]\]"),
        ("[[row]]\nname = 'x'", "row 1: profile is missing"),
        ("[[row]]\nname = 'x'\nprofile = 'y'\nsize = 3", "row 1: there is no 'size'"),
        ("[[row]]\nname = 'x'\nprofile = 'y'\nmodel = {width = 3}", "takes preset and window"),
        ("[[row]", "Expected"),
    ],
)
def test_a_wrong_file_of_rows_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        read(text, "mine.toml")
