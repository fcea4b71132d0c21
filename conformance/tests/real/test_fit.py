"""Finding rules: recordings that are kept, and a climb that comes back to the rules they show."""

from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from cachesim.prove.llama_cpp.simulated import SimulatedServer, Trial, known_trials
from cachesim.prove.llama_cpp.workload import Outcome, workload
from cachesim.scenario.format import Step
from cachesim.units import as_tokens
from conformance.real.fit import Change, Search, changes, rule_fields, value_of
from conformance.real.llama_cpp import wheels
from conformance.real.llama_cpp import wheels as kept_by
from conformance.real.llama_cpp.compare import SideBySide
from conformance.real.llama_cpp.workloads import draw_setting, grow

PRESETS = ("hybrid", "recurrent", "swa")
KNOWN = known_trials()


def recorded(number: int, trial: Trial, *, release: str = "b9538") -> wheels.Recording:
    """The answers of a server with these rules."""
    setting = draw_setting(7, number, release=release, presets=PRESETS)
    asked, outcomes = grow(setting, wheels.server_under(setting, trial))
    return wheels.Recording(workload=asked, outcomes=outcomes)


def changed(*made: Change) -> Trial:
    trial = KNOWN["b9538"]
    for each in made:
        trial = each.of(trial)
    return trial


def twice(preset: str, trial: Trial) -> wheels.Recording:
    """A prompt with two places for a checkpoint near its end, and the same prompt again."""
    prompt = as_tokens(range(300, 400))
    asked = workload(
        f"{preset}-twice",
        release="b9538",
        preset=preset,
        options={"ubatch_size": 64, "batch_size": 256},
        steps=tuple(Step(name=each, prompt=prompt, predict=1) for each in "ab"),
    )
    server = SimulatedServer(asked, trial=trial)
    outcomes = tuple(each for step in asked.step for each in server.send((step,)))
    return wheels.Recording(workload=asked, outcomes=outcomes)


def test_a_rule_that_explains_the_answers_is_found() -> None:
    waived = changed(Change("rules.checkpoints", "spacing_waived_near_end", value=True))

    fit = Search([twice("hybrid", waived)], {"b9538": KNOWN["b9538"]}, wheels.play_under).run()

    assert (1, 2, 2) == (fit.at_first, fit.steps[-1].agreeing, fit.requests)
    assert [1] == [len(step.changes) for step in fit.steps]
    assert fit.trial != KNOWN["b9538"]
    assert fit.differences == ()


def test_the_search_begins_with_the_release_that_answers_most_alike() -> None:
    fit = Search([twice("hybrid", KNOWN["b11549"])], KNOWN, wheels.play_under).run()

    assert fit.nearest not in {"b8672", "b9093", "b9538"}
    assert fit.steps == ()


@pytest.mark.thorough
def test_what_no_rule_explains_is_left() -> None:
    recording = recorded(0, KNOWN["b9538"])
    last = replace(recording.outcomes[-1], cached=recording.outcomes[-1].processed, slot=77)
    wrong = replace(recording, outcomes=(*recording.outcomes[:-1], last))

    fit = Search([wrong], {"b9538": KNOWN["b9538"]}, wheels.play_under).run()

    assert fit.steps == ()
    assert [difference.step for difference in fit.differences] == [len(wrong.outcomes) - 1]


def test_every_field_has_its_values_and_a_change_sets_one() -> None:
    found = changes(tuple(KNOWN.values()))

    by_field: dict[tuple[str, str], list[object]] = {}
    for each in found:
        by_field.setdefault((each.part, each.field), []).append(each.value)
    assert by_field["rules.reuse", "search_limit"] == ["none", "beyond", "read-again"]
    assert by_field["rules.cache", "load_consumes"] == [False, True]
    assert by_field["defaults", "checkpoint_min_step"] == [256, 8192]
    assert all(each.holds(each.of(KNOWN["b9093"])) for each in found)


def differing(one: Trial, other: Trial) -> tuple[Change, ...]:
    """The fields in which the other differs, as changes of the first."""
    return tuple(
        Change(part, field, value_of(other, part, field))
        for part, field, _ in rule_fields(Trial)
        if value_of(one, part, field) != value_of(other, part, field)
    )


def test_two_releases_differ_in_what_turns_one_into_the_other() -> None:
    trial = KNOWN["b9538"]
    for change in differing(trial, KNOWN["b11549"]):
        trial = change.of(trial)

    assert differing(trial, KNOWN["b11549"]) == ()


