"""From the model a scenario names to the network's spec."""

from dataclasses import fields
from typing import Any

from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec
from cachesim.scenario.format import Model


def spec_of(model: Model) -> ModelSpec:
    """The preset or the layers of a scenario, with the measures it replaces."""
    changes: dict[str, Any] = {
        each.name: getattr(model, each.name)
        for each in fields(Model)
        if each.name not in {"preset", "layers"} and getattr(model, each.name) is not None
    }
    if model.preset is not None:
        return preset(model.preset, **changes)
    return ModelSpec(layers=model.layers or (), **changes)  # type: ignore[arg-type]
