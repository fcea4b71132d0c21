"""Drawn workloads in which a request arrives while another one is read."""

import pytest

from cachesim.lab.real.llama_cpp.agents import ROOM, draw_arrival, draw_pinned
from cachesim.lab.real.llama_cpp.simulated import SimulatedServer
from cachesim.lab.real.llama_cpp.workload import Release, grouped

BATCH = 2048


@pytest.mark.parametrize("number", range(30))
def test_the_other_request_arrives_between_two_batches(number: int) -> None:
    workload = draw_arrival(0, number, release="b11549")

    *alone, pair, after = list(grouped(workload.step))
    reading, arriving = pair
    assert all(len(group) == 1 and not group[0].turns for group in (*alone, after))
    assert (None, 1) == (reading.turns, arriving.turns)
    assert len(reading.ids) > BATCH
    assert all(len(step.ids) < ROOM // 3 for step in workload.step)
    assert "batch_size" not in workload.engine.options


def test_the_same_seed_draws_the_same() -> None:
    assert draw_arrival(3, 1, release="b9538") == draw_arrival(3, 1, release="b9538")
    assert draw_arrival(3, 1, release="b9538") != draw_arrival(3, 2, release="b9538")


@pytest.mark.parametrize("release", ["b9538", "b11549"])
def test_some_meet_a_slot_at_work(release: Release) -> None:
    met = 0
    for number in range(12):
        workload = draw_arrival(1, number, release=release, presets=("recurrent",))
        server = SimulatedServer(workload)
        for group in grouped(workload.step):
            server.send(group)
            if server.lost:
                break
        met += any(event.name() == "task-deferred" for event in server.session.engine.events)
    assert met >= 3


def test_somebody_names_the_slot_that_reads_and_goes_on_with_what_is_parked() -> None:
    drawn = [draw_pinned(0, number, release="b11549") for number in range(40)]

    for each in drawn:
        parked, reading, arriving = each.step
        assert parked.ids == arriving.ids[: len(parked.ids)]
        assert len(reading.ids) > BATCH
        assert {-1: True, 0: True}[arriving.slot]
    assert {-1, 0, 1} == {
        (len(each.step[0].ids) > len(each.step[1].ids))
        - (len(each.step[0].ids) < len(each.step[1].ids))
        for each in drawn
    }
