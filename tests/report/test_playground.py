"""Queries of the playground's page, without a browser."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cachesim import run_scenario
from cachesim.engines import FAMILIES
from cachesim.playground import explained
from cachesim.report.json_output import document
from cachesim.report.playground import answer, choices
from cachesim.scenario.shipped import shipped_file

ROOT = Path(__file__).parents[2]
THREE = tomllib.loads(shipped_file("llama.cpp-three-requests").read_text(encoding="utf-8"))


def asked(scenario: dict[str, Any], profile: str, arithmetic: str = "ring") -> dict[str, Any]:
    return question(scenario=scenario, profile=profile, arithmetic=arithmetic)


def question(**parts: object) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(answer(json.dumps(parts)))
    return told


def test_a_run_is_told_drawn_and_given_as_the_command_line_prints_it() -> None:
    told = asked(THREE, "llama.cpp@b11549")

    run = run_scenario(THREE, profile="llama.cpp@b11549", arithmetic="ring")
    assert document([run]) == told["json"]
    assert "wrong" == told["fate"]
    assert told["cause"].startswith("because: the recurrent state of layer 0 starts with token")
    assert "restored from 1[0..0] of A" in told["story"]
    assert 0 < told["story"].count('<svg class="r"') < told["whole"].count('<svg class="r"')
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


def test_a_moment_begins_with_the_rows_that_matter() -> None:
    asked(THREE, "llama.cpp@b11549")
    told = question(do="step", step=2)
    source = "checkpoint 1[0..0], made by A"
    sources = 0

    for moment in told["frames"]:
        rows = [
            re.findall(r'<text class="l"[^>]*>([^<]*)', told["pool"][row])[0]
            for row in moment["rows"]
        ]
        first = [rows[i] for i in moment["short"]]
        assert len(first) < len(rows)
        assert ["request C: S c", "recurrent state"] == [first[0], first[1].partition(" at")[0]]
        assert (source in rows) == (source in first) == (len(first) == 3)
        sources += source in rows
    assert 0 < sources < len(told["frames"])


def test_a_request_is_stepped_through_with_the_rule_where_it_decides() -> None:
    asked(THREE, "llama.cpp@b11549")
    told = question(do="step", step=2)
    words = [frame["word"] for frame in told["frames"]]
    looks = [
        re.findall(r'class="b (\w+)', told["pool"][frame["rows"][0]]) for frame in told["frames"]
    ]

    assert ["request", "match"] == words[:2]
    assert words.index("depth tested") < words.index("rule") < words.index("batch decoded")
    assert (
        "20 → 0  Recurrent state at position 42" in told["frames"][words.index("rule")]["sentence"]
    )
    assert ["pending"] == looks[0]
    assert ["shared", "pending"] == looks[1]
    assert ["shared", "pending"] == looks[words.index("rule")]
    assert ["wrong", "new"] == looks[-1]


def test_the_moments_begin_where_the_wrong_answer_or_the_largest_loss_is_decided() -> None:
    begun = {}
    for name, profile in (
        ("llama.cpp-two-codes", "llama.cpp@b11549"),
        ("llama.cpp-24143-load-consumes-entry", "llama.cpp@b9538"),
        ("llama.cpp-window-loses-a-key-each-trip", "llama.cpp@b9093"),
    ):
        told = question(do="run", text=text_of(name), profile=profile, arithmetic="ring")
        moments = question(do="step", step=told["worst"])
        at = moments["frames"][moments["begin"]]
        begun[told["steps"][told["worst"]]["name"]] = at["word"]

    assert {"b-asks": "checkpoint restored", "A-again": "match", "whole": "match"} == begun


def test_a_file_is_opened_as_a_form_where_the_form_has_a_place_for_all_of_it() -> None:
    three = question(do="open", text=text_of("llama.cpp-three-requests"))
    window = question(do="open", text=text_of("llama.cpp-window-loses-a-key-each-trip"))
    chat = question(do="open", text=text_of("ik_llama.cpp-1689-checkpoints-not-applied"))

    assert "llama.cpp@b11549" == three["profile"]
    assert [("hello", 5), ("S", 20), ("b", 20), ("c", 20)] == [
        (span["name"], span["length"]) for span in three["form"]["spans"]
    ]
    assert 8 == window["form"]["window"]
    assert chat["form"] is None


def test_a_file_runs_as_the_command_line_runs_it() -> None:
    told = question(
        text=text_of("llama.cpp-three-requests"), profile="llama.cpp@b11549", arithmetic="ring"
    )

    assert asked(THREE, "llama.cpp@b11549")["json"] == told["json"]
    assert text_of("llama.cpp-three-requests") == told["toml"]


def test_a_damaged_file_is_explained_with_its_line() -> None:
    damaged = text_of("llama.cpp-three-requests").replace("hello = 5", "hello = 0")
    deep = "[" * 100_000

    assert "the file:" in question(do="open", text=damaged)["problems"][0]
    assert question(do="open", text=f"a = {deep}")["problems"]
    assert question(do="open", text=f'{{"a": {deep}')["problems"]


def text_of(name: str) -> str:
    return shipped_file(name).read_text(encoding="utf-8")


@pytest.mark.thorough
@pytest.mark.thorough
def test_a_log_is_explained_as_by_the_command() -> None:
    path = ROOT / "docs" / "examples" / "hybrid.log"
    command = [sys.executable, "-m", "cachesim", "why", str(path), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    told = json.loads(explained(str(path), path.read_bytes()))
    assert done.stdout == told["json"]
    assert "<h1>" in told["html"]
    assert "problems" in json.loads(explained("empty.log", b"nothing"))


def server(given: dict[str, Any]) -> dict[str, Any]:
    data = (ROOT / "docs" / "examples" / "few-checkpoints.log").read_bytes()
    found: dict[str, Any] = json.loads(explained("few.log", data, json.dumps(given)))["server"]
    return found


def test_a_log_is_handed_out_with_the_server_that_was_read_out_of_it() -> None:
    read = server({})

    assert ("llama.cpp", "b9538", "hybrid") == (read["engine"], read["release"], read["model"])
    assert 1 == read["options"]["ctx_checkpoints"]
    assert ["model"] == read["how"]["assumed"]
    assert "ctx_checkpoints" in read["how"]["printed"]
    told = question(text=read["toml"], profile="llama.cpp@b9538", arithmetic="ring")
    assert [0, 1240, 0, 1580, 1840] == [step["cached"] for step in told["steps"]]


def test_a_setting_of_the_reader_replaces_the_logs() -> None:
    read = server({"model": "dense", "options": {"ctx_checkpoints": 32}})

    assert ("dense", 32) == (read["model"], read["options"]["ctx_checkpoints"])
    assert ["model", "ctx_checkpoints"] == read["how"]["given"]


def test_a_log_that_is_not_replayed_is_handed_out_without_a_scenario() -> None:
    lines = (ROOT / "tests" / "why" / "excerpts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = (each["files"][0][1] for each in map(json.loads, lines) if len(each["files"]) == 1)
    told = (
        json.loads(explained("one.log", text.encode("utf-8", "surrogateescape"))) for text in texts
    )
    found = next(each["server"] for each in told if not each.get("server", {"played": 1})["played"])

    assert (False, None) == (found["played"], found["toml"])


IN_A_BROWSER = """
import sys

ABSENT = {"rich", "cyclopts", "hypothesis", "cachesim.cli", "cachesim.why", "cachesim.testing"}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Absent())

from cachesim.report.playground import answer

print(answer(sys.stdin.read()))
"""


@pytest.mark.thorough
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


def test_the_line_below_the_verdict_names_who_took_the_entry_away() -> None:
    text = text_of("llama.cpp-24143-load-consumes-entry")
    told = question(text=text, profile="llama.cpp@b9538", arithmetic="ring")

    assert told["cause"].startswith("consumed: C loaded the prompt-cache entry")
    assert "" == told["whole"]  # no checkpoint was restored: the picture stays whole
