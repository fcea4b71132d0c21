"""A search that goes on tells causes apart, counts them, and makes the first of each small."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.engines import FAMILIES, Profile
from cachesim.play import run
from cachesim.play.findings import Finding, Trial, play
from cachesim.scenario.checks import scenario_of
from cachesim.scenario.files import load
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.shipped import shipped_file
from cachesim.testing import survey as survey_room
from cachesim.testing.search import simpler, workloads
from cachesim.testing.survey import (
    Cause,
    Sighting,
    Survey,
    causes,
    lost,
    made_small,
    survey,
    survey_by,
)
from cachesim.testing.workloads import Shape
from tests.fixtures import Capture, Patch

WINDOWS = Profile.parse("llama.cpp@b11549")
LACKS = Cause("wrong answer", ("the window lacks tokens", "a stored conversation was loaded"))


@pytest.fixture(name="found", scope="module")
def _found() -> Survey:
    """Two workloads, each with a defect of its own."""
    found = survey(WINDOWS, "swa", first=51, examples=1)
    found.join(survey(WINDOWS, "swa", first=273, examples=1))
    return found


def test_a_second_defect_is_not_hidden_behind_the_first(found: Survey) -> None:
    assert 2 == found.report.workloads
    assert 1 == found.counts[LACKS] == len(found.counts) - 1
    assert "erase-equal" in {cause.cure for cause in found.counts}


def test_what_is_made_small_still_shows_its_own_cause(found: Survey, monkeypatch: Patch) -> None:
    monkeypatch.setattr(survey_room, "TRIALS", 60)

    small = made_small(LACKS, found.first[LACKS], WINDOWS, "ring", "wrong")

    drawn = found.first[LACKS].scenario
    assert sum(len(step.ids) for step in small.scenario.step) < sum(
        len(step.ids) for step in drawn.step
    )
    assert "diverged" == run(small.scenario, WINDOWS, arithmetic="ring").steps[-1].answer
    assert str(LACKS) in small.scenario.about


def test_a_wrong_answer_is_told_by_the_patch_that_it_needs(found: Survey) -> None:
    (cause,) = (count for count in found.counts if count.cure)
    drawn = found.first[cause]

    plain = play(drawn.scenario, WINDOWS, stop_early=False)
    patched = play(drawn.scenario, WINDOWS.with_patches(cause.cure), stop_early=False)

    assert drawn.step in {finding.step for finding in plain.findings}
    assert drawn.step not in {finding.step for finding in patched.findings}


@pytest.mark.parametrize(
    ("name", "patch"),
    [
        ("llama.cpp-three-requests", "erase-equal"),
        ("llama.cpp-window-loses-a-key-each-trip", "resume-behind"),
        ("llama.cpp-24411-first-turn-again", "24411"),
    ],
)
def test_a_shipped_wrong_answer_is_told_by_its_own_patch(name: str, patch: str) -> None:
    scenario = load(shipped_file(name))
    release = "b9538" if patch == "24411" else "b11549"

    found = survey_room.cured_by(scenario, Profile.parse(f"llama.cpp@{release}"), "ring")

    assert {(patch,)} == {tuple(each.name for each in patches) for patches in found.values()}


def test_a_broken_law_after_a_wrong_answer_is_a_cause_of_its_own() -> None:
    scenario = load(shipped_file("llama.cpp-three-requests"))
    trial = play(scenario, WINDOWS, stop_early=False)
    wrong = survey_room.causes(scenario, WINDOWS, "ring", "wrong", trial=trial)
    law = Finding(kind="broken invariant", step=2, detail="1 of 4 tokens are returned")
    trial.findings.append(law)

    found = survey_room.causes(scenario, WINDOWS, "ring", "wrong", trial=trial)

    broken = Cause("broken invariant", ("N of N tokens are returned",))
    assert wrong | {broken: (2, law.detail)} == found


def test_lost_reuse_that_is_made_small_is_expected_to_be_gone(monkeypatch: Patch) -> None:
    scenario = load(shipped_file("llama.cpp-three-requests"))
    law = Finding(kind="lost reuse", step=2, detail="0 of 8 tokens cached", due=8)
    sighting = Sighting(number=0, scenario=scenario, step=2, detail=law.detail)
    monkeypatch.setattr(survey_room, "_played", lambda *_: Trial(findings=[law]))
    monkeypatch.setattr(survey_room, "shrink", lambda whole, *_, **__: whole)

    small = made_small(
        Cause("lost reuse", ("N of N tokens cached",)), sighting, WINDOWS, "ring", "wrong"
    )

    assert law == small.finding
    assert ["lost reuse"] == [each.finding for each in small.scenario.expect]


def test_a_server_that_runs_one_request_at_once_fixes_no_wrong_batch() -> None:
    steps = [
        {"name": "r0", "prompt": "a", "predict": 1},
        {"name": "r1", "prompt": "b", "predict": 1, "with_previous": True},
    ]
    scenario = scenario_of(
        {
            "format": 1,
            "name": "padded",
            "model": {"preset": "hybrid"},
            "engine": {"name": "mlx-lm", "profiles": ["0.31.3"]},
            "spans": {"a": 2, "b": 3},
            "step": steps,
        }
    )

    (cause,) = survey_room.causes(scenario, Profile.parse("mlx-lm@0.31.3"), "ring", "wrong")

    assert Cause("wrong answer", ("the recurrent state holds padding",)) == cause


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_another_server_s_rules_fix_no_wrong_answer_of_a_release(name: str) -> None:
    family = FAMILIES[name]
    cures = [cure for r in family.names() for cure in family.cures(Profile.parse(f"{name}@{r}"))]

    assert [] == [cure.name for cure in cures if cure.server]
    assert [] == [patch.name for patch in family.patches if patch.server and patch.cures]


def test_a_slot_file_that_could_not_be_restored_is_no_part_of_a_cause() -> None:
    plain, off = {"predict": 1}, {"predict": 1, "options": {"lora": [{"id": 0, "scale": 0.0}]}}
    steps = [
        {"name": "a", "prompt": [300], **plain},
        {"name": "b", "prompt": [400], **off},
        {"name": "f", "do": "slot-restore", "slot": 0, "file": "none"},
        {"name": "c", "prompt": [300, 301], **off},
    ]
    engine = {"name": "llama.cpp", "profiles": ["b11549"], "options": {"lora": "dense"}}
    whole = {"format": 1, "name": "n", "model": {"preset": "dense"}, "engine": engine}
    scenario = scenario_of({**whole, "step": steps})

    (cause,) = causes(scenario, WINDOWS, "ring", "wrong")
    assert "a slot file was restored before" not in cause.marks


def test_what_the_real_engine_does_not_run_is_made_small_too(
    found: Survey, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(survey_room, "TRIALS", 60)
    small = made_small(LACKS, found.first[LACKS], WINDOWS, "ring", "wrong", fits=lambda _: False)

    assert len(found.first[LACKS].scenario.step) > len(small.scenario.step)


def test_several_processes_see_what_one_sees() -> None:
    with ThreadPoolExecutor(2) as pool:
        several = survey_by(pool, WINDOWS, "dense", examples=27)

    alone = survey(WINDOWS, "dense", examples=27)
    assert alone.report.requests == several.report.requests
    assert alone.counts == several.counts == {}


def test_reuse_that_was_lost_though_the_state_was_there_is_a_finding() -> None:
    june = Profile.parse("llama.cpp@b9538")
    found = survey(june, "dense", examples=3, find="lost")
    cause = Cause("lost reuse", ("cache-not-better",))

    assert cause in found.counts
    step = run(found.first[cause].scenario, june, arithmetic="ring").steps[found.first[cause].step]
    assert step.explanation is not None
    assert (1, 8) == (step.cached, step.explanation.equal)


def test_the_command_lists_causes(capsys: Capture) -> None:
    assert main(["check", "llama.cpp@b11549", "--model", "dense", "--examples", "9", "--all"]) == 0
    assert "nothing wrong was found" in capsys.readouterr().out


def test_what_users_do_besides_asking_is_drawn_and_can_be_played() -> None:
    drawn = list(islice(workloads(WINDOWS, "dense", shape=Shape(incidents=True)), 300))
    steps = [step for each in drawn for step in each.step]

    assert {"complete", "cancel", "slot-save", "slot-restore"} == {step.do for step in steps}
    assert any(step.completions > 1 for step in steps)
    assert any(step.turns and step.with_previous for step in steps)
    assert any(len(step.reply or ()) > 12 for step in steps)
    assert survey(WINDOWS, "dense", examples=12, shape=Shape(incidents=True)).counts == {}


def test_some_replies_end_at_the_end_of_a_small_context_or_one_token_off() -> None:
    shape = Shape(incidents=True, fixed={"ctx_size": 256, "parallel": 1})
    drawn = islice(workloads(WINDOWS, "dense", shape=shape), 300)

    lengths = {len(step.ids) + len(step.reply or ()) for each in drawn for step in each.step}

    assert {255, 256, 257} <= lengths


def test_a_cancel_goes_with_the_request_that_it_ends() -> None:
    drawn = next(workloads(WINDOWS, "dense"))
    asked = drawn.step[0]
    gone = Step(name="gone", do="cancel", of=asked.name)
    steps = (replace(asked, name="first"), asked, gone, replace(asked, name="last"))

    for each in simpler(replace(drawn, step=steps)):
        names = [step.name for step in each.step]
        assert ("gone" in names) <= (asked.name in names)
        assert "gone" not in names or names.index("gone") == names.index(asked.name) + 1


def test_a_workload_that_was_played_is_not_played_again_for_its_causes(
    found: Survey, monkeypatch: Patch
) -> None:
    (cause,) = (count for count in found.counts if count.cure)
    drawn = found.first[cause].scenario
    expected = survey_room.causes(drawn, WINDOWS, "ring", "wrong")
    trial, profiles = play(drawn, WINDOWS, stop_early=False), []

    def counted(scenario: Scenario, profile: Profile, **how: Any) -> Trial:
        profiles.append(profile)
        return play(scenario, profile, **how)

    monkeypatch.setattr(survey_room, "play", counted)

    assert expected == survey_room.causes(drawn, WINDOWS, "ring", "wrong", trial=trial)
    assert WINDOWS not in profiles
    assert profiles


def flagged(profile: str, model: str, *prompts: Sequence[int], **options: Any) -> list[int]:
    """The steps that lost reuse."""
    parsed = Profile.parse(profile)
    shape = Shape(flags=False, min_steps=1, max_steps=1, fixed=options)
    drawn = next(workloads(parsed, model, shape=shape))
    steps = (
        Step(name=f"r{i}", prompt=tuple(prompt), predict=8) for i, prompt in enumerate(prompts)
    )
    scenario = replace(drawn, step=tuple(steps))
    return [step for _, step, _ in lost(run(scenario, parsed, arithmetic="ring"), scenario)]


def test_a_checkpoint_that_was_erased_though_valid_is_lost_reuse() -> None:
    prompts = (range(300, 400), range(300, 396), range(300, 400))

    assert 2 in flagged("llama.cpp@b11549", "recurrent", *prompts)
    assert 2 not in flagged("llama.cpp@b11549+24035-lcp", "recurrent", *prompts)


def test_a_long_prompt_of_which_nothing_is_reused_at_once_is_lost_reuse() -> None:
    prompts = (range(300, 400), (*range(300, 370), *range(400, 430)))

    assert [1] == flagged("vllm@0.33.0", "hybrid-delta", *prompts)
    assert [] == flagged("vllm@0.33.0", "hybrid-delta", prompts[0], prompts[0])


@pytest.mark.parametrize(
    ("profile", "flag"),
    [
        ("llama.cpp@b11549", "cache_prompt"),
        ("transformers@5.24.0", "allow_block_sharing"),
        ("vllm@0.33.0", "enable_prefix_caching"),
    ],
)
def test_reuse_that_a_flag_switches_off_is_not_lost(profile: str, flag: str) -> None:
    assert [] == flagged(profile, "dense", range(300, 400), range(300, 400), **{flag: False})


def test_lost_tokens_that_are_made_small_are_expected_to_be_reused() -> None:
    june, cause = Profile.parse("llama.cpp@b9538"), Cause("lost reuse", ("cache-not-better",))
    found = survey(june, "dense", examples=3, find="lost")

    small = made_small(cause, found.first[cause], june, "ring", "lost", trials=40).scenario

    assert small.expect[0].least is not None
    assert not run(small, june, arithmetic="ring").as_expected
