"""Drawn workloads in which a request arrives while another one is read."""

import pytest

from cachesim.real.llama_cpp.arrivals import CONTEXT, draw_arrival, draw_pinned
from cachesim.real.llama_cpp.calls import grouped
from cachesim.real.llama_cpp.simulated import SimulatedServer
from cachesim.real.llama_cpp.workload import Release

BATCH = 2048


@pytest.mark.parametrize("number", range(30))
def test_the_other_request_arrives_between_two_batches(number: int) -> None:
    workload = draw_arrival(0, number, release="b11549")

    *alone, pair, after = list(grouped(workload.steps))
    reading, arriving = pair
    assert all(len(group) == 1 and not group[0].turns for group in (*alone, after))
    assert (0, 1) == (reading.turns, arriving.turns)
    assert len(reading.prompt) > BATCH
    assert all(len(step.prompt) < CONTEXT // 3 for step in workload.steps)
    assert "batch_size" not in workload.options


def test_the_same_seed_draws_the_same() -> None:
    assert draw_arrival(3, 1, release="b9538") == draw_arrival(3, 1, release="b9538")
    assert draw_arrival(3, 1, release="b9538") != draw_arrival(3, 2, release="b9538")


@pytest.mark.parametrize("release", ["b9538", "b11549"])
def test_some_meet_a_slot_at_work(release: Release) -> None:
    met = 0
    for number in range(12):
        workload = draw_arrival(1, number, release=release, presets=("recurrent",))
        server = SimulatedServer.of(workload)
        for group in grouped(workload.steps):
            server.ask(group)
            if server.lost:
                break
        met += any(event.name() == "task-deferred" for event in server.engine.events)
    assert met >= 3


def test_somebody_names_the_slot_that_reads_and_goes_on_with_what_is_parked() -> None:
    drawn = [draw_pinned(0, number, release="b11549") for number in range(40)]

    for each in drawn:
        parked, reading, arriving = each.steps
        assert parked.prompt == arriving.prompt[: len(parked.prompt)]
        assert len(reading.prompt) > BATCH
        assert {-1: True, 0: True}[arriving.slot]
    assert {-1, 0, 1} == {
        (len(each.steps[0].prompt) > len(each.steps[1].prompt))
        - (len(each.steps[0].prompt) < len(each.steps[1].prompt))
        for each in drawn
    }
