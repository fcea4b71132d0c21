"""Workloads for models that recall facts, and the search for leaks on them."""

from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.engines.family import Profile
from cachesim.model import recall
from cachesim.play import run
from cachesim.scenario import load
from cachesim.scenario.format import Step
from cachesim.testing.facts import with_facts
from cachesim.testing.search import search
from cachesim.testing.workloads import Seeded, Shape

STALE = Profile.parse("llama.cpp@b11549")
LEAKS = Shape(incidents=True)


def test_facts_lie_where_conversations_diverge() -> None:
    steps = [
        Step(name="a", prompt=(300, 301, 302, 303, 304), reply=(305,)),
        Step(name="b", prompt=(300, 301, 402, 403, 404, 405), reply=(406,)),
    ]
    a, b = (step.ids for step in with_facts(steps, Seeded(1)))
    assert a[:2] == b[:2]
    assert recall.is_name(a[1])
    assert [recall.is_value(a[2]), recall.is_value(b[2])] == [True, True]
    assert a[2] != b[2]
    assert b[-2:] == (b[1], recall.ASK)


@pytest.mark.thorough
@pytest.mark.nightly
def test_a_leak_is_found_and_written_as_texts_of_words(tmp_path: Path) -> None:
    found = ["check", str(STALE), "--find", "leak", "--jobs", "1", "--emit", str(tmp_path)]
    assert 1 == main(found)

    (file,) = tmp_path.glob("*.toml")
    scenario = load(file)
    steps = run(scenario, STALE, arithmetic="float").steps
    assert all(isinstance(text, str) for text in scenario.spans.values())
    assert all(step.reply is None for step in scenario.step)
    assert len(steps) <= 4
    assert "leak" in {fact.word for step in steps for fact in step.facts}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "count", [60, pytest.param(2_000, marks=[pytest.mark.thorough, pytest.mark.nightly])]
)
def test_a_profile_without_the_defect_leaks_nothing(count: int) -> None:
    cured = STALE.with_patches("erase-equal")
    report = search(
        cured, "recall-hybrid-delta", examples=count, arithmetic="float", shape=LEAKS, only="leak"
    )
    assert report.counterexample is None
