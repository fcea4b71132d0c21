"""Public strategies: plural nouns, bounds first, shrinking toward the smallest server there is.

One slot, default flags, one layer of each kind, prompts of tokens 0 and 1: what a counterexample
still carries beyond that is what it needs.
"""

from typing import Any

from hypothesis import strategies as st

from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.model.presets import PRESETS, preset
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.scenario.format import Scenario
from cachesim.testing.workloads import Drawn, Shape, draw_flags, draw_workload
from cachesim.units import Token, Tokens


def token_lists(
    *, min_size: int = 1, max_size: int = 24, vocabulary: int = 2
) -> st.SearchStrategy[Tokens]:
    """Prompts over the first few tokens of a vocabulary."""
    if not 0 <= min_size <= max_size:
        msg = f"min_size={min_size} and max_size={max_size}: write 0 <= min_size <= max_size"
        raise InputError(msg)
    tokens = st.integers(0, vocabulary - 1).map(Token)
    return st.lists(tokens, min_size=min_size, max_size=max_size).map(tuple)


def model_specs(
    *,
    min_layers: int = 1,
    max_layers: int = 4,
    kinds: tuple[LayerKind, ...] = ("attention", "window", "ssm", "delta", "conv"),
) -> st.SearchStrategy[ModelSpec]:
    """Small networks of width 16 with layers of the given kinds in any order."""
    layers = st.lists(st.sampled_from(kinds), min_size=min_layers, max_size=max_layers)
    return st.builds(
        _small_spec, layers.map(tuple), seed=st.integers(0, 3), window=st.integers(1, 8)
    )


def _small_spec(layers: tuple[LayerKind, ...], *, seed: int, window: int) -> ModelSpec:
    return ModelSpec(
        layers=layers,
        seed=seed,
        vocabulary=32,
        width=16,
        mlp_width=16,
        heads=2,
        kv_heads=1,
        head_size=8,
        window=window if "window" in layers else 0,
        conv_size=3,
        state_size=4,
        inner=8,
        groups=1,
        state_heads=2,
    )


@st.composite
def option_sets(
    draw: st.DrawFn, profile: str | Profile, *, model: str = "hybrid"
) -> dict[str, Any]:
    """Flags that a profile accepts, with values other than the default; often none."""
    return draw_flags(Drawn(draw), _profile(profile), model, {})


@st.composite
def workloads(
    draw: st.DrawFn,
    profile: str | Profile,
    *,
    min_steps: int = 1,
    max_steps: int = 4,
    longest: int = 24,
    model: str = "hybrid",
    flags: bool = True,
) -> Scenario:
    """Conversation trees for one profile and preset, as scenarios with explicit tokens."""
    preset(model)  # an unknown preset is refused here, by name
    shape = Shape(min_steps=min_steps, max_steps=max_steps, longest=longest, flags=flags)
    return draw_workload(Drawn(draw), _profile(profile), model, shape)


@st.composite
def scenarios(
    draw: st.DrawFn,
    *profiles: str,
    min_steps: int = 1,
    max_steps: int = 4,
    models: tuple[str, ...] = tuple(PRESETS),
) -> Scenario:
    """Workloads for any of some profiles, on any of some presets."""
    profile = draw(st.sampled_from(profiles or ("llama.cpp@b11549",)))
    model = draw(st.sampled_from(models))
    return draw(workloads(profile, min_steps=min_steps, max_steps=max_steps, model=model))


def _profile(profile: str | Profile) -> Profile:
    return Profile.parse(profile) if isinstance(profile, str) else profile


def register() -> None:
    """Let `st.from_type(ModelSpec)` draw small networks."""
    st.register_type_strategy(ModelSpec, model_specs())
