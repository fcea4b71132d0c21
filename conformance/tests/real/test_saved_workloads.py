"""A played workload, written as a scenario file, loses nothing and runs as it was played."""

import tomllib
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from cachesim.play import run_scenario
from cachesim.play.session import CANCELLED
from cachesim.prove.hunt.arrivals import draw_arrival, draw_pinned
from cachesim.prove.llama_cpp.fitting import Abilities
from cachesim.prove.llama_cpp.simulated import SPARE, SimulatedServer, as_scenario, observed_step
from cachesim.prove.llama_cpp.workload import Outcome, grouped, resolved, vocabulary_of, workload
from cachesim.scenario import files
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import ROLES, Scenario, Step, Turn
from cachesim.units import as_tokens
from conformance.real.llama_cpp.compare import first_difference
from conformance.real.llama_cpp.workloads import draw_setting, grow
from conformance.tests.real.test_workloads import Parrot, repeated

TOKENS = st.lists(st.integers(0, 511), max_size=12).map(as_tokens)
SOME = st.lists(st.integers(0, 511), min_size=1, max_size=12).map(as_tokens)
FLAGS = st.booleans()
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "n_keep": st.integers(-1, 9),
        "prompt_string": FLAGS,
        "tools": st.lists(st.text("ab<[]>| ", min_size=1), min_size=1, max_size=3).map(tuple),
        "add_generation_prompt": FLAGS,
        "lora": st.lists(st.fixed_dictionaries({"id": st.just(0), "scale": st.just(0.5)})).map(
            tuple
        ),
    },
)
CHATS = st.lists(
    st.builds(
        Turn,
        role=st.sampled_from(ROLES),
        content=st.text(st.sampled_from('ab{[]:.5"\\\n\t\u2581S'), max_size=20),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


@st.composite
def completions(draw: st.DrawFn, name: str, before: Step | None) -> Step:
    """A completion; what goes out in one call with the one before asks for the same."""
    common: dict[str, Any] = {
        "predict": draw(st.integers(-1, 40)),
        "slot": draw(st.integers(-1, 3)),
        "cache_prompt": draw(FLAGS),
        "options": draw(FIELDS),
    }
    turns = draw(st.integers(1, 3)) if before is not None and draw(FLAGS) else None
    together = turns is not None or (before is not None and draw(FLAGS))
    if before is not None and together and not turns:
        common = {key: getattr(before, key) for key in common}
        return Step(name=name, prompt=draw(TOKENS), with_previous=True, **common)
    messages = draw(CHATS) if draw(FLAGS) else ()
    leaves = None if together or messages else draw(st.sampled_from([None, "reading", "replying"]))
    step: dict[str, Any] = {
        "prompt": None if messages else draw(TOKENS),
        "messages": messages,
        "parts": draw(FLAGS),
        "with_previous": together,
        "turns": turns,
        "completions": draw(st.integers(1, 4)),
        "leaves": leaves,
        **common,
    }
    endpoint = draw(st.sampled_from(["", "", "infill", "rerank", "embedding"]))
    if endpoint and not messages:
        step["options"] = {"endpoint": endpoint}
        step["suffix"] = draw(TOKENS) if endpoint == "infill" else None
        step["query"] = draw(st.integers(0, 9)) if endpoint == "rerank" else 0
    elif draw(FLAGS):
        step["reply"] = draw(SOME)
        step["predict"] = draw(st.integers(0, len(step["reply"])))
    return Step(name=name, **step)


@st.composite
def actions(draw: st.DrawFn, name: str) -> Step:
    do = draw(st.sampled_from(["slot-save", "slot-restore", "slot-erase", "restart", "set-lora"]))
    slot = draw(st.integers(0, 3)) if do.startswith("slot-") else -1
    file = "kept" if do in {"slot-save", "slot-restore"} else None
    options = {"lora": ({"id": 0, "scale": 0.5},)} if do == "set-lora" else {}
    return Step(name=name, do=do, slot=slot, file=file, options=options)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Scenario, tuple[Outcome, ...]]:
    """A workload, and something a real server may have answered."""
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 6))):
        last = steps[-1] if steps else None
        alone = last is None or last.do != "complete" or last.leaves or last.reply
        plain = alone or bool(last and last.messages) or bool(last and last.options.get("endpoint"))
        kind = completions(f"r{number}", None if plain else last)
        steps.append(draw(kind if draw(st.integers(0, 3)) else actions(f"r{number}")))
    options = draw(
        st.fixed_dictionaries({"parallel": st.integers(1, 4)}, optional={"kv_unified": FLAGS})
    )
    preset = draw(st.sampled_from(["dense", "swa", "hybrid"]))
    asked = workload(
        "w-1",
        release=draw(st.sampled_from(["b8672", "b9538", "b11549"])),
        preset=preset,
        window=draw(st.sampled_from([0, 17])) if preset == "swa" else 0,
        options=options,
        steps=steps,
    )
    return asked, tuple(draw(outcomes(step)) for step in steps)


def outcomes(step: Step) -> st.SearchStrategy[Outcome]:
    if step.do != "complete":
        return st.just(Outcome(slot=step.slot))
    if step.leaves:
        read = st.none() if step.leaves == "replying" else st.integers(0, len(step.ids))
        return st.builds(Outcome, reply=TOKENS, processed=read, error=st.just(CANCELLED))
    refused = st.just(Outcome(error="invalid_request_error"))
    cached = st.none() | st.integers(0, 99)
    return refused | st.builds(Outcome, reply=TOKENS, cached=cached, processed=st.integers(0, 99))


def through_a_file(scenario: Scenario) -> Scenario:
    return files.loads(to_toml(scenario).encode(), name="x.toml")


