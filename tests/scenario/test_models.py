"""Several models in one server: named in a scenario, asked for by its steps."""

from typing import Any

import pytest

from cachesim.engines.base import Engine, Request
from cachesim.errors import OptionError, ScenarioError
from cachesim.model.presets import preset
from cachesim.play import scenario_schema
from cachesim.play.runner import run_scenario
from cachesim.scenario import scenario_of
from cachesim.scenario.files import loads, to_toml
from tests.scenario.json_schema import errors


def story(*asked: str, **changes: Any) -> dict[str, Any]:
    """One prompt, sent to the first model and to those named."""
    steps = [{"name": "first", "prompt": "S a", "predict": 2}]
    steps += [{"prompt": "S a", "model": name, "predict": 2} for name in asked]
    return {
        "format": 1,
        "name": "several",
        "model": {"preset": "dense"},
        "models": {"ring": {"preset": "swa", "window": 8}, "states": {"preset": "hybrid"}},
        "engine": {"name": "mlx-lm", "profiles": ["0.32.2"]},
        "spans": {"S": 20, "a": 5},
        "step": steps,
    } | changes


def test_each_answer_is_compared_with_a_cold_run_of_its_own_model() -> None:
    run = run_scenario(story("ring", "states", "ring"))

    assert ["same"] * 4 == [step.answer for step in run.steps]
    assert [0, 0, 0, 24] == [step.cached for step in run.steps]
    assert [0, 0, 0, 24] == [step.explanation and step.explanation.ideal for step in run.steps]


def test_a_saved_scenario_keeps_its_models() -> None:
    scenario = scenario_of(story("states"))

    assert scenario == loads(to_toml(scenario).encode(), name="saved")
    assert [] == errors(story("states"), scenario_schema())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"step": [{"prompt": "S", "model": "rings"}]},
         "step[0].model: there is no model 'rings'; did you mean 'ring'?"),
        ({"step": [{"prompt": "S", "model": "x"}], "models": {}},
         "step[0].model: there is no model 'x'; there are none"),
        ({"engine": {"name": "vllm", "profiles": ["0.33.0"]}},
         "models: have no place here: vllm@0.33.0 serves one model"),
        ({"models": {"other": {"preset": "dense", "vocabulary": 300}}},
         "models.other: must have the vocabulary of [model], 512 tokens"),
        ({"models": {"other": {"preset": "dens"}}}, "models.other.preset: there is no preset"),
        ({"models": {"other": {"window": "x"}}}, "models.other.window: must be an integer"),
        ({"models": {"other": 3}}, "models.other: must be a table, found an integer: 3"),
        ({"models": {"a b": {}}}, "models: has a name that cannot be one: 'a b'"),
        ({"models": 3}, "models: must be a table"),
    ],
)  # fmt: skip
def test_a_wrong_model_is_refused_with_its_place(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario_of(story(**changes))

    assert any(each.startswith(problem) for each in refused.value.problems), refused.value.problems


def test_a_request_for_a_model_that_a_server_lacks_is_refused() -> None:
    server = Engine.create("vllm@0.33.0", model=preset("dense"))

    with pytest.raises(OptionError, match="there is no model 'b'; further models of this server: "):
        server.submit(Request(prompt=(1, 2), model="b"))
    with pytest.raises(OptionError, match="serves one model: leave 'models' out"):
        Engine.create("vllm@0.33.0", model=preset("dense"), models={"b": preset("swa")})
