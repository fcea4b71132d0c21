"""Policies that keep states: what they hold, what they reuse, and the bound above them."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.errors import InputError
from cachesim.model.spec import Sizes
from cachesim.traces.playing import check, play
from cachesim.traces.replay import Cell, Measured
from cachesim.traces.retention import POLICIES, Cache, Future, Ideal, Path, Rules
from cachesim.traces.source import Source
from tests.fixtures import output

ONLINE = [name for name in POLICIES if name != "bound"]


def cell(policy: str, memory: int, *, model: str = "hybrid", **options: Any) -> Cell:
    sizes = Sizes(token=1, state=50) if model == "hybrid" else Sizes(token=1)
    return Cell(
        source=Source(name="made:300", scale=32),
        profile=f"keep:{policy}",
        model=model,
        options=(("memory", memory), *options.items()),
        measured=Measured(sizes=sizes, by="a test"),
    )


def drawn(seed: int) -> list[tuple[Path, Path, int]]:
    """Requests that part from each other in a tree of three branches."""
    draw, numbers, found = random.Random(seed), dict[tuple[int, ...], int](), []
    for _ in range(60):
        steps = tuple(draw.randrange(3) for _ in range(draw.randint(1, 5)))
        blocks = [
            (numbers.setdefault(steps[:end], len(numbers)), 4) for end in range(1, len(steps) + 1)
        ]
        found.append((blocks, blocks, 4 * len(blocks) + draw.randint(0, 1)))
    return found


def cache_of(name: str, memory: int, state: int, requests: list[tuple[Path, Path, int]]) -> Cache:
    rules = Rules(memory, interval=2)
    return Cache(POLICIES[name], rules, 2, state, Future(requests))


@pytest.mark.parametrize("state", [0, 3, 40])
@pytest.mark.parametrize("policy", ONLINE)
def test_a_cache_counts_its_bytes_and_stays_within_them(policy: str, state: int) -> None:
    for seed, memory in enumerate([0, 10, 60, 150, 400]):
        requests = drawn(seed)
        cache = cache_of(policy, memory, state, requests)
        for now, request in enumerate(requests):
            cache.serve(now, *request)
            nodes = cache.nodes.values()
            assert (
                sum(2 * each.size + state * each.state for each in nodes) == cache.bytes <= memory
            )
            for node in nodes:
                assert node.parent is None or cache.nodes[node.parent.block] is node.parent
                assert node.children == sum(each.parent is node for each in nodes)
                assert node.state or node.children


@pytest.mark.parametrize("state", [0, 3, 40])
@pytest.mark.parametrize("policy", ONLINE)
def test_no_policy_reuses_more_than_the_bound(policy: str, state: int) -> None:
    for seed in range(12):
        requests = drawn(seed)
        for memory in (0, 10, 40, 90, 200, 500):
            cache = cache_of(policy, memory, state, requests)
            ideal = Ideal(2, state)
            reused = 0
            for now, request in enumerate(requests):
                ideal.add(now, *request)
                reused += cache.serve(now, *request)[0]
            assert reused <= ideal.reused(memory, len(requests))


def test_with_room_for_all_every_state_gives_the_bound() -> None:
    found = {name: play(cell(name, 10**9))["cached"] for name in POLICIES}
    assert found["every"] == found["foreseen"] == found["bound"]
    whole = play(replace(cell("every", 1), profile="bound", options=(), measured=None))["cached"]
    assert 0 <= whole - found["bound"] < 16 * 300  # a whole prompt leaves its last block
    assert found["last"] <= found["branch"] < found["every"]


def test_without_states_a_dense_model_loses_nothing_to_them() -> None:
    found = play(cell("every", 10**9, model="dense"))
    assert 0 == found["lost"].get("state-missing", 0) < found["cached"]


def test_a_state_at_the_place_where_requests_part_is_reused_by_the_third() -> None:
    first, second, third = ([(0, 4), (1, 4), (tail, 4)] for tail in (2, 3, 4))
    for policy, reused in (("last", 0), ("branch", 8), ("every", 8)):
        cache = cache_of(policy, 1000, 5, [])
        for now, path in enumerate((first, second)):
            cache.serve(now, path, path, 12)
        assert (reused, 8) == cache.serve(2, third, third, 12)


def test_the_whole_prompt_is_never_reused() -> None:
    path = [(0, 4), (1, 4)]
    cache = cache_of("every", 1000, 5, [])
    cache.serve(0, path, path, 8)
    assert 4 == cache.serve(1, path, path, 8)[0]
    assert 8 == cache.serve(2, path, path, 9)[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_lost_and_what_is_reused_add_up(policy: str) -> None:
    found = play(cell(policy, 4000))
    known = play(replace(cell("every", 1), profile="bound", options=(), measured=None))["cached"]
    assert known == found["cached"] + sum(found["lost"].values())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (cell("evry", 9), "there is no policy 'keep:evry'; there are keep:every"),
        (cell("last", 9, interval=2), "keep:last has no setting 'interval'; it has memory"),
        (cell("sparse", 9, interval=0), "interval is 0; write a number of blocks from 1"),
        (cell("utility", 9, alpha=-1), "alpha is -1; write a number from 0"),
        (replace(cell("last", 9), options=()), "write --set memory=40GB and --sizes MODEL"),
        (replace(cell("last", 9), measured=None), "write --set memory=40GB and --sizes MODEL"),
        (
            replace(cell("last", 9), source=Source(name="made:9", scale=32, turn=3)),
            "leave out --replicas",
        ),
    ],
)
def test_a_wrong_policy_is_refused(wrong: Cell, said: str) -> None:
    with pytest.raises(InputError) as raised:
        check(wrong)
    assert said in str(raised.value)


def test_the_command_prints_the_gap_to_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    line = "compare made:60 -p keep:last -p keep:bound --sizes qwen3.5-27b --jobs 1 --set"
    assert "percentage points below the bound" in output(capsys, [*line.split(), "memory=2GB"])
    rows = json.loads(output(capsys, [*line.split(), "memory=2GB", "--format", "json"]))
    assert ["bound", "keep:last", "keep:bound"] == [row["profile"] for row in rows]
    assert 2 == main([*line.split(), "memory=2GB", "--verify", "2"])
    assert "is a policy and no server" in " ".join(capsys.readouterr().err.split())
