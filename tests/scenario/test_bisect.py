"""Bisections: which release is bad, and which change made it so, as the reports' threads say."""

import json
from pathlib import Path

import pytest

from cachesim.engines.family import family_of
from cachesim.play import bisect
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import load_all
from tests.fixtures import Capture, complaint, output
from tests.why.test_replay import servers_of

THREADS = {
    "llama.cpp-21510-checkpoint-at-position-0-refused": [("b8929", "good", "21510")],
    "llama.cpp-22288-swa-full-same-window": [("b8929", "good", "22288")],
    "llama.cpp-22534-same-prompt-refused-cut": [("b9294", "good", "23280")],
    "llama.cpp-24110-live-state-unused": [("b9294", "bad", "23280"), ("b9538", "good", "24110")],
    "llama.cpp-22929-message-boundaries": [("b9538", "bad", "22929"), ("b9873", "good", "24176")],
    "llama.cpp-24411-first-turn-again": [("b9713", "good", "24411")],
    "llama.cpp-24190-two-requests-of-one-chat": [("b9713", "good", "24190")],
    "llama.cpp-24746-pinned-bypasses-the-cache": [("b9873", "good", "24755")],
    "llama.cpp-25070-evicts-the-entry-it-needs": [("b10068", "bad", "25070")],
    "llama.cpp-shift-old-checkpoints": [("b10068", "good", "25649")],
    "llama.cpp-28302-erased-when-made": [("b11063", "good", "28302")],
    "llama.cpp-25913-restore-gives-no-reuse": [("b11549", "good", "25913")],
    "mlx-lm-738-second-turn-in-a-window": [("0.30.4", "good", "738")],
    "mlx-lm-754-fresh-request-beside-a-stored-one": [("0.30.4", "good", "755")],
    "mlx-lm-842-fresh-request-beside-a-stored-one": [
        ("0.30.4", "bad", "690"),
        ("0.30.6", "good", "842"),
    ],
}
"""Scenario -> the release, what it became, and the pull request that the report's thread names."""


def bisected(scenario: Scenario) -> tuple[list[bisect.ReleaseVerdict], list[bisect.TurningPoint]]:
    play = bisect.simulated(scenario)
    judged = bisect.judge([play(release) for release in family_of(scenario.engine.name).names()])
    return judged, list(bisect.turns(scenario, judged, play))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", THREADS)
def test_the_release_and_the_pull_request_are_those_of_the_thread(name: str) -> None:
    _, found = bisected(load_all([name])[0][1])

    named = [(turn.after, turn.became, cause.patch) for turn in found for cause in turn.causes]
    assert set(THREADS[name]) <= set(named)


def played(release: str, *cached: int | None, answer: str = "same") -> bisect.Played:
    steps = tuple(
        bisect.StepResult(name=f"r{index}", cached=each, answer=answer)
        for index, each in enumerate(cached)
    )
    return bisect.Played(profile=release, steps=steps)


def test_less_than_half_of_the_best_reuse_is_bad() -> None:
    judged = bisect.judge([played("a", 0, 100), played("b", 0, 50), played("c", 0, 49)])

    assert ["good", "good", "bad"] == [each.state for each in judged]
    assert "reuses 49 of 100" == judged[2].why
    assert "r1" == judged[2].step


def test_what_a_wrong_answer_reused_is_no_measure() -> None:
    judged = bisect.judge([played("a", 100, answer="diverged"), played("b", 10)])

    assert [("bad", "wrong answer"), ("good", "")] == [(each.state, each.why) for each in judged]


def test_a_release_without_the_option_is_neither_good_nor_bad() -> None:
    judged, _ = bisected(load_all(["llama.cpp-24035-restore-erases-later"])[0][1])

    assert {"-"} == {each.state for each in judged[:3]}
    assert "has no option 'checkpoint_min_step'" in judged[0].why


@pytest.mark.thorough
def test_a_default_that_changed_is_named(capsys: Capture) -> None:
    said = output(capsys, ["bisect", "llama.cpp-interrupted-stream"], 1)
    assert "--checkpoint-min-step is 8192 unless it is given; it was 256" in said
    assert "b9713 with 8192 is like b9873, b9873 with 256 is like b9713" in said


def test_a_table_has_one_line_for_each_release(capsys: Capture) -> None:
    said = output(capsys, ["bisect", "llama.cpp-three-requests-dense"])
    assert "every release is good" in said
    for release in family_of("llama.cpp").names():
        assert said.count(f"{release} ") == 1


def test_the_worst_miss_of_a_log_is_bisected(tmp_path: Path, capsys: Capture) -> None:
    log = tmp_path / "server.log"
    log.write_text(servers_of("b11549-3")[2]["log"])

    said = output(capsys, ["bisect", str(log), "--profile", "b11549", "--model", "recurrent"], 1)
    assert "from-a-log on the simulator" in said
    assert "first release that is bad in another way: b9294" in said
    assert "b9093+23280 is like b9294" in said


def test_recorded_requests_say_too_little(tmp_path: Path, capsys: Capture) -> None:
    recorded = tmp_path / "requests.jsonl"
    recorded.write_text('{"request": {"prompt": "x"}}\n')

    assert "bisect takes its log" in complaint(capsys, ["bisect", str(recorded)])


def test_flags_and_a_seed_are_those_of_the_scenario_that_is_bisected(capsys: Capture) -> None:
    name = "llama.cpp-24411-first-turn-again"
    flags = ["--set", "ctx_checkpoints=0", "--seed", "7"]

    said = json.loads(output(capsys, ["bisect", name, *flags, "--format", "json"], 1))
    releases = {release["release"]: release for release in said["releases"]}
    assert [0, 0, 140, 248, 0] == [step["cached"] for step in releases["b11549"]["steps"]]
    assert "turn-2: reuses 0 of 32" == "{step}: {why}".format(**releases["b11549"])
    assert [("b9294", "bad", "23280")] == [
        (change["after"], change["became"], change["causes"][0]["patch"])
        for change in said["changes"]
    ]
