"""Scenario files as tests of anyone's project."""

import subprocess
import sys
from pathlib import Path

import pytest

import _cachesim_pytest
from cachesim.prove.transformers.scripts import OPERATIONS
from cachesim.scenario import load

SCENARIO = """
format = 1
name = "chat"
[model]
preset = "dense"
[engine]
name = "llama.cpp"
profiles = ["b9538", "b11549"]
[spans]
S = 20
[[step]]
name = "A"
prompt = "S"
predict = 1
[[expect]]
profile = "b9538"
cached = [0]
[[expect]]
profile = "b11549"
cached = [7]
"""


ROOT = Path(__file__).parent.parent


def collected(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", "-p", "no:cachesim", "-p", "_cachesim_pytest", "-v"]
    return subprocess.run(
        [*command, "--cachesim-arithmetic=ring", *options, "."],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.thorough
def test_a_folder_of_scenarios_is_collected_and_failures_are_told(tmp_path: Path) -> None:
    (tmp_path / "chat.toml").write_text(SCENARIO)
    (tmp_path / "wrong.toml").write_text(SCENARIO.replace("preset", "preest"))
    (tmp_path / "other.toml").write_text("format = 'of something else'")

    done = collected(tmp_path, "--cachesim-emit=failed")

    assert done.returncode == 1
    assert "chat.toml::llama.cpp@b9538 PASSED" in done.stdout
    assert "chat.toml::llama.cpp@b11549 FAILED" in done.stdout
    assert "A: cached is 0, expected 7" in done.stdout
    assert "wrong.toml:5: model.preest: unknown key 'preest'; did you mean 'preset'?" in done.stdout
    assert "other.toml" not in done.stdout
    assert "2 failed, 1 passed" in done.stdout
    emitted = load(tmp_path / "failed" / "chat-b11549.toml")
    assert ("b11549",) == emitted.engine.profiles
    assert ["b11549"] == [each.profile for each in emitted.expect]


@pytest.mark.thorough
def test_a_wrong_answer_comes_with_its_proof(tmp_path: Path) -> None:
    shipped = (ROOT / "scenarios/llama.cpp/llama.cpp-three-requests.toml").read_text()
    expects = 'answer  = ["same", "same", "diverged"]'
    (tmp_path / "three.toml").write_text(shipped.replace(expects, 'answer = "same"'))

    done = collected(tmp_path)

    assert done.returncode == 1
    assert f"prove it cachesim real llama.cpp --scenario {tmp_path / 'three.toml'}" in done.stdout


@pytest.mark.thorough
def test_scenarios_of_other_engines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "chat.toml").write_text(SCENARIO)
    foreign = SCENARIO.replace('"llama.cpp"', '"mlx-lm"').replace(
        '["b9538", "b11549"]', '["0.32.2"]'
    )
    (tmp_path / "foreign.toml").write_text(foreign.partition("[[expect]]")[0])

    short = collected(tmp_path, "--cachesim-profile=b9538")
    full = collected(tmp_path, "--cachesim-profile=mlx-lm@0.31.3")

    assert "chat.toml::llama.cpp@b9538 PASSED" in short.stdout
    assert "1 passed" in short.stdout
    assert "foreign.toml::mlx-lm@0.31.3 PASSED" in full.stdout
    assert "1 passed" in full.stdout


@pytest.mark.thorough
def test_files_of_an_unrelated_project_stop_nothing(tmp_path: Path) -> None:
    """What has the form of a scenario and is none fails; whatever else there is does not."""
    (tmp_path / "dangling.toml").symlink_to("nowhere.toml")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00[[step]]\nformat = 1\n")
    (tmp_path / "steps.toml").write_text('format = 1\n[[step]]\nrun = "make"\n')
    (tmp_path / "named.toml").mkdir()
    (tmp_path / "large.toml").write_bytes(SCENARIO.encode() + b"#" * 5_000_000)
    (tmp_path / "broken.toml").write_text('format = 1\n[engine]\n[[step]]\n"""')
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'of somebody else'\n")
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")

    done = collected(tmp_path)

    assert "test_own.py::test_own PASSED" in done.stdout
    for name in ("binary", "broken", "large"):
        assert f"{name}.toml::scenario FAILED" in done.stdout
    assert "3 failed, 1 passed" in done.stdout


MISTAKES = {
    "steps": (SCENARIO.replace("[[step]]", "[[steps]]"), "unknown key 'steps'"),
    "setp": (SCENARIO.replace("[[step]]", "[[setp]]"), "unknown key 'setp'"),
    "open": (SCENARIO.replace('[engine]\nname = "llama.cpp"', '[engine]\nname = "l'), "line 7"),
    "engin": (SCENARIO.replace("[engine]", "[engin]"), "unknown key 'engin'"),
    "none": ("a [ b", "TOML"),
}


def test_a_file_with_a_mistake_beside_scenarios_is_a_test_that_fails(tmp_path: Path) -> None:
    (tmp_path / "chat.toml").write_text(SCENARIO)
    for name, (text, _) in MISTAKES.items():
        (tmp_path / f"{name}.toml").write_text(text)

    done = collected(tmp_path, "--collect-only")
    run = collected(tmp_path, "--cachesim-profile=llama.cpp@b9538")

    assert 1 == run.returncode
    for name, (_, why) in MISTAKES.items():
        assert f"{name}.toml" in done.stdout
        assert f"{name}.toml::scenario FAILED" in run.stdout
        _, _, told = run.stdout.partition(f"_ {name}.toml _")
        assert why in told.partition("\n____")[0], name
    assert "5 failed, 1 passed" in run.stdout


def test_a_family_without_transformers_is_one_failure_with_the_reason(tmp_path: Path) -> None:
    done = collected(
        tmp_path, "--cachesim-transformers=llama", f"--cachesim-python={sys.executable}"
    )

    assert done.returncode == 1
    assert "does it have torch and transformers?" in done.stdout
    assert f"1 failed, {len(OPERATIONS) - 1} skipped" in done.stdout


@pytest.mark.thorough
def test_a_search_that_finds_something_is_a_test_that_fails(tmp_path: Path) -> None:
    bad, emit = "--cachesim-profile=mlx-lm@0.32.2", "--cachesim-emit=found"

    done = collected(tmp_path, bad, "--cachesim-budget=60s", emit)

    assert done.returncode == 1
    assert "search: mlx-lm@0.32.2 FAILED" in done.stdout
    assert "CRASH in workload 18, shrunk" in done.stdout
    (emitted,) = (tmp_path / "found").iterdir()
    assert "mlx-lm" == load(emitted).engine.name

    assert "2 failed" in collected(tmp_path, bad, "--cachesim-budget=60s", emit).stdout
    assert [emitted] == list((tmp_path / "found").iterdir())


@pytest.mark.thorough
def test_a_kept_scenario_is_not_written_again(tmp_path: Path) -> None:
    kept = tmp_path / "found" / "kept.toml"
    kept.parent.mkdir()
    kept.write_text(SCENARIO)

    done = collected(tmp_path, "--cachesim-emit=found")

    assert "1 failed" in done.stdout
    assert f"to run it again: cachesim run {kept}" in done.stdout
    assert [kept] == list(kept.parent.iterdir())


@pytest.mark.thorough
def test_a_search_that_finds_nothing_is_a_test_that_passes(tmp_path: Path) -> None:
    done = collected(tmp_path, "--cachesim-profile=marconi@paper", "--cachesim-budget=0.1s")

    assert "search: marconi@paper PASSED" in done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.thorough
def test_a_search_without_a_profile_or_a_time_is_refused(tmp_path: Path) -> None:
    alone = collected(tmp_path, "--cachesim-budget=1s")
    odd = collected(tmp_path, "--cachesim-profile=marconi@paper", "--cachesim-budget=soon")

    assert "name one with --cachesim-profile" in alone.stderr + alone.stdout
    assert "'soon' is no time; write one such as 60s, 5m or 1h" in odd.stderr


def test_a_profile_that_no_engine_has_is_a_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")

    done = collected(tmp_path, "--cachesim-profile=b11548")

    assert pytest.ExitCode.USAGE_ERROR == done.returncode
    assert "--cachesim-profile b11548: " in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        ("b11548", "no engine has such a release"),
        ("b11549+erase-eqal", "no engine has such a release with these patches"),
        ("llama.cpp@b11548", "there is no llama.cpp release 'b11548'"),
        ("lama.cpp@b11549", "there is no engine 'lama.cpp'"),
        ("llama.cpp@", "is not a profile"),
    ],
)
def test_a_profile_that_no_engine_has_is_refused(profile: str, why: str) -> None:
    with pytest.raises(pytest.UsageError) as refused:
        _cachesim_pytest._refuse_unknown(profile)

    assert str(refused.value).startswith(f"--cachesim-profile {profile}: ")
    assert why in str(refused.value)
