"""A trace larger than memory is read and played: what is held does not grow with the file."""

import json
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path

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


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = written(tmp_path / "long.jsonl", 6000)

    held = peak(lambda: deque(open_trace(path)[1], maxlen=0))

    assert path.stat().st_size > 1200 * KIB
    assert held < 60 * KIB


@pytest.mark.parametrize("profile", ["bound", "llama.cpp@b11549"])
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
