"""Asynchronous scheduling: a step is scheduled before the one before it has come back.

The expected values are those of the releases' own `AsyncScheduler`.
"""

from typing import Any

import pytest

from cachesim.engines.vllm.family import FAMILY
from cachesim.lab.real.vllm.playing import play

FULL = {"kind": "full", "block": 4}
WINDOW = {"kind": "window", "block": 4, "window": 4}


def played(release: str, config: dict[str, Any], *group: dict[str, Any]) -> dict[str, Any]:
    """What a group of requests leaves behind."""
    settings = {"max_seqs": 4, "overlaps": True, "reserve_full": False} | config
    (told,) = play({"config": settings, "steps": [group]}, FAMILY.release(release).rules)
    return told


def asked(prompt: str, generate: int, reply: str, **more: object) -> dict[str, Any]:
    return {"prompt": prompt, "generate": generate, "reply": reply} | more


@pytest.mark.parametrize(
    ("release", "queue"), [("0.33.0", "6 5 7-10 3 1 4 2"), ("0.24.0", "6 5 7-10 2-3 1 4")]
)
def test_since_028_a_window_keeps_the_blocks_that_a_step_in_flight_looks_at(
    release: str, queue: str
) -> None:
    """Three chunks of a prompt: the second block's window is free later than before."""
    config = {"groups": [FULL, WINDOW], "blocks": 11, "budget": 4}

    told = played(release, config, asked("10-18", 1, "19"))

    assert [[0, 4], [4, 8], [8, 9]] == told["requests"][0]["chunks"]
    assert queue == told["queue"]


@pytest.mark.parametrize("release", ["0.33.0", "0.24.0"])
def test_who_is_preempted_with_a_step_in_flight_keeps_the_token_that_it_says(release: str) -> None:
    """The second request's only token comes back after it gave up its blocks: it is done."""
    config = {"groups": [FULL], "blocks": 6, "budget": 64}

    told = played(release, config, asked("10-17", 2, "18-19"), asked("23-31", 1, "32"))

    assert [0, 1] == [each["preempted"] for each in told["requests"]]
    assert [[[0, 8]], [[0, 9]]] == [each["chunks"] for each in told["requests"]]
    assert "5 4 3 2 1" == told["queue"]


@pytest.mark.parametrize("release", ["0.33.0", "0.24.0"])
def test_who_is_preempted_goes_on_behind_the_token_that_came_late(release: str) -> None:
    """Three tokens of prompt and one that came late are read again, in one chunk."""
    config = {"groups": [FULL], "blocks": 5, "budget": 64, "drafts": 1}
    first = asked("10-19", 1, "20", accept=[1, 0])

    told = played(release, config, first, asked("24-26", 2, "27-28", accept=[1, 0]))

    assert [[0, 3], [0, 4]] == told["requests"][1]["chunks"]
    assert ([0, 1], "4 2 1 3") == ([r["preempted"] for r in told["requests"]], told["queue"])


def test_no_step_is_scheduled_for_who_surely_ends_with_the_one_in_flight() -> None:
    """The waiting request is looked up once more while the first one's step is in flight."""
    config = {"groups": [FULL], "blocks": 5, "budget": 64, "drafts": 1}
    group = asked("10-18", 1, "19"), asked("23-28", 1, "29")

    told = played("0.33.0", config, *group)
    alone = played("0.33.0", config | {"overlaps": False}, *group)

    assert [1, 3] == [len(each["lookups"]) for each in told["requests"]]
    assert [1, 2] == [len(each["lookups"]) for each in alone["requests"]]


def test_who_is_aborted_while_a_step_is_in_flight_frees_at_once() -> None:
    config = {"groups": [FULL], "blocks": 5, "budget": 8}

    told = played("0.33.0", config, asked("10-15", 1, "16", abort=3), asked("20-27", 1, "28"))

    assert [[1, 0, 0, 4], [3, 0, 1, 4], [4, 0, 1, 8]] == told["cache"]
    assert "2 1 4 3" == told["queue"]