def test_a_rule_is_open_where_no_recording_turns_on_it() -> None:
    trial = KNOWN["b9538"]
    waived = Change("rules.checkpoints", "spacing_waived_near_end", value=True)
    known = (trial, waived.of(trial))

    assert (waived,) == wheels.open_changes(trial, known, [twice("dense", trial)])
    assert () == wheels.open_changes(trial, known, [twice("hybrid", trial)])


class Told(wheels.Recordings):
    """A wheel with rules of its own."""

    rules = KNOWN["b9538"]

    def play(self, number: int) -> wheels.Recording:
        setting = draw_setting(self.seed, number, release=self.release)
        workload, outcomes = grow(setting, wheels.server_under(setting, self.rules))
        return wheels.Recording(workload=workload, outcomes=outcomes)


@pytest.mark.thorough
@pytest.mark.parametrize("value", [False, True])
def test_what_is_open_is_drawn_until_the_wheel_tells(value: bool) -> None:
    trial = KNOWN["b9538"]
    pinned = Change("rules.selection", "pinned_slot_uses_cache", value=True)
    wheel = Told("b9538", seed=3)
    wheel.rules = Change("rules.selection", "pinned_slot_uses_cache", value=value).of(trial)

    (probed,) = wheels.probe([pinned], trial, wheel, most=1)

    assert (1, value) == (probed.turned, probed.value(trial))


def test_what_nothing_drawn_turns_on_stays_open() -> None:
    trial = KNOWN["b9538"]
    kept = Change("rules.cache", "load_consumes", value=False)

    (probed,) = wheels.probe([kept], trial, Told("b9538", seed=3), most=1)

    assert (0, None) == (probed.turned, probed.value(trial))


class Played(wheels.Recordings):
    """Recordings of a wheel that the simulator plays; it counts how often."""

    plays = 0

    def _played(self, pair: SideBySide, number: int) -> wheels.Recording:
        self.plays += 1
        return recorded(number, KNOWN["b9538"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recordings: no wheel is started, and workloads are drawn as by `recorded`."""
    monkeypatch.setattr(kept_by, "SideBySide", _Nothing)
    monkeypatch.setattr(
        kept_by,
        "draw_setting",
        lambda _, number, release: draw_setting(7, number, release=release, presets=PRESETS),
    )
    return tmp_path


class _Nothing:
    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def wheel(folder: Path) -> Played:
    return Played("b9538", seed=7, folder=folder)


def test_a_wheel_is_played_once(folder: Path) -> None:
    first, again = wheel(folder), wheel(folder)

    assert list(first.take(3)) == list(again.take(3))
    assert (first.plays, again.plays) == (3, 0)


def test_more_workloads_than_before_are_played_on(folder: Path) -> None:
    list(wheel(folder).take(2))
    more = wheel(folder)

    assert len(list(more.take(4))) == 4
    assert more.plays == 2


def test_a_line_cut_short_is_played_again(folder: Path) -> None:
    before = list(wheel(folder).take(3))
    file = wheel(folder).file
    file.write_text(file.read_text()[:-40])
    again = wheel(folder)

    assert before == list(again.take(3))
    assert again.plays == 1


def test_what_the_generator_would_not_ask_any_more_is_played_again(folder: Path) -> None:
    before = list(wheel(folder).take(3))
    steps = before[1].workload.step
    other = replace(before[1].workload, step=(replace(steps[0], predict=39), *steps[1:]))
    lines = [before[0], replace(before[1], workload=other), before[2]]
    wheel(folder).file.write_text("".join(f"{line.line()}\n" for line in lines))
    again = wheel(folder)

    assert before == list(again.take(3))
    assert again.plays == 2


def test_outcomes_come_back_from_their_line() -> None:
    outcome = Outcome(
        cached=3,
        processed=2,
        reply=recorded(0, KNOWN["b9538"]).outcomes[0].reply,
        drafts=((),),
        drafted=2,
        accepted=1,
    )
    recording = replace(recorded(0, KNOWN["b9538"]), outcomes=(outcome,))

    assert recording == wheels.Recording.from_line(recording.line())


def test_a_single_workload_is_played_once_too(folder: Path) -> None:
    first, again = wheel(folder), wheel(folder)

    assert first.play(5) == again.play(5)
    assert (1, 0) == (first.plays, again.plays)

    again.singles.write_text("5 {")  # cut short by an interruption
    assert again.play(5) == first.play(5)
    assert 1 == again.plays
