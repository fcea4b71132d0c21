import gzip
import json
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.lab.real.mlx_lm.cache_player import mismatch, played
from cachesim.lab.real.prompts import read_row, write_row

VECTORS = Path(__file__).parent.parent / "vectors"
CACHES, STORES = "mlx-caches.jsonl.gz", "mlx-store.jsonl.gz"
RELEASES = ("0.30.7", "0.31.1", "0.31.3", "0.32.2")
GROUPS = (
    "ArraysCache",
    "BatchKVCache",
    "BatchRotatingKVCache",
    "CacheList",
    "ChunkedKVCache",
    "KVCache",
    "RotatingKVCache",
)


@cache
def lines_of(name: str) -> list[dict[str, Any]]:
    """Read where they are needed: every process of the tests collects this file."""
    with gzip.open(VECTORS / name, "rt") as file:
        return [json.loads(line) for line in file]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("group", GROUPS)
def test_every_operation_on_the_cache_classes_is_the_real_one(group: str, release: str) -> None:
    lines = [
        line for line in lines_of(CACHES) if (line["group"], line["version"]) == (group, release)
    ]

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert 60 == len(lines)


def test_all_that_was_recorded_of_the_classes_is_replayed() -> None:
    recorded = {(line["group"], line["version"]) for line in lines_of(CACHES)}

    assert set(product(GROUPS, RELEASES)) == recorded


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", RELEASES)
def test_every_operation_on_the_store_is_the_real_one(release: str) -> None:
    lines = [line for line in lines_of(STORES) if line["version"] == release]

    found = {line["id"]: mismatch(line) for line in lines}

    assert {} == {name: each for name, each in found.items() if each is not None}
    assert Counter(store=150, trie=50 * (release >= "0.31.3")) == Counter(
        line["group"] for line in lines
    )


def test_a_recorded_value_that_was_changed_is_found() -> None:
    line = json.loads(json.dumps(lines_of(CACHES)[0]))
    line["results"][3]["after"]["c1"]["offset"] += 1

    found = mismatch(line)

    assert found is not None
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
