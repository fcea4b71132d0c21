"""Cells as runs, with the marks that say whose they are."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines import Engine, Request
from cachesim.engines.family import Profile
from cachesim.engines.held import UNKNOWN, Marks, Run, runs_of
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.model.trace import Traced
from cachesim.play.session import Session
from cachesim.testing.search import workloads
from cachesim.testing.workloads import Shape
from cachesim.units import as_tokens

NUMBERS = st.lists(st.integers(0, 3), min_size=0, max_size=30)


@given(NUMBERS, NUMBERS, NUMBERS, st.booleans())
def test_runs_say_of_every_cell_what_was_said_of_it(
    steps: list[int], gaps: list[int], marks: list[int], known: bool
) -> None:
    count = min(len(steps), len(gaps), len(marks))
    cells = np.cumsum(np.array(steps[:count], np.int64) // 3 + 1)
    positions = np.cumsum(np.array(gaps[:count], np.int64) // 2 + 1)
    owners = np.array(marks[:count], np.int64) // 3 + 1
    births = np.cumsum(np.array(marks[:count], np.int64) // 2 + 1) if known else None

    told = [
        (run.cell + i, run.position + i, run.owners, run.birth + i if known else run.birth)
        for run in runs_of(cells, positions, owners, births)
        for i in range(run.count)
    ]

    expected = births if births is not None else np.full(count, UNKNOWN)
    assert list(zip(cells, positions, owners, expected, strict=True)) == told


def test_neighbours_are_one_run_until_one_thing_breaks_step() -> None:
    found = runs_of(
        np.array([0, 1, 2, 3, 9]),
        np.array([0, 1, 2, 7, 8]),
        np.ones(5),
        np.array([4, 5, 9, 10, 11]),
    )

    assert (
        Run(0, 0, 2, 1, 4),
        Run(2, 2, 1, 1, 9),
        Run(3, 7, 1, 1, 10),
        Run(9, 8, 1, 1, 11),
    ) == found


def test_a_network_without_a_trace_has_no_ledgers_and_its_memory_no_origins() -> None:
    network = build(preset("hybrid"), "ring")
    server = Engine.create("llama.cpp@b9538", model=network)
    server.submit(Request(prompt=as_tokens(range(270, 280)), predict=2))
    server.run()
    held = server.held()

    assert {} == Marks.of(network).layers
    assert [Run(0, 0, 11, 1, UNKNOWN)] == list(held.cells[0].runs)
    assert [(10, UNKNOWN)] == [(row.position, row.node) for row in held.rows]


@pytest.mark.parametrize(
    "profile",
    [
        "llama.cpp@b11549",
        "ik_llama.cpp@8337e4cd3",
        "mlx-lm@0.32.2",
        "vllm@0.33.0",
        "sglang@0.5.23",
        "marconi@paper",
    ],
)
def test_what_is_told_after_every_step_is_a_part_of_all_that_is_held(profile: str) -> None:
    parsed, texts = Profile.parse(profile), 0
    shape = Shape(fixed={"enable_hierarchical_cache": True} if "sglang" in profile else {})
    for scenario in islice(workloads(parsed, "hybrid", shape=shape), 4):
        session = Session(scenario, parsed, arithmetic="ring")
        for _ in session.run():
            server = session.engine
            snapshot, books = server.snapshot(), server.books()
            assert snapshot["prompt_cache"] == books["prompt_cache"]
            assert len(snapshot["slots"]) == len(books["slots"])
            for whole, told in zip(snapshot["slots"], books["slots"], strict=True):
                assert told.items() <= whole.items()
            assert server.held().texts == server.texts()
            texts += len(server.texts().slots) + len(server.texts().entries)
    assert bool(texts) == (parsed.engine not in {"vllm", "marconi"})


def test_two_moments_that_hold_the_same_are_equal_and_hash_alike() -> None:
    server = Engine.create("llama.cpp@b9538", model=Traced(build(preset("hybrid"), "ring")))
    empty = server.held()
    server.submit(Request(prompt=as_tokens(range(270, 280)), predict=2))
    server.run()

    assert server.held() == server.held()
    assert 2 == len({empty, server.held(), server.held()})
