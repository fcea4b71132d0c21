"""A run with details, and the same run without: details are the only difference."""

import pytest

from cachesim.play import run
from cachesim.scenario import full_profile, load
from cachesim.scenario.shipped import shipped_file


@pytest.mark.parametrize("name", ["llama.cpp-chunk-reuse-dense", "llama.cpp-three-requests"])
def test_details_change_no_explanation(name: str) -> None:
    scenario = load(shipped_file(name))
    profile = full_profile("llama.cpp", "b11549")
    plain, detailed = (
        run(scenario, profile, arithmetic="ring", detail=each) for each in (False, True)
    )

    assert any(step.answer != "same" for step in plain.steps)
    assert [each.explanation for each in detailed.steps] == [
        each.explanation for each in plain.steps
    ]
