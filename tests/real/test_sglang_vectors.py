import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.lab.real.vectors.replay import mismatch

VECTORS = Path(__file__).parent.parent / "vectors"
EVERY = 6
"""`cachesim real vectors tests/vectors/sglang-*.gz` plays all of them."""

PARTS = 4
"""Two of these parts of what `tests/record_vectors.py` recorded are played here."""


def lines_of(release: str) -> list[dict[str, Any]]:
    with gzip.open(VECTORS / f"sglang-{release}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.thorough
@pytest.mark.parametrize(("release", "count"), [("0.5.9", 36), ("0.5.23", 36)])
def test_the_scheduler_takes_the_real_ones_decisions(release: str, count: int) -> None:
    lines = lines_of(release)[::EVERY]

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert count == len(lines)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
@pytest.mark.parametrize("part", [1, 3])
def test_a_scheduler_with_a_host_or_with_scarce_pools_takes_the_real_ones_decisions(
    release: str, part: int
) -> None:
    """Every bound of a pool is met exactly by one of the sequences."""
    lines = lines_of(f"pools-{release}")[part::PARTS]

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert len(lines) > 40


@pytest.mark.thorough
def test_a_queue_for_a_scarce_device_with_a_host_takes_the_real_ones_decisions() -> None:
    lines = lines_of("hosts-0.5.23")[::3]

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert {"host", "host-parts", "host-back", "storage"} == {
        line["id"].rpartition("-")[0] for line in lines
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
@pytest.mark.parametrize("part", range(3))
def test_a_schedule_that_overlaps_takes_the_real_ones_decisions(release: str, part: int) -> None:
    """All of them are decided otherwise without overlap."""
    lines = lines_of(f"overlap-{release}")[part::3]

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    for line in lines:
        line["config"]["serial"] = True
        assert mismatch(line) is not None


@pytest.mark.thorough
def test_a_recorded_value_that_was_changed_is_found() -> None:
    line = lines_of("0.5.23")[0]
    line["results"][1]["requests"][0]["cached"] += 1

    found = mismatch(line)

    assert found is not None
    assert line["results"][1] == found.real


def test_an_unknown_release_is_refused_with_the_known_ones() -> None:
    line = lines_of("0.5.9")[0] | {"version": "0.9"}
    with pytest.raises(ScenarioError, match=r"no sglang release '0\.9'; did you mean '0\.5\.9'"):
        mismatch(line)
