"""From the model a scenario names to the network's spec."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from cachesim.errors import SpecError
from cachesim.model.presets import preset
from cachesim.model.spec import ModelSpec, Sizes
from cachesim.scenario.format import Model

WORD = 8
"""Bytes of one number."""

MEASURES: Final = tuple(
    each.name for each in fields(Model) if each.name not in {"preset", "layers", "sizes"}
)
"""Fields of a preset that a scenario may override."""


def spec_of(model: Model) -> ModelSpec:
    """The preset or the layers of a scenario, with the measures it replaces."""
    given = {name: getattr(model, name) for name in MEASURES}
    changes: dict[str, Any] = {name: each for name, each in given.items() if each is not None}
    if model.sizes:
        changes["sizes"] = _sizes(model.sizes)
    if model.preset is not None:
        return preset(model.preset, **changes)
    return ModelSpec(layers=model.layers or (), **changes)  # type: ignore[arg-type]


def _sizes(given: Mapping[str, int]) -> Sizes:
    known = {each.name for each in fields(Sizes)}
    for name in given:
        if name not in known:
            msg = f"model.sizes has no {name!r}; it has {', '.join(sorted(known))}"
            raise SpecError(msg)
    return Sizes(**given)


def bytes_needed(spec: ModelSpec, *, cells: int, slots: int) -> int:
    """About how much memory a model takes with so many cells and slots, weights included."""
    attention = sum(layer in {"attention", "window"} for layer in spec.layers)
    recurrent = len(spec.layers) - attention
    cell = attention * 2 * spec.kv_heads * spec.head_size
    row = recurrent * (spec.inner * spec.state_size + spec.conv_size * 4 * spec.inner)
    projections = attention * 4 * max(spec.heads, spec.kv_heads) * spec.head_size
    projections += recurrent * 4 * spec.inner + len(spec.layers) * 3 * spec.mlp_width
    weights = spec.width * (projections + 2 * spec.vocabulary)
    return WORD * (weights + cells * cell + slots * row)
