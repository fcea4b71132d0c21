import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.lab.real.prompts import read_row, spell
from cachesim.lab.real.vectors.replay import mismatch

VECTORS = Path(__file__).parent.parent / "vectors"
EVERY = 5
"""`cachesim real vectors tests/vectors/vllm-*.gz` plays all of them."""


def lines_of(name: str) -> list[dict[str, Any]]:
    with gzip.open(VECTORS / f"vllm-{name}.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


GOLDEN = lines_of("golden-0.33.0")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("release", "count"), [("0.19.1", 42), ("0.24.0", 47), ("0.33.0", 42)])
def test_the_scheduler_takes_the_real_ones_decisions(release: str, count: int) -> None:
    lines = lines_of(release)[::EVERY]

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert count == len(lines)


@pytest.mark.parametrize(
    ("release", "count"),
    [("0.20.2", 18), ("0.22.1", 30), ("0.23.0", 49), ("0.27.1", 11), ("0.31.0", 39)],
)
def test_what_tells_a_release_from_its_neighbours_is_decided_alike(
    release: str, count: int
) -> None:
    """Workloads on which the rules of the release before or after decide otherwise."""
    lines = lines_of(release)

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert count == len(lines)


@pytest.mark.thorough
@pytest.mark.parametrize(("release", "count"), [("0.28.0", 39), ("0.33.0", 76)])
def test_schedulers_with_scarce_blocks_or_tokens_take_the_real_ones_decisions(
    release: str, count: int
) -> None:
    """Neighbours: one workload with a block less, or with other tokens in a step."""
    lines = lines_of(f"pools-{release}")

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert count == len(lines)


@pytest.mark.parametrize(("release", "count"), [("0.24.0", 28), ("0.30.0", 28), ("0.33.0", 29)])
def test_a_runner_reads_writes_and_copies_as_the_real_one(release: str, count: int) -> None:
    lines = lines_of(f"runner-{release}")

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert count == len(lines)


def test_a_recorded_read_that_was_changed_is_found() -> None:
    line = json.loads(json.dumps(lines_of("runner-0.33.0")[0]))
    [row, *_] = line["results"][-1]["steps"][-1]["rows"].values()
    row["delta"]["1"][0] += 1

    assert mismatch(line) is not None


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "count"),
    [("scarce-0.33.0", 69), ("ends-0.33.0", 23), ("fine-0.31.0", 57), ("fine-0.33.0", 57)],
)
def test_few_blocks_a_short_context_and_parts_of_blocks_are_scheduled_alike(
    name: str, count: int
) -> None:
    lines = lines_of(name)

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert count == len(lines)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("release", ["0.28.0", "0.33.0"])
def test_the_groups_of_deepseek_v4_are_scheduled_alike(release: str) -> None:
    lines = lines_of(f"compressed-{release}")

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert 15 == len(lines)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("release", ["0.32.0", "0.33.0"])
def test_states_inside_a_prefill_chunk_are_exported_and_found_alike(release: str) -> None:
    lines = lines_of(f"exports-{release}")

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert 36 == len(lines)


def test_the_hand_written_sequences_give_the_real_decisions() -> None:
    found = {line["id"]: mismatch(line) for line in GOLDEN}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert 33 == len(GOLDEN)


def test_a_recorded_value_that_was_changed_is_found() -> None:
    line = json.loads(json.dumps(GOLDEN[0]))
    line["results"][1]["requests"][0]["cached"] += 16

    found = mismatch(line)

    assert found is not None
    assert 1 == found.step
    assert line["results"][1] == found.real


def test_an_unknown_release_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match=r"no vllm release '0\.9'; there are 0\.19\.1"):
        mismatch(GOLDEN[0] | {"version": "0.9"})


@pytest.mark.parametrize("text", ["", "5", "5-9", "1 3", "7 5-7 9 4"])
def test_rows_of_tokens_read_and_write_alike(text: str) -> None:
    assert text == spell(read_row(text))
