"""Recorded decisions of vLLM's and SGLang's schedulers; `cachesim real vectors` plays all lines."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.prove.rows import read_row, spell
from cachesim.typed import there_is
from conformance.real.vectors.replay import Difference, mismatch

VECTORS = Path(__file__).parent.parent / "vectors"


def lines_of(name: str) -> list[dict[str, Any]]:
    with gzip.open(VECTORS / f"{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def decided_otherwise(lines: list[dict[str, Any]]) -> dict[str, Difference]:
    return {line["id"]: found for line in lines if (found := mismatch(line)) is not None}


@pytest.mark.sampled(3)  # one of each kind
@pytest.mark.parametrize(
    ("name", "step", "count"),
    [
        # Few blocks, a short context, and parts of blocks.
        ("fine-0.31.0", 1, 57),
        ("fine-0.33.0", 1, 57),
        ("scarce-0.33.0", 1, 69),
        # States inside a prefill chunk are exported and found.
        ("exports-0.32.0", 1, 36),
        ("exports-0.33.0", 1, 36),
        ("ends-0.33.0", 1, 23),
        # The groups of DeepSeek V4.
        ("compressed-0.28.0", 1, 15),
        ("compressed-0.33.0", 1, 15),
        # Any workloads.
        ("0.19.1", 5, 42),
        ("0.24.0", 5, 47),
        ("0.33.0", 5, 42),
    ],
)
def test_vllms_scheduler_takes_the_real_ones_decisions(name: str, step: int, count: int) -> None:
    lines = lines_of(f"vllm-{name}")[::step]

    assert {} == decided_otherwise(lines)
    assert count == len(lines)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # Workloads on which the rules of the release before or after decide otherwise.
        ("vllm-0.20.2", 18),
        ("vllm-0.22.1", 30),
        ("vllm-0.23.0", 49),
        ("vllm-0.27.1", 11),
        ("vllm-0.31.0", 39),
        # What a runner reads, writes and copies.
        ("vllm-runner-0.24.0", 28),
        ("vllm-runner-0.30.0", 28),
        ("vllm-runner-0.33.0", 29),
        # Sequences written by hand.
        ("vllm-golden-0.33.0", 33),
        # Neighbours: one workload with a block less, or with other tokens in a step.
        pytest.param("vllm-pools-0.28.0", 39, marks=pytest.mark.thorough),
        pytest.param("vllm-pools-0.33.0", 76, marks=pytest.mark.thorough),
    ],
)
def test_special_workloads_are_decided_alike(name: str, count: int) -> None:
    lines = lines_of(name)

    assert {} == decided_otherwise(lines)
    assert count == len(lines)


@pytest.mark.thorough
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_sglangs_scheduler_takes_the_real_ones_decisions(release: str) -> None:
    lines = lines_of(f"sglang-{release}")[::6]

    assert {} == decided_otherwise(lines)
    assert 36 == len(lines)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
@pytest.mark.parametrize("part", [1, 3, 5, 7])
def test_a_scheduler_with_a_host_or_with_scarce_pools_takes_the_real_ones_decisions(
    release: str, part: int
) -> None:
    """Every bound of a pool is met exactly by one of the sequences."""
    lines = lines_of(f"sglang-pools-{release}")[part::8]

    assert {} == decided_otherwise(lines)
    assert len(lines) > 20


@pytest.mark.thorough
def test_a_queue_for_a_scarce_device_with_a_host_takes_the_real_ones_decisions() -> None:
    lines = lines_of("sglang-hosts-0.5.23")[::3]

    assert {} == decided_otherwise(lines)
    assert {"host", "host-parts", "host-back", "storage"} == {
        line["id"].rpartition("-")[0] for line in lines
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
@pytest.mark.parametrize("part", range(3))
def test_a_schedule_that_overlaps_takes_the_real_ones_decisions(release: str, part: int) -> None:
    """All of them are decided otherwise without overlap."""
    lines = lines_of(f"sglang-overlap-{release}")[part::3]

    assert {} == decided_otherwise(lines)
    for line in lines:
        line["config"]["serial"] = True
    assert [line["id"] for line in lines] == list(decided_otherwise(lines))


def test_a_recorded_read_that_was_changed_is_found() -> None:
    line = lines_of("vllm-runner-0.33.0")[0]
    [row, *_] = line["results"][-1]["steps"][-1]["rows"].values()
    row["delta"]["1"][0] += 1

    assert mismatch(line) is not None


@pytest.mark.parametrize(
    "name", ["vllm-golden-0.33.0", pytest.param("sglang-0.5.23", marks=pytest.mark.thorough)]
)
def test_a_recorded_value_that_was_changed_is_found(name: str) -> None:
    line = lines_of(name)[0]
    line["results"][1]["requests"][0]["cached"] += 1

    found = there_is(mismatch(line))

    assert (1, line["results"][1]) == (found.step, found.real)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm-golden-0.33.0", r"no vllm release '0\.9'; there are 0\.19\.1"),
        ("sglang-0.5.9", r"no sglang release '0\.9'; did you mean '0\.5\.9'"),
    ],
)
def test_an_unknown_release_is_refused_with_the_known_ones(name: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        mismatch(lines_of(name)[0] | {"version": "0.9"})


@pytest.mark.parametrize("text", ["", "5", "5-9", "1 3", "7 5-7 9 4"])
def test_rows_of_tokens_read_and_write_alike(text: str) -> None:
    assert text == spell(read_row(text))
