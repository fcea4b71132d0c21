"""Workloads that were played on the real servers replay with equal counts, slot by slot."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.lab.real.vectors.servers import mismatch

VECTORS = Path(__file__).parents[2] / "vectors"


def workloads(release: str) -> list[dict[str, Any]]:
    with gzip.open(VECTORS / f"server-{release}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "release",
    [*(pytest.param(each, marks=pytest.mark.thorough) for each in ("b9093", "b9538")), "b11549"],
)
def test_every_request_of_the_real_server_replays(release: str) -> None:
    lines = workloads(release)
    different = {line["id"]: found for line in lines if (found := mismatch(line)) is not None}

    assert different == {}
    assert sum(len(line["steps"]) for line in lines) == 1133


def test_a_workload_of_another_release_is_told_apart() -> None:
    """The files differ between releases, so a port that ignored its rules would be seen."""
    june, october = workloads("b9538"), workloads("b11549")
    crossed = [
        dict(line, profile=other["profile"])
        for line, other in zip(june[::5], october[::5], strict=True)
    ]

    assert sum(mismatch(line) is not None for line in crossed) >= 5
