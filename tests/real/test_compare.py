"""The comparison itself: what counts as a difference, and how it is counted."""

from dataclasses import replace

from cachesim.real.llama_cpp.compare import Played, Tally, first_difference
from cachesim.real.llama_cpp.simulated import SimulatedServer
from cachesim.real.llama_cpp.workload import Outcome, Step, Workload
from cachesim.units import as_tokens

A = as_tokens(range(265, 305))
WORKLOAD = Workload(
    name="w",
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
    """What the simulator itself answers: a real server that agrees."""
    server = SimulatedServer.of(WORKLOAD)
    return tuple(outcome for step in WORKLOAD.steps for outcome in server.ask((step,)))


def test_equal_outcomes_are_no_difference() -> None:
    assert first_difference(WORKLOAD, played()) is None


def test_one_token_less_is_found_where_it_is() -> None:
    outcomes = played()
    cached = outcomes[2].cached
    assert cached is not None
    wrong = (*outcomes[:2], replace(outcomes[2], cached=cached - 1))

    found = first_difference(WORKLOAD, wrong)

    assert found is not None
    assert found.step == 2
    assert found.fields == {"cached": (cached - 1, cached)}
    assert found.events


def test_a_server_that_goes_on_too_long_is_found() -> None:
    outcomes = played()
    shorter = replace(outcomes[0], reply=outcomes[0].reply[:-1])

    found = first_difference(WORKLOAD, (shorter, *outcomes[1:]))

    assert found is not None
    assert found.fields == {"generated": (2, 3)}


def test_a_crash_that_the_simulator_does_not_see_is_a_difference() -> None:
    found = first_difference(WORKLOAD, (Outcome(error="crash"), *played()[1:]))

    assert found is not None
    assert found.fields["error"] == ("crash", None)


def test_what_was_not_played_is_not_compared() -> None:
    assert first_difference(WORKLOAD, played()[:1]) is None


def test_requests_behind_a_difference_do_not_count_as_agreeing() -> None:
    outcomes = played()
    refused = replace(outcomes[1], error="invalid_request_error")
    found = first_difference(WORKLOAD, (outcomes[0], refused, outcomes[2]))
    tally = Tally()

    tally.count(Played(workload=WORKLOAD, outcomes=outcomes, difference=found))

    assert (tally.requests["hybrid"], tally.agreeing["hybrid"]) == (2, 1)
    assert not tally.all_agree
