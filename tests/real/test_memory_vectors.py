"""Recorded calls of llama.cpp's own memory classes, replayed one by one."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.lab.real.agreement import Difference, differing
from cachesim.lab.real.vectors import memory as memory_vectors
from cachesim.lab.real.vectors.replay import replay

VECTORS = Path(__file__).parent.parent / "vectors"
FILES = {"b9509": 5968, "b11434": 5967}


def lines(build: str) -> list[dict[str, Any]]:
    text = gzip.decompress((VECTORS / f"memory-{build}.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("build", FILES)
def test_every_recorded_operation_is_equal(build: str) -> None:
    summary = replay(VECTORS / f"memory-{build}.jsonl.gz")

    expected = f"240 of 240 sequences, {FILES[build]} of {FILES[build]} operations equal"
    assert (expected, None) == (str(summary), summary.first)


@pytest.mark.thorough
def test_a_sequence_of_the_other_release_differs_somewhere() -> None:
    def differs(line: dict[str, Any]) -> bool:
        return memory_vectors.mismatch({**line, "build": "b9509"}) is not None

    assert any(differs(line) for line in lines("b11434") if line["group"] == "recurrent")


def test_the_first_difference_is_told_field_by_field(tmp_path: Path) -> None:
    line = lines("b11434")[0]
    line["results"][2]["state"]["pos"][0] = [7, 9]
    path = tmp_path / "wrong.jsonl"
    path.write_text(json.dumps(line))

    summary = replay(path)

    assert f"0 of 1 sequences, 2 of {len(line['ops'])} operations equal" == str(summary)
    assert summary.first is not None
    assert any("state.pos[0][1]: real 9, simulated" in text for text in summary.first[1].lines())


def test_differences_are_named_by_their_place() -> None:
    expected = {"ret": 0, "state": {"pos": [[0, 1], [2, 3]]}}
    actual = {"ret": 0, "state": {"pos": [[0, 1], [2, 4]]}, "more": 1}

    assert [("more", None, 1), ("state.pos[1][1]", 3, 4)] == list(differing(expected, actual, ""))
    difference = Difference(step=3, real=expected, simulated=actual)
    assert "  more: real null, simulated 1" == next(difference.lines())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no lines"),
        ('{"id": "x"}', "is no vector file"),
        ("[1]", "write one JSON object per line"),
        ('{"predict": NaN}', "odd.jsonl:1: NaN is no JSON; write a number"),
        ("{", "cannot be read as a vector file"),
    ],
)
def test_what_is_no_vector_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(content)

    with pytest.raises(ScenarioError, match=message):
        replay(path)


@pytest.mark.parametrize(
    ("name", "where", "value", "message"),
    [
        ("memory-b9509", ("ops", 0, "runs", 0, "count"), 2**31 - 1, "a batch of 2,147,483,647"),
        ("memory-b9509", ("ops", 0, "runs", 0, "start"), -1, "a position below 0"),
        ("memory-b9509", ("memory", "cells"), 2**31, "cells: a memory of 2,147,483,648"),
        ("memory-b9509", ("memory", "layers", "kv"), 2**31, "1,000 are the most"),
        ("vllm-0.33.0", ("config", "blocks"), 2**31 - 1, "a pool of 2,147,483,647 blocks"),
        ("sglang-0.5.23", ("steps", 0, 0, "generate"), 2**31, "a reply of 2,147,483,648"),
        ("sglang-0.5.23", ("config", "tokens"), 10**12, "a pool of 1,000,000,000,000"),
    ],
)
def test_counts_and_positions_that_no_memory_holds_are_refused(
    name: str, where: tuple[str | int, ...], value: int, message: str, tmp_path: Path
) -> None:
    text = gzip.decompress((VECTORS / f"{name}.jsonl.gz").read_bytes()).decode()
    line: Any = json.loads(text.partition("\n")[0])
    holder = line
    for key in where[:-1]:
        holder = holder[key]
    holder[where[-1]] = value
    file = tmp_path / "line.jsonl"
    file.write_text(json.dumps(line))

    with pytest.raises(ScenarioError, match=message):
        replay(file)


def test_positions_are_divided_by_no_number_below_one(tmp_path: Path) -> None:
    line = lines("b11434")[0]
    line["ops"].insert(1, {"op": "seq_div", "seq": 0, "p0": 0, "p1": 4, "divisor": 0})
    file = tmp_path / "line.jsonl"
    file.write_text(json.dumps(line))

    with pytest.raises(ScenarioError, match="positions divided by 0; write a whole number"):
        replay(file)
