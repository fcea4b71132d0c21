"""Vector files: what is wrong in one, and what is told of a difference."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.prove.playing import Difference, differing
from cachesim.prove.rows import read_row, write_row
from cachesim.typed import there_is
from conformance.real.mlx_lm.classes import mismatch, played
from conformance.real.vectors.replay import replay

VECTORS = Path(__file__).parents[3] / "tests" / "vectors"
CACHES = "mlx-caches.jsonl.gz"


def lines(build: str) -> list[dict[str, Any]]:
    text = gzip.decompress((VECTORS / f"memory-{build}.jsonl.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


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


@cache
def lines_of(name: str) -> list[dict[str, Any]]:
    """Read where they are needed: every process of the tests collects this file."""
    with gzip.open(VECTORS / name, "rt") as file:
        return [json.loads(line) for line in file]


def test_a_recorded_value_that_was_changed_is_found() -> None:
    line = json.loads(json.dumps(lines_of(CACHES)[0]))
    line["results"][3]["after"]["c1"]["offset"] += 1

    found = there_is(mismatch(line))

    assert 3 == found.step
    assert line["results"][3] == found.real


def test_an_unknown_release_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match=r"no mlx-lm release '0\.9'; there are 0\.29\.1"):
        mismatch(lines_of(CACHES)[0] | {"version": "0.9"})


@pytest.mark.parametrize("text", ["", "5", "5-9", "0*250", "1 2", "7 5-7 0*3 4"])
def test_rows_of_tokens_read_and_write_alike(text: str) -> None:
    assert text == write_row(read_row(text))


def recorded(ops: list[dict[str, Any]], results: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "own", "version": "0.32.2", "group": "own", "ops": ops, "results": results}


@pytest.mark.parametrize("rows", [[[""], [""]], [[[]], [[]]]])
def test_a_mask_without_columns_is_read_either_way(rows: list[Any]) -> None:
    new = {"class": "BatchKVCache", "args": {"left_padding": [1, 0]}}
    ops = [
        {"op": "new", "out": "b", "spec": new},
        {"op": "write", "obj": "b", "tokens": ["1 2 3", "4 5 6"]},
        {"op": "mask", "obj": "b", "n": 0},
    ]
    first = [*played(recorded(ops, []))][:2]
    shown = {"ret": {"shape": [2, 1, 0, 3], "rows": rows}}

    assert mismatch(recorded(ops, [*first, shown])) is None
    wrong = {"ret": {"shape": [2, 1, 1, 3], "rows": rows}}
    assert mismatch(recorded(ops, [*first, wrong])) is not None


@pytest.mark.parametrize("said", [{"start_position": 0}, {"start_position": None}, {}])
def test_where_an_empty_chunked_cache_starts_need_not_be_said(said: dict[str, Any]) -> None:
    spec = {"class": "ChunkedKVCache", "args": {"chunk_size": 4}}
    ops = [{"op": "new", "out": "c", "spec": spec}]
    (result,) = played(recorded(ops, []))
    result["after"]["c"].pop("start_position")
    result["after"]["c"] |= said

    assert mismatch(recorded(ops, [result])) is None
    result["after"]["c"]["start_position"] = 1
    assert mismatch(recorded(ops, [result])) is not None
