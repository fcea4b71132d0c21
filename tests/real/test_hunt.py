"""A hunt searches a release from several angles, proves what it finds, and goes on past it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cachesim.cli.main import main
from cachesim.engines import Profile
from cachesim.real.hunt import loop as room
from cachesim.real.hunt import proof
from cachesim.real.hunt.angles import angles, unmasked
from cachesim.real.hunt.loop import Bag, Trophy, hunt
from cachesim.real.hunt.proof import PROVERS, Word, on_the_wheel
from cachesim.real.hunt.report import commands, write
from cachesim.scenario.files import load
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.scenario.shipped import shipped_file
from cachesim.testing.search import Counterexample, Report
from cachesim.testing.survey import Cause, Sighting, Survey, causes
from cachesim.testing.trial import Finding

OCTOBER = Profile.parse("llama.cpp@b11549")
READING = Step(prompt=tuple(range(265, 500)) * 10, reply=(300,))
ARRIVING = Step(prompt=(300,), reply=(300,), with_previous=True, turns=1, slot=0)


def scenario(*steps: Step, **options: object) -> Scenario:
    return Scenario(
        format=FORMAT,
        name="hunted",
        model=Model(preset="swa", window=8),
        engine=Server(name="llama.cpp", profiles=("b11549",), options=options),
        step=steps,
    )


@pytest.fixture(name="caught")
def _caught(monkeypatch: pytest.MonkeyPatch) -> list[Counterexample]:
    """What was brought to the real server, which says no to the first and yes to the others."""
    brought: list[Counterexample] = []

    def prove(found: Counterexample, _: Profile) -> Word:
        brought.append(found)
        return Word(confirmed=len(brought) > 1, seen=f"number {len(brought)}")

    fake = replace(PROVERS["llama.cpp"], prove=prove, ready=lambda _: None, kinds=())
    monkeypatch.setattr(proof, "PROVERS", {"llama.cpp": fake})
    monkeypatch.setattr(room, "SMALL", 12)
    monkeypatch.setattr(room, "known_causes", lambda _: {})
    monkeypatch.setattr(room, "ARRIVALS", 0)
    monkeypatch.setattr(room, "survey", always_the_same)
    return brought


def always_the_same(profile: Profile, model: str, **_: object) -> Survey:
    """A search that comes upon the three requests of the first screen, whatever it looks at."""
    prompts = (range(300, 305), range(400, 440), (*range(400, 420), *range(450, 470)))
    steps = (Step(name=f"r{n}", prompt=tuple(each), reply=(300,)) for n, each in enumerate(prompts))
    drawn = replace(scenario(*steps), model=Model(preset=model))
    found = Survey(report=Report(profile=profile, model=model, workloads=1))
    for cause, (step, detail) in causes(drawn, profile, "ring", "wrong").items():
        found.see(cause, Sighting(number=0, scenario=drawn, step=step, detail=detail))
    return found


def limited(calls: int) -> Callable[[Bag], bool]:
    left = iter(range(calls))
    return lambda _: next(left, None) is not None


def test_each_defect_is_looked_for_with_all_others_cured() -> None:
    assert [
        "llama.cpp@b11549",
        "llama.cpp@b11549+search-read-again+resume-behind",
        "llama.cpp@b11549+erase-equal+resume-behind",
        "llama.cpp@b11549+erase-equal+search-read-again",
        "llama.cpp@b11549+erase-equal+search-read-again+resume-behind",
    ] == [str(each) for each in unmasked(OCTOBER)]
    seen = list(angles(OCTOBER, ("dense", "swa")))
    assert {OCTOBER} == {each.profile for each in seen if each.model == "dense"}
    assert {"context_shift": True, "ctx_size": 256} in [each.flags for each in seen]


def test_a_cause_that_the_real_server_denies_is_tried_again_and_one_that_it_shows_is_not(
    caught: list[Counterexample],
) -> None:
    told: list[Trophy] = []

    bag = hunt(OCTOBER, models=("hybrid",), going=limited(10), told=told.append)

    assert [False, True] == [each.word.confirmed for each in told]
    assert ["erase-equal"] == [each.cure for each in bag.trophies]
    assert {} == bag.missed
    assert bag.workloads > 2 == len(caught)
    assert all("hunt-llama.cpp-b11549" in each.scenario.name for each in caught)
    assert all(on_the_wheel(each.scenario) for each in caught)


def test_only_what_no_clock_decides_is_played_on_the_wheel() -> None:
    assert on_the_wheel(scenario(READING, ARRIVING))
    assert not on_the_wheel(scenario(READING, ARRIVING, batch_size=64))
    assert not on_the_wheel(scenario(replace(READING, prompt=(300, 301)), ARRIVING))
    assert not on_the_wheel(scenario(READING, Step(do="cancel")))
    assert not on_the_wheel(scenario(READING, spec_type="draft-mtp"))


def test_a_report_holds_every_request_as_a_line_for_a_shell(tmp_path: Path) -> None:
    shipped = load(shipped_file("llama.cpp-restore-old-checkpoints"))
    lines = list(commands(replace(scenario(*shipped.step, swa_full=True), spans=shipped.spans)))

    assert "cachesim real gguf swa -o swa.gguf --window 8" == lines[0]
    assert "llama-server -m swa.gguf --swa-full --slot-save-path ./ &" == lines[1]
    assert 'curl -s http://localhost:8080/slots/0?action=save -d \'{"filename": "a.bin"}\'' in lines
    assert len(shipped.step) == sum(line.startswith("curl") for line in lines)

    found = Counterexample(
        number=1,
        finding=proof_of_wrong(),
        scenario=scenario(Step(name="r0", prompt=(300, 301), reply=(302,))),
        arithmetic="ring",
    )
    trophy = Trophy(
        cause=Cause("wrong answer", ("any",), "erase-equal"),
        found=found,
        word=Word(confirmed=True, seen="r0: WRONG 1"),
        angle=OCTOBER,
        known="llama.cpp-three-requests",
    )
    text = write(trophy, OCTOBER, tmp_path, 1, "the wheel").read_text(encoding="utf-8")
    assert "xllamacpp 2026.10.11549" in text
    assert "Seen on the wheel: r0: WRONG 1." in text
    assert "`llama.cpp@b11549+erase-equal`" in text
    assert "cachesim real llama.cpp --scenario 01-hunted.toml" in text
    assert load(tmp_path / "01-hunted.toml").step == found.scenario.step


def proof_of_wrong() -> Finding:
    return Finding(kind="wrong answer", step=0, detail="1 of 2 tokens cached")


def test_a_hunt_of_what_cannot_be_hunted_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words, why in (
        (["llama.cpp@b11549+erase-equal"], "has patches"),
        (["llama.cpp@b11549", "--minutes", "0"], "above 0"),
        (["llama.cpp@b11549", "--models", "hybird"], "no preset 'hybird'"),
    ):
        assert 2 == main(["hunt", *words])
        assert why in capsys.readouterr().err