def sent(scenario: Scenario) -> list[Step]:
    """The steps as a real server gets them."""
    vocabulary = vocabulary_of(scenario)
    return [resolved(scenario, number, vocabulary) for number in range(len(scenario.step))]


@pytest.mark.thorough
@given(workloads())
@settings(max_examples=100)
def test_a_played_workload_is_read_back_from_its_file_as_it_was(
    drawn: tuple[Scenario, tuple[Outcome, ...]],
) -> None:
    asked, answered = drawn
    saved = as_scenario(asked, answered)

    assert saved == through_a_file(saved)
    again = sent(through_a_file(saved))
    assert [replace(each, held=None) for each in sent(asked)] == [
        replace(each, held=None, forced=True, drafts=None) for each in again
    ]


@pytest.mark.thorough
def test_what_the_generators_draw_is_read_back_as_it_was() -> None:
    for number in range(24):
        release = ("b8672", "b9538", "b11549")[number % 3]
        setting = draw_setting(36, number, release=release, everything=True)
        saved = as_scenario(*grow(setting, Parrot(said)))
        assert saved == through_a_file(saved)
        draw = draw_arrival if number % 2 else draw_pinned
        drawn = draw(36, number, release=release, presets=Abilities(release).presets)
        assert drawn == through_a_file(drawn)


def test_more_completions_than_slots_are_refused_in_the_saved_scenario_too() -> None:
    step = Step(name="r0", prompt=tuple(range(300, 320)), predict=2, completions=3)
    asked = workload("w", release="b11549", preset="dense", options={"parallel": 2}, steps=(step,))
    answers = SimulatedServer(asked).send(asked.step)

    run = run_scenario(tomllib.loads(to_toml(as_scenario(asked, answers))), arithmetic="ring")

    assert ["invalid_request_error"] == [answer.error for answer in answers]
    assert ["invalid_request_error"] == [each.error for each in run.steps]
    assert run.as_expected


def test_a_scenario_of_a_workload_runs_as_the_workload_was_played() -> None:
    """The simulator stands for the real server: its replies are what the scenario is written with.

    What each server of a workload reuses is what its scenario expects.
    """
    prompt = as_tokens(range(300, 360))
    asked = workload(
        "w",
        release="b11549",
        preset="dense",
        options={"parallel": 2, "batch_size": 32, "embedding": True, "pooling": "rank"},
        steps=(
            Step(name="r0", prompt=prompt, predict=3, completions=2),
            Step(
                name="r1", prompt=prompt, suffix=prompt, predict=1, options={"endpoint": "infill"}
            ),
            Step(name="r2", prompt=prompt, query=9, predict=0, options={"endpoint": "rerank"}),
            Step(name="r3", prompt=prompt[:50], predict=9000, leaves="replying"),
            Step(name="r4", prompt=prompt[::-1], predict=9000, leaves="reading"),
            Step(name="r5", prompt=prompt, predict=2, reply=as_tokens([400, 401])),
        ),
    )
    left = Outcome(reply=as_tokens([301, 302]), slot=None, error=CANCELLED)
    early = Outcome(processed=32, slot=None, error=CANCELLED)
    server, answered = SimulatedServer(asked), list[Outcome]()
    for step in asked.step:
        real = {"r3": left, "r4": early}.get(step.name)
        (answer,) = server.send([step if real is None else observed_step(step, real)])
        answered.append(answer if real is None else real)
    assert first_difference(asked, answered) is None

    scenario = as_scenario(asked, answered)
    run = run_scenario(tomllib.loads(to_toml(scenario)), arithmetic="ring")

    assert run.as_expected, run.to_json()


def test_prompts_of_one_call_have_one_error_and_may_be_empty_lists() -> None:
    first, second = (Step(name=e, prompt=as_tokens([300]), predict=1, slot=0) for e in "ab")
    call = (first, replace(second, prompt=(), with_previous=True))
    asked = workload("w", release="b11549", preset="dense", options={"parallel": 2}, steps=call)
    answers = SimulatedServer(asked).send(call)
    refused = (Outcome(error="server_error"),) * 2

    for answered in (answers, refused):
        scenario = as_scenario(asked, answered)
        run = run_scenario(tomllib.loads(to_toml(scenario)), arithmetic="ring")
        assert run.as_expected, run.to_json()


@pytest.mark.parametrize(
    "answered",
    [
        Outcome(reply=as_tokens([301]), drafts=(as_tokens([302]),)),
        Outcome(error="server_error", drafts=(as_tokens([302, 303]),)),
    ],
)
def test_drafts_that_a_real_companion_proposed_are_not_asked_of_it(answered: Outcome) -> None:
    asked = workload(
        "w",
        release="b11549",
        preset="hybrid-mtp",
        options={"spec_type": "draft-mtp"},
        steps=(Step(name="a", prompt=as_tokens([300]), predict=3),),
    )
    saved = through_a_file(as_scenario(asked, (answered,)))

    assert answered.drafts == saved.step[0].drafts
    assert not saved.step[0].forced
    assert [None] == [each.reply for each in sent(saved)]


def test_a_little_more_than_the_real_reply_is_forced() -> None:
    step = Step(name="a", prompt=as_tokens([300]), predict=3)
    real = Outcome(reply=as_tokens([301, 302]))

    assert (301, 302, 302, 302) == observed_step(step, real).reply
    assert 2 == SPARE


def test_steps_of_one_call_form_one_group() -> None:
    steps = [Step(name="a", prompt=()), Step(name="b", prompt=(), with_previous=True)]

    assert [tuple(steps)] == list(grouped(steps))


def said(step: Step) -> Outcome:
    if step.leaves:
        return Outcome(reply=as_tokens(step.ids[:1]), slot=None, error=CANCELLED)
    return repeated(step) if step.predict else replace(repeated(step), reply=())
