"""Recorded calls of llama.cpp's own memory classes, replayed one by one."""

import gzip
import json
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from conformance.real.mlx_lm.classes import mismatch
from conformance.real.vectors import memory as memory_vectors
from conformance.real.vectors.replay import replay

VECTORS = Path(__file__).parents[3] / "vectors"
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


CACHES, STORES = "mlx-caches.jsonl.gz", "mlx-store.jsonl.gz"
RELEASES = ("0.30.7", "0.31.1", "0.31.3", "0.32.2")
GROUPS = (
    "ArraysCache", "BatchKVCache", "BatchRotatingKVCache", "CacheList", "ChunkedKVCache",
    "KVCache", "RotatingKVCache",
)  # fmt: skip


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
