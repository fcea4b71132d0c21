"""`cachesim check` as a gate: red for what a baseline or a release does not have, else green."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cachesim.cli.main import main
from cachesim.engines import Profile
from cachesim.play.findings import Finding
from cachesim.scenario.format import Step
from cachesim.testing.story import story
from tests.cli.test_telling import report
from tests.fixtures import Capture, output

WRONG, RIGHT = "llama.cpp@b11549", "llama.cpp@b11549+erase-equal"
FEW = ("--examples", "12", "--set", "lora=", "--jobs", "1")
CAUSE = "wrong-answer.erase-equal"


def test_a_release_passes_its_own_baseline_and_fails_one_that_lacks_a_cause(
    tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "baseline.json"

    output(capsys, ["check", WRONG, *FEW, "--save-baseline", str(file)], 0)
    assert CAUSE in file.read_text()
    assert "nothing new is wrong" in output(
        capsys, ["check", WRONG, *FEW, "--baseline", str(file)], 0
    )
    told = json.loads(file.read_text())
    del told["searches"][0]["causes"][CAUSE]
    file.write_text(json.dumps(told, indent=1))
    said = output(capsys, ["check", WRONG, *FEW, "--baseline", str(file)], 1)
    assert f"name: {CAUSE}" in said.partition("1 new cause")[2]


def test_a_release_is_compared_with_another_by_cause(capsys: Capture) -> None:
    fixed = output(capsys, ["check", RIGHT, "--against", "b11549", *FEW], 0)
    assert "nothing new is wrong" in fixed

    broken = output(
        capsys, ["check", WRONG, "--against", RIGHT.partition("@")[2], *FEW, "--format", "junit"], 1
    )
    [suite] = ET.fromstring(broken)
    failed = [case.attrib["name"] for case in suite if case.find("failure") is not None]
    assert [CAUSE] == failed
    assert "1 of 9 tokens cached" in broken, "the reason that JSON has"


def test_code_scanning_is_told_which_causes_are_new(capsys: Capture) -> None:
    said = output(capsys, ["check", WRONG, "--against", RIGHT, *FEW, "--format", "sarif"], 1)
    [run] = json.loads(said)["runs"]
    states = {result["ruleId"]: result["baselineState"] for result in run["results"]}
    assert "new" == states[CAUSE]
    assert states.keys() <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}


def test_a_search_of_nothing_is_a_failed_case(capsys: Capture) -> None:
    words = ["check", RIGHT, "--minutes", "0.000001", "--format", "junit", "--jobs", "1"]
    [suite] = ET.fromstring(output(capsys, words, 1))
    assert "1" == suite.attrib["failures"]


def test_what_is_known_of_a_release_is_said_first(capsys: Capture) -> None:
    said = output(capsys, ["check", RIGHT, "--examples", "1", "--jobs", "1"], 0)
    assert said.startswith(f"known of {WRONG}: ")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"baseline": 1, "searches": [{}]}'])
def test_a_file_that_is_no_baseline_is_refused(text: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    assert 2 == main(["check", WRONG, "--baseline", str(file)])
    assert "is no baseline" in capsys.readouterr().err


@pytest.mark.parametrize("do", ["slot-erase", "restart"])
def test_a_story_tells_the_reason_at_any_action(do: str) -> None:
    shown = report(Step(prompt=(300, 301), name="r0"), Step(do=do, name="then")).counterexample
    assert shown is not None
    finding = Finding(kind="broken invariant", step=1, detail="2 pages counted, 1 in the tree")
    told = story(replace(shown, finding=finding), Profile.parse(WRONG))
    assert told[-1].endswith("<- 2 pages counted, 1 in the tree")
