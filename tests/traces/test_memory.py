"""A trace larger than memory is read and played: what is held does not grow with the file."""

import io
import json
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachesim.traces.reading import open_trace
from cachesim.traces.replay import Cell, play
from cachesim.traces.source import Source

KIB = 1024
SHARED, OWN = 24, 8
"""Blocks of a request; Python keeps short tuples for later, so they are longer than that."""


def written(path: Path, count: int) -> Path:
    """A trace of requests that share their first blocks."""
    with path.open("w") as lines:
        for number in range(count):
            own = range(SHARED + OWN * number, SHARED + OWN * (number + 1))
            told = {
                "timestamp": number,
                "input_length": 512 * (SHARED + OWN),
                "output_length": 9,
                "hash_ids": [*range(SHARED), *own],
            }
            lines.write(json.dumps(told) + "\n")
    return path


def peak(work: Callable[[], object]) -> int:
    """The most bytes that Python held at once while working, beyond those before."""
    work()  # what is made once and kept is made now
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.thorough
def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = written(tmp_path / "long.jsonl", 6000)

    held = peak(lambda: deque(open_trace(path)[1], maxlen=0))

    assert path.stat().st_size > 1200 * KIB
    assert held < 50 * KIB + 2 * io.DEFAULT_BUFFER_SIZE  # larger from Python 3.14 on


@pytest.mark.thorough
@pytest.mark.parametrize(
    "profile", ["bound", pytest.param("llama.cpp@b11549", marks=pytest.mark.nightly)]
)
def test_a_replay_that_remembers_so_many_blocks_holds_no_more_for_a_longer_trace(
    profile: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "long.jsonl", 2000)

    def held(first: int, remember: int | None = 300) -> int:
        source = Source(name=str(path), scale=128, first=first, remember=remember)
        return peak(lambda: play(Cell(source=source, profile=profile, model="dense")))

    short, long = held(500), held(2000)

    assert long < short + 40 * KIB
    assert held(2000, None) > long + 200 * KIB  # what is remembered is what grows


@pytest.mark.thorough
@pytest.mark.nightly
@pytest.mark.parametrize("profile", ["vllm@0.33.0", "vllm@0.19.1"])
def test_an_account_that_remembers_so_many_blocks_does_not_grow(profile: str) -> None:
    def held(first: int, remember: int | None = 200) -> int:
        source = Source(name="made:1600", scale=32, replies=1, first=first, remember=remember)
        return peak(lambda: play(Cell(source=source, profile=profile, model="dense")))

    short, long = held(800), held(1600)  # the pool is full after 500

    assert long < short + 600 * KIB
    assert held(1600, None) > long + 2500 * KIB


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", ["dense", "swa", "hybrid"])
@pytest.mark.parametrize("options", [(), (("num_gpu_blocks_override", 90),)])
def test_what_is_forgotten_changes_no_decision(
    model: str, options: tuple[tuple[str, int], ...]
) -> None:
    def played(remember: int | None) -> dict[str, Any]:
        source = Source(name="made:300", scale=32, replies=20, remember=remember, turn=2)
        return play(Cell(source=source, profile="vllm@0.33.0", model=model, options=options))

    every, few = played(None), played(12)

    assert every["cached"] == few["cached"]
    assert every["held"] == few["held"]
    assert bool(options) == (sum(every["lost"].values()) > sum(few["lost"].values()))
