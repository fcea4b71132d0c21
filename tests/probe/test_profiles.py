"""Simulated releases that explain the counts of a server."""

from dataclasses import replace
from typing import Any

import pytest

from cachesim.probe.answers import Answer, Query
from cachesim.probe.command import Settings, run
from cachesim.probe.connection import Limits, Meter
from cachesim.probe.loop import Probe
from cachesim.probe.outcome import Finding, Outcome
from cachesim.probe.profiles import Fingerprint, Guide
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
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
    releases = [release for one in found.left for release in one.releases]
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


def test_after_a_finding_more_workloads_are_drawn_until_another_fault_is_met() -> None:
    """A prompt of 60 tokens, another one, and the first again up to its checkpoint."""
    long, other = tuple(range(300, 360)), (400, 401)
    prompts = ((long,), (long, other, long[:-5]))
    plain, wrong = (
        replace(
            EMPTY,
            engine=Server(name="llama.cpp"),
            step=tuple(Step(name=f"r{at}", prompt=p, reply=(500,)) for at, p in enumerate(prompt)),
        )
        for prompt in prompts
    )
    every = Fingerprint.of("llama.cpp", 1, 4096).left
    true = [e for e in every if "b11549" in e.releases and e.model == "swa" and not e.shown]
    for cured, chosen, count in (((), plain, 8), (("erase-equal",), wrong, 20)):
        drawn = iter([plain] * 19 + [wrong] * 100)
        assert chosen == Guide(true, 8, cured).choose(lambda source=drawn: next(source))
        assert 119 - count == len(list(drawn))


def test_a_cause_that_needs_a_flag_is_found() -> None:
    """With --swa-full a conversation that is loaded again lacks keys of its window."""
    first, other = tuple(range(300, 332)), tuple(range(400, 416))
    steps = tuple(
        Step(name=f"r{at}", prompt=prompt, reply=(500, 501), cache_prompt=prompt is first)
        for at, prompt in enumerate((first, other, first))
    )
    probe: Any = Probe.__new__(Probe)
    probe.outcome, probe._explaining, probe.meter = Outcome(), None, Meter(Limits())
    every = Fingerprint.of("llama.cpp", 1, 4096)
    every.left = [each for each in every.left if each.model in {"dense", "swa"}]
    probe.outcome.fingerprint = every
    workload = replace(EMPTY, engine=Server(name="llama.cpp"), step=steps)
    finding = Finding(kind="answer", sentence="", requests=3, seconds=0.0, scenario=workload)
    probe._explain(finding)
    assert finding.server is not None
    assert "swa_full=True" == finding.server.flags
    assert ["(swa swa_full=True)" in each for each in finding.mechanism] == [True]
