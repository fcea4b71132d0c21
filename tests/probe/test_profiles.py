"""Simulated releases that explain the counts of a server."""

from dataclasses import replace

import pytest

from cachesim.lab.probe.answers import Answer, Query
from cachesim.lab.probe.command import Settings, run
from cachesim.lab.probe.profiles import Fingerprint
from cachesim.scenario.format import FORMAT, Model, Scenario, Server
from tests.probe.fakes import fake

EMPTY = Scenario(format=FORMAT, name="", model=Model(preset="dense"), engine=Server(name=""))


@pytest.mark.thorough
def test_the_true_release_is_always_among_those_that_are_left() -> None:
    with fake("llama", "llama.cpp@b9538", model="hybrid") as server:
        result = run(Settings(url=server.url, requests=250, minutes=2.0, longest=200)).result
    found = result.outcome.fingerprint
    assert len(found.left) < found.first
    assert any("b9538" in each.releases and "hybrid" == each.model for each in found.left)
    assert not found.unexplained


def test_rules_that_releases_share_are_one_candidate() -> None:
    found = Fingerprint.of("mlx-lm", 1, 4096)
    releases = [each for one in found.left for each in one.releases]
    assert found.first == len(found.left) < len(releases)


@pytest.mark.parametrize("engine", ["llama.cpp", "vllm", "sglang", "mlx-lm"])
def test_the_workload_on_which_counts_differ_is_chosen(engine: str) -> None:
    once, twice = (replace(EMPTY, name=name) for name in ("once", "twice"))
    query = Query(prompt=tuple(range(40)), reply=(41,))
    drawn = [(once, [query]), (twice, [query, query])]
    assert twice == Fingerprint.of(engine, 1, 4096).dividing(drawn)


def test_a_count_that_no_release_explains_is_named() -> None:
    found = Fingerprint.of("sglang", 1, 4096)
    found.add(Query(prompt=(1, 2, 3), reply=(4,)), Answer(cached=2, tokens=(4,)))
    assert [] == found.left
    assert "request 1 reports 2 of 3 tokens cached; the simulated servers that explained all " in (
        found.unexplained
    )
