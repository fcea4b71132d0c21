"""Without a network the servers take the same decisions, event by event."""

import pytest

from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import arithmetic_of, build
from cachesim.model.presets import preset
from cachesim.play.runner import run
from cachesim.play.session import Record, Session
from cachesim.scenario import load
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import shipped_file
from cachesim.testing.workloads import Seeded, Shape, draw_workload

SHAPE = Shape(max_steps=5, longest=150)
SERVERS = [
    ("llama.cpp@b9093", "hybrid"),
    ("llama.cpp@b9093", "swa"),
    ("llama.cpp@b9538", "hybrid-delta"),
    ("llama.cpp@b9538", "swa"),
    ("llama.cpp@b11549", "recurrent"),
    ("llama.cpp@b11549", "hybrid-swa"),
    ("llama.cpp@b11549", "dense"),
    ("llama.cpp@b11549+24143", "hybrid"),
    ("ik_llama.cpp@d2da6da05", "hybrid-delta"),
    ("ik_llama.cpp@d2da6da05", "dense"),
    ("mlx-lm@0.31.0", "hybrid-delta"),
    ("mlx-lm@0.32.2", "swa"),
    ("mlx-lm@0.32.2", "hybrid-delta"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("profile", "model"), SERVERS)
@pytest.mark.parametrize("other", ["ring", "float"])
def test_decisions_are_those_of_a_server_that_computes(
    profile: str, model: str, other: ArithmeticName
) -> None:
    for seed in range(8 if other == "ring" else 1):
        draws = Seeded(f"{profile} {model} {seed}")
        workload = draw_workload(draws, Profile.parse(profile), model, SHAPE)
        assert decided(workload, profile, other) == decided(workload, profile, "counts")


def decided(workload: Scenario, profile: str, arithmetic: ArithmeticName) -> object:
    session = Session(workload, Profile.parse(profile), arithmetic=arithmetic)
    try:
        return [(seen(record), session.engine.snapshot()) for record in session.run()]
    except InputError as error:
        return str(error)


def seen(record: Record) -> object:
    reply = record.reply
    counts = None if reply is None else (reply.cached, reply.processed, reply.losses)
    return counts, record.slot, record.error, record.events


@pytest.mark.parametrize("arithmetic", ["float", "ring", "counts"])
@pytest.mark.parametrize("model", ["dense", "recurrent", "hybrid-mtp"])
def test_a_network_shows_what_it_computes_with(model: str, arithmetic: ArithmeticName) -> None:
    assert arithmetic_of(build(preset(model), arithmetic)) == arithmetic


def test_an_answer_that_no_network_computed_is_not_judged() -> None:
    scenario, profile = load(shipped_file("llama.cpp-two-codes")), Profile.parse("llama.cpp@b11549")

    steps = run(scenario, profile, arithmetic="counts").steps

    assert [0, 6, 6, 7] == [step.cached for step in steps]
    assert 4 * [None] == [step.answer for step in steps]
    assert 4 * [None] == [step.max_difference for step in steps]
    assert [None, None, None, "lost"] == [step.reuse for step in steps]
    assert run(scenario, profile, arithmetic="counts").as_expected
    assert "diverged" == run(scenario, profile, arithmetic="ring").steps[-1].answer
