"""The first 300 requests of Mooncake's conversation trace: read as published, played by engines.

`python -m conformance.published` plays the whole trace; see there.
"""

import gzip
from pathlib import Path

import pytest

from cachesim.traces.plan import read_plan
from cachesim.traces.reading import open_trace
from cachesim.traces.replay import Cell, play
from cachesim.traces.source import Source
from conformance.published import COLUMN, least_recent, main

ROOT = Path(__file__).parents[2]
SHORT = ROOT / "tests" / "traces" / "data" / "conversation-300.jsonl.gz"

REUSED = {
    ("bound", "dense", ()): 10811,
    ("llama.cpp@b11549", "dense", (("ctx_size", 65536), ("cache_ram", 47))): 9552,
    ("llama.cpp@b11549", "hybrid", (("ctx_size", 65536), ("cache_ram", 47))): 2246,
    ("mlx-lm@0.32.2", "dense", ()): 4784,
    ("vllm@0.33.0", "dense", (("num_gpu_blocks_override", 5860),)): 9952,
    ("vllm@0.33.0", "hybrid", (("num_gpu_blocks_override", 11720),)): 10704,
    (
        "sglang@0.5.23",
        "dense",
        (("max_total_tokens", 93760), ("page_size", 16), ("context_length", 16000)),
    ): 9952,
    ("marconi@paper", "hybrid", (("n", 4), ("capacity_bytes", 6_144_655_360))): 4832,
}
"""Tokens, of 133,588."""


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "conversation_trace.jsonl"
    path.write_bytes(gzip.decompress(SHORT.read_bytes()))
    return path


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cell", REUSED, ids=lambda each: f"{each[0]}-{each[1]}")
def test_engines_reuse_so_many_tokens_of_it(cell: tuple[str, str, tuple], short: Path) -> None:
    profile, model, options = cell
    source = Source(name=str(short), scale=32)

    found = play(Cell(source=source, profile=profile, model=model, options=options))

    assert (300, 133_588) == (found["requests"], found["prompt_tokens"])
    assert REUSED[cell] == found["cached"]


@pytest.mark.parametrize(("plan", "cells"), [("conversation", 20), ("fleet", 32)])
def test_every_cell_of_a_plan_in_the_documentation_starts(
    plan: str, cells: int, short: Path
) -> None:
    assert cells == len(read_plan(ROOT / "benchmarks" / f"{plan}.toml", short.parent))


def test_a_block_cache_that_forgets_nothing_reuses_what_the_bound_does(short: Path) -> None:
    unit, requests = open_trace(short)
    asked = list(requests)
    whole = least_recent([*asked[:0], *asked], unit, 1 << 40, tail_first=True)

    late = asked[150:]
    seen: set[int] = set()
    equal = 0
    for number, each in enumerate(asked):
        known = [block in seen for block in each.blocks]
        leading = known.index(False) if False in known else len(known)
        equal += min(leading * unit, each.length) if number >= 150 else 0
        seen.update(each.blocks)

    assert whole == 100 * equal / sum(each.length for each in late)


def test_a_smaller_block_cache_reuses_less(short: Path) -> None:
    shares = []
    for size in (1 << 14, 1 << 20, 1 << 40):
        unit, requests = open_trace(short)
        shares.append(least_recent(requests, unit, size, tail_first=True))

    assert shares == sorted(shares)
    assert list(COLUMN) == sorted(COLUMN)


def test_without_the_trace_the_command_says_what_it_needs(tmp_path: Path) -> None:
    assert 2 == main([str(tmp_path)])
