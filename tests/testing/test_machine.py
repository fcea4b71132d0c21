"""The state machine, and the strategies it is made of."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from cachesim.engines import Profile
from cachesim.errors import InputError
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec
from cachesim.play import run
from cachesim.scenario import Scenario
from cachesim.testing import (
    CacheMachine,
    model_specs,
    option_sets,
    register,
    scenarios,
    token_lists,
    workloads,
)
from cachesim.units import Tokens

BRIEF = settings(max_examples=12, stateful_step_count=8, deadline=None)
FINDING = settings(BRIEF, max_examples=40, phases=[Phase.generate])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("profile_", "model_"),
    [
        ("llama.cpp@b11549", "dense"),
        ("llama.cpp@b11549+erase-equal", "hybrid"),
        ("ik_llama.cpp@d2da6da05", "dense"),
        ("mlx-lm@0.32.2", "dense"),
    ],
)
def test_sound_servers_survive_the_machine(profile_: str, model_: str) -> None:
    class Machine(CacheMachine):
        profile = profile_
        model = model_

    run_state_machine_as_test(Machine, settings=BRIEF)


def test_the_machine_finds_a_state_that_is_never_rewound() -> None:
    class Machine(CacheMachine):
        profile = "ik_llama.cpp@d2da6da05+1689"
        model = "hybrid-delta"

    with pytest.raises(AssertionError, match="diverged"):
        run_state_machine_as_test(Machine, settings=FINDING)


@given(tokens=token_lists(min_size=2, max_size=5, vocabulary=3))
def test_token_lists_keep_their_bounds(tokens: Tokens) -> None:
    assert 2 <= len(tokens) <= 5
    assert set(tokens) <= {0, 1, 2}


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(InputError, match="min_size=3"):
        token_lists(min_size=3, max_size=2)


@given(spec=model_specs())
@settings(max_examples=10)
def test_every_model_spec_can_be_built(spec: ModelSpec) -> None:
    assert spec == build(spec, "ring").spec


@given(data=st.data())
@settings(max_examples=10)
def test_registered_specs_come_from_their_type(data: st.DataObject) -> None:
    register()

    assert isinstance(data.draw(st.from_type(ModelSpec)), ModelSpec)


@given(data=st.data())
@settings(max_examples=10)
def test_option_sets_are_accepted_by_their_profile(data: st.DataObject) -> None:
    options = data.draw(option_sets("llama.cpp@b9538"))
    scenario = data.draw(workloads("llama.cpp@b9538", flags=False))

    assert isinstance(options, dict)
    assert isinstance(scenario, Scenario)


@given(scenario=scenarios("llama.cpp@b11549", "ik_llama.cpp@d2da6da05", models=("dense",)))
@settings(max_examples=10)
def test_scenarios_can_be_played(scenario: Scenario) -> None:
    profile = Profile.parse(f"{scenario.engine.name}@{scenario.engine.profiles[0]}")
    played = run(scenario, profile, arithmetic="ring")

    assert len(scenario.step) == len(played.steps)
