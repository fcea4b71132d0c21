"""The comparison with the real llama-cpp-python, without the real thing."""

from pathlib import Path

import pytest

from cachesim.lab.real.environment import EnvironmentUnavailableError
from cachesim.lab.real.llama_cpp_python import compare
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_file


def test_no_compiler_is_said_before_anything_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHESIM_ENVIRONMENTS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EnvironmentUnavailableError, match="no C\\+\\+ compiler here; install one"):
        compare.environment_for("0.3.36").ready()


def test_drawn_workloads_hold_caches_drafts_and_saved_states() -> None:
    drawn = [compare.draw("0.3.36", "dense", 1, number) for number in range(60)]
    done = {step.do for each in drawn for step in each.step}
    caches = {each.engine.options["cache"] for each in drawn}

    assert {"complete", "slot-save", "slot-restore", "slot-erase", "restart"} == done
    assert {"none", "ram", "disk"} == caches
    assert drawn == [compare.draw("0.3.36", "dense", 1, number) for number in range(60)]


@pytest.mark.wheel
def test_the_wrong_answer_is_there_on_the_real_package() -> None:
    scenario = load(shipped_file("llama-cpp-python-ram-cache-on-a-window"))
    steps = compare.play_scenario(scenario, "0.3.36")

    assert [True] * 4 == [each.agrees for each in steps]
    assert [False, False, False, True] == [each.confirmed for each in steps]
