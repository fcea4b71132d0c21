"""The comparison itself: what counts as a difference, and how it is counted."""

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from cachesim.errors import ScenarioError, UntestedError
from cachesim.prove.llama_cpp import scenarios
from cachesim.prove.llama_cpp.calls import NotStartedError
from cachesim.prove.llama_cpp.simulated import SimulatedServer
from cachesim.prove.llama_cpp.workload import Outcome, workload
from cachesim.scenario import scenario_of
from cachesim.scenario.format import Step
from cachesim.typed import there_is
from cachesim.units import as_tokens
from conformance.real.llama_cpp.compare import Played, SideBySide, Tally, first_difference
from conformance.real.llama_cpp.workloads import Setting, draw_setting
from tests.fixtures import Patch

A = as_tokens(range(265, 305))
WORKLOAD = workload(
    "w",
    release="b11549",
    preset="hybrid",
    options={"ubatch_size": 16},
    steps=(
        Step(name="a", prompt=A, predict=3),
        Step(name="save", do="slot-save", slot=0, file="f"),
        Step(name="b", prompt=A[:30], predict=2),
    ),
)


def played() -> tuple[Outcome, ...]:
    """The simulator's own answers: a real server that agrees."""
    server = SimulatedServer(WORKLOAD)
    return tuple(outcome for step in WORKLOAD.step for outcome in server.send((step,)))


def test_equal_outcomes_are_no_difference() -> None:
    assert first_difference(WORKLOAD, played()) is None


def test_one_token_less_is_found_where_it_is() -> None:
    outcomes = played()
    cached = there_is(outcomes[2].cached)
    wrong = (*outcomes[:2], replace(outcomes[2], cached=cached - 1))

    found = there_is(first_difference(WORKLOAD, wrong))

    assert found.step == 2
    assert found.fields == {"cached": (cached - 1, cached)}
    assert found.events


def test_a_server_that_goes_on_too_long_is_found() -> None:
    outcomes = played()
    shorter = replace(outcomes[0], reply=outcomes[0].reply[:-1])

    found = there_is(first_difference(WORKLOAD, (shorter, *outcomes[1:])))

    assert found.fields == {"generated": (2, 3)}


def test_a_crash_that_the_simulator_does_not_see_is_a_difference() -> None:
    found = there_is(first_difference(WORKLOAD, (Outcome(error="crash"), *played()[1:])))

    assert found.fields["error"] == ("crash", None)


def test_what_was_not_played_is_not_compared() -> None:
    assert first_difference(WORKLOAD, played()[:1]) is None


@pytest.mark.parametrize(
    ("reasons", "why"),
    [({}, "no workload was run on both"), ({"it ends in prefill": 3}, "it ends in prefill")],
)
def test_a_comparison_of_nothing_has_tested_nothing(reasons: dict[str, int], why: str) -> None:
    tally = Tally(reasons=Counter(reasons))
    tally.add("dense", "workload", None, workloads=1, requests=0, agreeing=0)

    with pytest.raises(UntestedError, match=f"NOT COMPARED: {why}"):
        tally.show()


def test_requests_behind_a_difference_do_not_count_as_agreeing() -> None:
    outcomes = played()
    refused = replace(outcomes[1], error="invalid_request_error")
    found = first_difference(WORKLOAD, (outcomes[0], refused, outcomes[2]))
    tally = Tally()

    tally.count(Played(workload=WORKLOAD, outcomes=outcomes, difference=found))

    assert (tally.total("requests"), tally.total("agreeing")) == (2, 1)
    assert not tally.all_agree


ENDS = {"parallel": 3, "ubatch_size": 512, "embedding": True, "pooling": "mean"}
"""Flags with which neither server starts."""


class Absent:
    """A real server that does not start; or one that does, and is asked nothing."""

    starts = False

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def started(self, *_: object, **__: object) -> AbstractContextManager[Any]:
        if not self.starts:
            raise NotStartedError("the real server does not start")
        return nullcontext()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    close = __exit__


def drawn(monkeypatch: Patch, options: dict[str, Any]) -> Played:

    def setting(*args: Any, **kwargs: Any) -> Setting:
        return replace(draw_setting(*args, **kwargs), options=options, preset="dense", window=0)

    monkeypatch.setattr("conformance.real.llama_cpp.compare.RealServer", Absent)
    monkeypatch.setattr("conformance.real.llama_cpp.compare.draw_setting", setting)
    monkeypatch.setattr("conformance.real.llama_cpp.compare.ARRIVALS", 0.0)
    with SideBySide("b11549") as pair:
        monkeypatch.setattr(pair, "model", lambda *_: Path())
        return pair.play_random(seed=1, number=1, presets=())


def test_two_servers_that_do_not_start_agree(monkeypatch: Patch) -> None:
    played = drawn(monkeypatch, ENDS)

    assert ((), None) == (played.workload.step, played.difference)


def test_a_real_server_alone_that_does_not_start_is_an_error(monkeypatch: Patch) -> None:
    with pytest.raises(NotStartedError):
        drawn(monkeypatch, {**ENDS, "parallel": 2})


def test_a_simulated_server_alone_that_does_not_start_is_a_difference() -> None:
    found = first_difference(
        replace(WORKLOAD, engine=replace(WORKLOAD.engine, options=ENDS)), played()
    )

    assert found is not None
    assert (0, (None, "crash")) == (found.step, found.fields["error"])


@pytest.mark.parametrize(
    ("real_starts", "slots", "said"),
    [
        (False, 3, "the simulated server ends as it starts .*; so does the real one"),
        (True, 3, "the simulated server ends as it starts .*; the real one starts"),
        (False, 2, "the simulated server starts; the real server does not start"),
    ],
)
def test_a_scenario_whose_server_does_not_start_is_refused_in_words(
    real_starts: bool, slots: int, said: str, monkeypatch: Patch
) -> None:
    scenario = scenario_of(
        {
            "format": 1,
            "name": "x",
            "model": {"preset": "dense"},
            "engine": {
                "name": "llama.cpp",
                "profiles": ["b11549"],
                "options": {**ENDS, "parallel": slots},
            },
            "step": [{"prompt": [300], "predict": 1}],
        }
    )
    monkeypatch.setattr(scenarios, "RealServer", Absent)
    monkeypatch.setattr(Absent, "starts", real_starts)
    with pytest.raises(ScenarioError, match=said):
        scenarios.play_scenario(scenario, "b11549")
