"""What the playground's page asks for, asked without a browser."""

import json
import subprocess
import sys
import tomllib
from typing import Any

from cachesim import run_scenario
from cachesim.engines import FAMILIES
from cachesim.report.json_output import document
from cachesim.report.playground import answer, choices
from cachesim.scenario.shipped import shipped_file

THREE = tomllib.loads(shipped_file("llama.cpp-three-requests").read_text(encoding="utf-8"))


def asked(scenario: dict[str, Any], profile: str, arithmetic: str = "ring") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        answer(json.dumps({"scenario": scenario, "profile": profile, "arithmetic": arithmetic}))
    )
    return told


def test_a_run_is_told_drawn_and_given_as_the_command_line_prints_it() -> None:
    told = asked(THREE, "llama.cpp@b11549")

    run = run_scenario(THREE, profile="llama.cpp@b11549", arithmetic="ring")
    assert document([run]) == told["json"]
    assert "wrong" == told["fate"]
    assert told["cause"].startswith("because: the recurrent state of layer 0 has folded in token")
    assert "restored from 1[0..0] of A" in told["story"]
    assert ["made", "kept", "restored", "wrong"] == [each[0] for each in told["steps"][2]["chain"]]


def test_the_scenario_file_that_it_hands_out_plays_the_same() -> None:
    told = asked(THREE, "llama.cpp@b11549")

    again = asked(tomllib.loads(told["toml"]), "llama.cpp@b11549")
    assert told["json"] == again["json"]


def test_what_cannot_be_played_is_told_and_not_raised() -> None:
    wrong = THREE | {"spans": {"hello": 0}, "step": [{"prompt": "nobody"}]}

    assert "problems" in asked(wrong, "llama.cpp@b11549")
    assert "problems" in asked(THREE, "llama.cpp@b1")
    assert "problems" in asked(THREE, "no engine")
    assert ["arithmetic: 'half' is not one of float, ring"] == asked(
        THREE, "llama.cpp@b11549", "half"
    )["problems"]


def test_every_engine_release_patch_and_flag_can_be_chosen() -> None:
    engines = choices()["engines"]

    assert set(FAMILIES) == set(engines)
    newest = engines["llama.cpp"]["releases"][0]
    assert "b11549" == newest["name"]
    assert "erase-equal" in newest["patches"]
    assert "parallel" in engines["llama.cpp"]["flags"]


IN_A_BROWSER = """
import sys

ABSENT = {"rich", "cyclopts", "hypothesis", "cachesim.cli", "cachesim.lab", "cachesim.testing"}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Absent())

from cachesim.report.playground import answer

print(answer(sys.stdin.read()))
"""


def test_a_run_needs_no_package_that_a_browser_lacks() -> None:
    scenario = tomllib.loads(shipped_file("llama.cpp-three-requests").read_text())
    question = {"scenario": scenario, "profile": "b11549", "arithmetic": "ring"}

    done = subprocess.run(
        [sys.executable, "-c", IN_A_BROWSER],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
    )

    assert "" == done.stderr
    assert "wrong" == json.loads(done.stdout)["fate"]
