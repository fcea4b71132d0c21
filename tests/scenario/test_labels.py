"""Evidence labels: each claim that a release answers wrongly has one, set by what was played."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.engines.family import Profile
from cachesim.scenario import Scenario, load
from cachesim.scenario.labels import (
    ALIKE,
    CONFIRMED,
    DERIVED,
    SOURCE,
    digest,
    label_of,
    label_of_release,
    label_of_right,
    table,
    weakest,
)
from cachesim.scenario.shipped import shipped_file
from cachesim.typed import there_is

THREE = "llama.cpp-three-requests"
RELEASE = Profile("llama.cpp", "b11549")


def three() -> Scenario:
    return load(shipped_file(THREE))


def test_the_table_confirms_what_was_played_on_the_real_engine() -> None:
    assert CONFIRMED == label_of(three(), RELEASE, "C")


def test_what_was_not_played_is_source_only() -> None:
    flags = replace(three().engine, options={"ctx_checkpoints": 8})
    weights = replace(three().model, seed=3)

    assert SOURCE == label_of(replace(three(), engine=flags), RELEASE, "C")
    assert SOURCE == label_of(replace(three(), model=weights), RELEASE, "C")
    assert SOURCE == label_of(three(), Profile("llama.cpp", "b9713"), "C")
    assert SOURCE == label_of(three(), RELEASE, "B")
    assert SOURCE == label_of(three(), Profile("vllm", "0.33.0"), "C")


def test_a_right_answer_that_a_scenario_shows_is_as_on_the_real_engine() -> None:
    rewind = load(shipped_file("ik_llama.cpp-1889-later-release-rewind-loses-all"))
    release = Profile("ik_llama.cpp", "8337e4cd3")
    other = replace(rewind, engine=replace(rewind.engine, options={"companion": "attn"}))

    assert ALIKE == label_of_right(rewind, release, "rewind")
    assert label_of_right(rewind, release, "X") is None  # the scenario shows nothing of it
    assert label_of_right(rewind, Profile("ik_llama.cpp", "8337e4cd3", ("1889",)), "rewind") is None
    assert label_of_right(other, release, "rewind") is None
    assert weakest([ALIKE]) is None


def test_a_patched_release_has_no_label() -> None:
    patched = Profile("llama.cpp", "b11549", ("erase-equal",))

    assert label_of(three(), patched, "C") is None
    assert label_of_release(patched) is None
    assert SOURCE == label_of_release(RELEASE)


def test_the_rules_of_another_server_have_one() -> None:
    assert SOURCE == label_of_release(Profile("vllm-mlx", "0.6.0", ("mllm",)))
    assert SOURCE == label_of_release(Profile("ollama-runner", "0.24", ("llamarunner",)))


def test_several_claims_have_the_label_of_the_one_confirmed_least() -> None:
    assert SOURCE == weakest([CONFIRMED, None, SOURCE, DERIVED])
    assert DERIVED == weakest([CONFIRMED, DERIVED])
    assert weakest([None]) is None


def test_a_confirmed_step_is_one_of_a_shipped_scenario_as_it_is_now() -> None:
    """A lesson's run is known by its digest alone: `tests/learn` asks for its label."""
    path = there_is(table())
    with path.open(newline="", encoding="utf-8") as rows:
        confirmed = [row for row in csv.DictReader(rows) if row["confirmed"] or row["derived"]]
    confirmed = [row for row in confirmed if not row["scenario"].startswith("lesson-")]
    scenarios = {each: load(shipped_file(each)) for each in {row["scenario"] for row in confirmed}}

    assert confirmed
    for row in confirmed:
        scenario = scenarios[row["scenario"]]
        assert row["file"] == digest(scenario)
        assert {*row["confirmed"].split(), *row["derived"].split()} <= {*scenario.step_names}
        assert "agrees" == row["result"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("command", "seen"),
    [
        (f"run {THREE} -p b11549", f"evidence {CONFIRMED}"),
        (f"run {THREE} -p b11549 --seed 3", f"evidence {SOURCE}"),
        (f"run {THREE} -p b11549 --format json", f'"evidence": "{CONFIRMED}"'),
        (f"compare {THREE} -p b11549 -p b11549+erase-equal", f"evidence {CONFIRMED}"),
        (f"run --explain {THREE} --profile b11549", f"evidence {CONFIRMED}"),
        (f"bisect {THREE}", f"C: wrong answer ({CONFIRMED})"),
        (f"compare {THREE}", f"wrong answers of llama.cpp@b11549: {CONFIRMED}"),
        (f"run {THREE} llama.cpp-26191-f-keep --brief", "confirmed on the real engine"),
        pytest.param(
            "check llama.cpp@b11549 --model hybrid --examples 400",
            f"evidence: {SOURCE}",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_each_command_prints_the_label(
    command: str, seen: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    words = command.split()

    main([*words, "--arithmetic", "ring"] if words[0] == "run" else words)

    assert seen in " ".join(capsys.readouterr().out.split())


def test_a_page_holds_the_label(tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    main(["run", THREE, "-p", "b11549", "--arithmetic", "ring", "--report", str(page)])

    assert CONFIRMED in page.read_text(encoding="utf-8")
