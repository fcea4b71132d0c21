"""Workloads on mlx-lm's own server: prompts, counts, keys, states, calls and errors are equal."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cachesim.typed import there_is
from conformance.real.vectors.mlx_server import mismatch

FILE = Path(__file__).parents[2] / "vectors" / "mlx-server.jsonl.gz"
RELEASES = ("0.30.7", "0.31.1", "0.31.3", "0.32.2")
PARTS = 4
"""Of each release another quarter of the workloads, and all that end badly."""


def lines(release: str) -> list[Mapping[str, Any]]:
    found = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
    part = RELEASES.index(release)
    mine = [line for line in found if line["version"] == release]
    died = [line for line in mine if "worker died" in json.dumps(line["results"])]
    return [*died, *(line for line in mine[part::PARTS] if line not in died)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("release", RELEASES)
def test_recorded_workloads_replay_equal(release: str) -> None:
    different = {line["id"]: mismatch(line) for line in lines(release)}

    assert {} == {name: found for name, found in different.items() if found is not None}


def test_a_recording_that_differs_is_noticed() -> None:
    line = dict(lines("0.32.2")[0])
    line["results"] = json.loads(json.dumps(line["results"]))
    line["results"][0]["requests"][0]["cached"] = 1
    found = there_is(mismatch(line))

    assert (0, 1) == (found.step, found.real["requests"][0]["cached"])
