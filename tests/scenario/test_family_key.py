"""`[model] family`: a model class of mlx-lm, refused where it does not fit."""

from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.scenario.checks import scenario_of

MLX: dict[str, Any] = {
    "format": 1,
    "name": "a-scenario",
    "engine": {"name": "mlx-lm", "profiles": ["0.32.2"]},
    "spans": {"A": 4},
    "step": [{"prompt": "A"}],
}


def test_a_family_is_part_of_the_model() -> None:
    model = {"preset": "hybrid", "family": "nemotron_h"}

    assert scenario_of(MLX | {"model": model}).model.family == "nemotron_h"


@pytest.mark.parametrize(
    ("model", "engine", "says"),
    [
        ({"preset": "hybrid", "family": "nemotron"}, "mlx-lm@0.32.2", "no model family 'nemotron'"),
        ({"preset": "dense", "family": "mamba2"}, "mlx-lm@0.32.2", "this model has attention"),
        ({"preset": "hybrid", "family": "jamba"}, "llama.cpp@b9538", "has no place here"),
    ],
)
def test_one_that_does_not_fit_is_refused(model: dict[str, Any], engine: str, says: str) -> None:
    name, release = engine.split("@")
    mapping = MLX | {"model": model, "engine": {"name": name, "profiles": [release]}}
    with pytest.raises(ScenarioError, match=says) as caught:
        scenario_of(mapping)

    assert "model.family" in str(caught.value)
