"""A sample of the claims is checked here; the whole by `python -m conformance.claims`.

Then the checker itself is put to the test: each planted falsehood must be found.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from cachesim.engines import PACKAGES
from cachesim.engines.causes import Ledger, Loss, declared
from cachesim.engines.events import Event
from cachesim.engines.family import FAMILIES, Profile
from cachesim.engines.llamacpp import checkpoints
from cachesim.engines.llamacpp.checkpoints import ERASURES
from cachesim.engines.llamacpp.vocabulary import causes
from cachesim.engines.llamacpp.vocabulary.events import DepthTested
from cachesim.errors import InputError
from cachesim.model.store import Lane
from cachesim.play import runner, statements
from cachesim.play.result import Culprit, Fact, Step
from cachesim.play.statements import Past
from cachesim.scenario import load, scenario_of
from cachesim.scenario.shipped import shipped_file
from cachesim.testing.search import workloads
from cachesim.typed import there_is
from cachesim.units import as_tokens
from conformance.claims.causes import CAUSES, Lost
from conformance.claims.checks import CHECKS, Tally, check, every
from conformance.claims.memory import CELLS, Reading
from conformance.claims.played import all_profiles, play
from conformance.claims.watched import Computed, Watch

SAMPLE: Final = (
    "llama.cpp-26207-adapter-unknown-to-prompt-cache",
    "llama.cpp-three-requests",
    "llama.cpp-24143-load-consumes-entry",
    "llama.cpp-window-checkpoint-one-token-beyond",
    "llama.cpp-22083-two-chats",
    "llama.cpp-28998-model-swap",
    "mlx-lm-1736-padding-in-the-state",
    "ik_llama.cpp-1888-checkpoint-one-token-too-far",
)


TWO_SLOTS: Final = {
    "format": 1,
    "name": "two-slots",
    "model": {"preset": "dense"},
    "engine": {
        "name": "llama.cpp",
        "profiles": ["b11549"],
        "options": {"parallel": 2, "slot_prompt_similarity": 0.0, "cache_ram": 0},
    },
    "spans": {"a": 40, "b": 40},
    "step": [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "b a"}],
}
"""The slot that was used least recently is taken, although the other one shares more."""


def claims_of(name: str) -> Tally:
    found = TWO_SLOTS if name == "two-slots" else None
    return every(all_profiles(scenario_of(found) if found else load(shipped_file(name))))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SAMPLE)
def test_what_is_said_of_a_scenario_is_true(name: str) -> None:
    tally = claims_of(name)
    assert [] == tally.false
    assert tally.checked > 40


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", FAMILIES)
def test_what_is_said_of_searched_workloads_is_true(engine: str) -> None:
    release = FAMILIES[engine].releases[-1].name
    tally, profile = Tally(), Profile.parse(f"{engine}@{release}")
    for model in ("dense", "hybrid"):
        for scenario in islice(workloads(profile, model, seed=11), 4):
            try:
                found = every(iter([play(scenario, profile)]))
            except InputError:
                break  # this engine does not serve the model
            tally.false += found.false
            tally.checked += found.checked
    assert [] == tally.false
    assert tally.checked > 40


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("sglang-27586", "sglang@0.5.23+27586"),  # a cell of another request of the same batch
        ("llama.cpp-5420-dense", "llama.cpp@b8672-5420-14177"),  # two cells at one position
        ("llama.cpp-5420-swa", "llama.cpp@b8672-5420-14177"),
    ],
)
def test_what_was_found_false_is_true(name: str, profile: str) -> None:
    found = load(Path(__file__).parent / "found" / f"{name}.toml")
    tally = every(iter([play(found, Profile.parse(profile))]))

    assert tally.kinds["because"]
    assert [] == tally.false


def test_a_kind_of_statement_without_a_check_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = statements._facts

    def more(*arguments: Any) -> Iterator[Fact]:
        yield from facts(*arguments)
        yield Fact(word="by the way", sentence="it rains")

    monkeypatch.setattr(statements, "_facts", more)

    assert any(each.startswith("judged: ") for each in claims_of("two-slots").false)


def test_words_without_a_check_are_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "because", lambda *_: "the recurrent state of layer 0 is odd")

    found = claims_of(THREE).false

    assert any(each.endswith("layer 0 is odd: no sentence that is judged") for each in found)


def test_every_cause_is_judged() -> None:
    modules = [
        import_module(f"cachesim.engines.{package}.vocabulary") for package in PACKAGES.values()
    ]
    own = [
        getattr(module, "causes", module) for module in modules
    ]  # llama.cpp's are in a file apart

    assert {cause.id for each in own for cause in declared(vars(each))} == set(CAUSES)


# --- planted falsehoods -----------------------------------------------------------------------


class Lie(NamedTuple):
    """A falsehood: its sentence, its place, and the broken claim."""

    what: str
    scenario: str
    broken: str
    plant: Callable[[pytest.MonkeyPatch], None]


def changed(where: Any, name: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda patch: patch.setattr(where, name, change(getattr(where, name)))


def edited(**fields: Callable[[Culprit], Any]) -> Callable[[Any], Any]:
    def change(original: Any) -> Any:
        def made(*arguments: Any) -> Culprit:
            found: Culprit = original(*arguments)
            return replace(found, **{key: new(found) for key, new in fields.items()})

        return made

    return change


def reworded(old: str, new: str) -> Callable[[Any], Any]:
    """Statements with a few words exchanged."""

    def change(original: Any) -> Any:
        def told(*arguments: Any) -> tuple[Fact, ...]:
            return tuple(
                replace(each, sentence=each.sentence.replace(old, new))
                for each in original(*arguments)
            )

        return told

    return change


def _released_rule(patch: pytest.MonkeyPatch) -> None:
    """The rule of the release is printed for every patch: the defect that this guard is for."""
    wrong = {k: replace(erasure, rule="pos_max > pos_next") for k, erasure in ERASURES.items()}
    patch.setattr(checkpoints, "ERASURES", wrong)


def _cut_one_token_further(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint is claimed to be cut to one token more than match."""
    made = checkpoints.CheckpointCut

    def told(*, cut_tokens: int, **fields: Any) -> Any:
        return made(cut_tokens=cut_tokens + 1, **fields)

    patch.setattr(checkpoints, "CheckpointCut", told)


def _similar_although_off(patch: pytest.MonkeyPatch) -> None:
    """A slot is claimed to share too little, where no similarity was compared."""
    apply = Ledger.apply

    def told(self: Ledger, cause: Any, usable: int, **detail: Any) -> None:
        if cause is causes.SLOT_AGE:
            cause, detail = causes.SLOT_SIMILARITY, {"slot": detail["slot"], "threshold": 0.0}
        apply(self, cause, usable, **detail)

    patch.setattr(Ledger, "apply", told)


def _threshold_off_by_one(patch: pytest.MonkeyPatch) -> None:
    apply = Ledger.apply

    def told(self: Ledger, cause: Any, usable: int, **detail: Any) -> None:
        if "threshold" in detail and "pos_min" in detail:
            detail["threshold"] += 1
        apply(self, cause, usable, **detail)

    patch.setattr(Ledger, "apply", told)


def _first_maker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Past, "maker", lambda self, _: self.records[-1].name)


def _what_followed_anywhere(patch: pytest.MonkeyPatch) -> None:
    """A later token of another conversation is claimed for this one."""
    explain = import_module("cachesim.verify.explain")
    original = explain._divergence

    def told(*arguments: Any) -> Any:
        found = original(*arguments)
        return found and replace(found, there=found.token)

    patch.setattr(explain, "_divergence", told)


def _sentence_of_another(patch: pytest.MonkeyPatch) -> None:
    original = Loss.as_dict
    patch.setattr(
        Loss, "sentence", property(lambda self: f"Memory reaches back to 77: {self.rule}")
    )
    assert original


def _refused_though_deep_enough(patch: pytest.MonkeyPatch) -> None:
    """A depth test is told as a refusal, also where memory is deep enough."""
    told = property(lambda event: f"refused if {event.rule}, here {event.numbers}")
    patch.setattr(DepthTested, "sentence", told)


THREE, LOADED = "llama.cpp-three-requests", "llama.cpp-24143-load-consumes-entry"
BEYOND = "llama.cpp-24411-checkpoint-beyond-divergence"
PADDED = "mlx-lm-1736-padding-in-the-state"

LIES: Final = (
    Lie("one more token is right than is", PADDED, "because",
        changed(runner, "culprit", edited(matches=lambda c: c.matches + 1))),
    Lie("padding is called a token", PADDED, "because",
        changed(runner, "culprit", edited(padding=lambda _: 0))),
    Lie("the token came from another step", THREE, "because",
        changed(runner, "origin", lambda _: lambda *_: "step B, b")),
    Lie("the released rule is printed for a patch", THREE, "erased", _released_rule),
    Lie("a checkpoint is cut one token too far up", "llama.cpp-24797-checkpoints-relabelled", "cut",
        _cut_one_token_further),
    Lie("somebody else made the checkpoint", THREE, "made by", _first_maker),
    Lie("the next token there is the one here", THREE, "parting", _what_followed_anywhere),
    Lie("the threshold is one too high", THREE, "depth", _threshold_off_by_one),
    Lie("memory that is deep enough is refused", BEYOND, "depth",
        _refused_though_deep_enough),
    Lie("what was kept shares one token more", THREE, "kept by",
        changed(statements, "checkpoint_facts", reworded("no tokens in", "only 1 token in"))),
    Lie("an ideal cache reuses one token more", LOADED, "ideal",
        changed(statements, "_reuse", reworded("reused 199", "reused 200"))),
    Lie("another count was shared with the entry", LOADED, "consumed",
        changed(statements, "_forgotten", reworded("for the 100", "for the 99"))),
    Lie("server and uncached run are exchanged", THREE, "wrong",
        changed(statements, "wrong_facts", reworded("token 1 is", "token 2 is"))),
    Lie("nothing has held it since another step", "llama.cpp-22083-two-chats", "gone",
        changed(statements, "_forgotten", reworded("since B", "since A"))),
    Lie("a slot that was not measured shares too little", "two-slots", "similarity",
        _similar_although_off),
    Lie("a cause says a number of its own", THREE, "rule numbers", _sentence_of_another),
)  # fmt: skip


KINDS: Final = {
    "server": "ik_llama.cpp-1673-stop-flag-stays",
    "match": THREE,
    "rule": THREE,
    "ideal": LOADED,
    "consumed": LOADED,
    "gone": "llama.cpp-22083-two-chats",
    "together": "vllm-29387-same-prompt-in-one-step",
    "wrong": THREE,
    "leak": "llama.cpp-leaked-code",
    "because": THREE,
    "restored": THREE,
    "kept by": THREE,
    "but with": LOADED,
}
"""A scenario for each kind of statement."""


def one_more(text: str, number: int = 0) -> str:
    """A sentence with one of its numbers counted up; without any number, denied."""
    found = list(re.finditer(r"(?<![\w@.\-])\d+(?![\w.]*[\-@])", re.sub(r"step \S+", _blank, text)))
    if not found:
        return f"{text} not"
    at = found[number % len(found)]
    return f"{text[: at.start()]}{int(at[0]) + 1}{text[at.end() :]}"


def _blank(found: re.Match[str]) -> str:
    return "_" * len(found[0])


def claimed(name: str, word: str, change: Callable[[str], str]) -> Tally:
    """The claims of a scenario in which all statements of a kind were changed."""
    tally = Tally()
    for played in all_profiles(load(shipped_file(name))):
        steps = tuple(
            replace(
                step,
                facts=tuple(
                    replace(fact, sentence=change(fact.sentence)) if fact.word == word else fact
                    for fact in step.facts
                ),
            )
            for step in played.steps
        )
        check(replace(played, steps=steps), tally)
    return tally


def test_every_kind_has_a_scenario() -> None:
    assert set(CHECKS) == set(KINDS)


@pytest.mark.sampled(3)
@pytest.mark.thorough
@pytest.mark.parametrize("word", KINDS)
def test_another_number_is_found_in_every_kind_of_statement(word: str) -> None:
    assert [] == claimed(KINDS[word], word, str).false
    assert [] != claimed(KINDS[word], word, one_more).false


def test_another_number_is_found_in_what_events_say(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = there_is(Event.sentence.fget)
    monkeypatch.setattr(Event, "sentence", property(lambda event: one_more(sentence(event))))

    assert [] != [each for each in claims_of(THREE).false if each.startswith("event: ")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("broken", "change"),
    [
        ("title", lambda step: finding(step, title=one_more(step.finding.title, 1))),
        ("where", lambda step: finding(step, event=len(step.events) + 1_000)),
        ("lost", lambda step: account(step, lost=step.explanation.lost + 1)),
        ("sentences", lambda step: account(step, sentences=(*step.explanation.sentences, "more"))),
    ],
)
def test_another_verdict_is_found(broken: str, change: Callable[[Step], Step]) -> None:
    tally = Tally()
    for played in all_profiles(load(shipped_file(LOADED))):
        check(replace(played, steps=tuple(map(change, played.steps))), tally)

    assert broken in {each.partition(":")[0] for each in tally.false}


def finding(step: Step, **fields: Any) -> Step:
    return replace(step, finding=replace(step.finding, **fields))


def account(step: Step, **fields: Any) -> Step:
    assert step.explanation is not None
    return replace(step, explanation=replace(step.explanation, **fields))


MEMORIES: Final = {
    "llama.cpp-window-checkpoint-one-token-beyond": "holds nothing at position",
    "vllm-43559-one-block-too-many": "holds nothing at position",
    "llama.cpp-three-requests-window": "at position 0, where this request has",
    "llama.cpp-5420-repeated-prompt": "tokens too many",
    "mlx-lm-draft-window-crossed": "is correct for 1021 tokens, then 3 tokens too many",
    "mlx-lm-draft-last-token-unfed": "is correct for 19 tokens, then 1 token missing",
    "mlx-lm-1035-merged-ring-ends-the-worker": "has an empty row at position",
    "ik_llama.cpp-1689-checkpoints-not-applied": "tokens too many",
    "mlx-lm-1908-tokens-lost": "tokens missing",
    "mlx-lm-1072-padding-in-the-convolution": "padding tokens too many",
    "llama.cpp-erasure-off-by-one": "; token ",
    "llama.cpp-three-requests": "starts with token",
}
"""Sentences on cells and rows, in all forms."""


@pytest.mark.sampled(3)
@pytest.mark.thorough
@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("number", range(4))
def test_another_number_is_found_in_every_sentence_about_a_memory(name: str, number: int) -> None:
    said: list[str] = []

    def changed(text: str) -> str:
        said.append(text)
        place, layer, rest = re.split(r"( of layer \d+ )", text)
        return f"{place}{layer}{one_more(rest, number)}"

    false = [each for each in claimed(name, "because", changed).false if "because: " in each]

    assert any(MEMORIES[name] in each for each in said)
    assert len(said) == len(false)


AFTER_OTHERS: Final = (
    "holds the right token at position 1, but computed after other tokens: its history is correct"
    " for"
)


def seen(tokens: Sequence[int], cells: Sequence[tuple[int, int]], own: int) -> Reading:
    """A reading of cells (position, token): each token was born behind those before it."""
    born = [Computed(-1), *(Computed(token) for _, token in cells), Computed(tokens[own])]
    for birth in range(1, len(born)):
        count = len(cells) if birth == len(born) - 1 else birth - 1
        held = [*cells[:count], (own if birth == len(born) - 1 else cells[birth - 1][0], 0)]
        births = np.array([[*range(1, count + 1), birth]]).T
        positions = np.array([each for each, _ in held])
        lane = Lane(np.array([0]), births, births, positions, np.array([0]), positions[-1:])
        born[birth].lanes["attention"] = (lane, 0)
    watch = Watch(born=born)
    return Reading(watch, len(born) - 1, "attention", own, as_tokens(tokens), None, 0, ())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("said", "cells", "true"),
    [
        ("holds nothing at position 1, where token 5 belongs", [(0, 4)], True),
        ("holds nothing at position 1, where token 6 belongs", [(0, 4)], False),
        ("holds nothing at position 1, where token 5 belongs", [(0, 4), (1, 9)], False),
        ("holds token 9 at position 1, where this request has 5", [(0, 4), (1, 9)], True),
        ("holds token 9 at position 1, where this request has 5", [(0, 4), (1, 9), (1, 5)], False),
        ("holds token 8 at position 1, where this request has 5", [(0, 4), (1, 9)], False),
        ("holds a token too many at position 1: 9", [(0, 4), (1, 9), (1, 5)], True),
        ("holds a token too many at position 1: 9", [(0, 4), (1, 9)], False),
        ("is correct for 2 tokens, then 1 token too many", [(0, 4), (1, 5), (2, 7)], True),
        ("is correct for 2 tokens, then 1 token too many", [(0, 4), (1, 5)], False),
        ("is correct for 1 token, then 1 token missing", [(0, 4)], False),  # it lies at 2, not at 1
        (f"{AFTER_OTHERS} 0 tokens", [(0, 8), (1, 5)], True),
        (f"{AFTER_OTHERS} 1 token", [(0, 8), (1, 5)], False),
        (f"{AFTER_OTHERS} 0 tokens", [(0, 4), (1, 5)], False),
    ],
)
def test_a_sentence_about_a_cell_is_held_against_the_cells(
    said: str, cells: list[tuple[int, int]], true: bool
) -> None:
    forms = [(judge, found) for form, judge in CELLS.items() if (found := re.fullmatch(form, said))]

    assert [true] == [judge(seen([4, 5, 6], cells, 2), found) for judge, found in forms]


CAUSED: Final = {
    "llama.cpp-22534-same-prompt-refused-cut", "llama.cpp-26893-reranked-saved-never-loaded",
    "vllm-51771-three-groups-and-a-drafter", "sglang-39436-too-few-states",
    "mlx-lm-929-no-snapshot-below-8192", "llama.cpp-28139-prefix-hides-entry",
    "vllm-store-load-one-block-short", "sglang-34870-eagle-window-counted-in-tokens",
    "llama.cpp-12160-second-removal-drops-kept-chunks",
    "sglang-27586-stale-window-map", "ik_llama.cpp-1889-draft-context-refuses-loaded-chat",
    "mlx-lm-137-all-or-nothing-match", "llama.cpp-26207-adapter-unknown-to-prompt-cache",
    "llama.cpp-28139-pinned-to-empty",
    "llama.cpp-25070-evicts-the-entry-it-needs", "mlx-lm-1078-immediate-prefix-kept",
    "llama.cpp-26191-f-keep", "llama.cpp-24190-two-requests-of-one-chat",
    "vllm-48195-longest-group",
    "vllm-43559-one-block-too-many", "ik_llama.cpp-1079-cache-search-empties-the-slot",
    "ik_llama.cpp-1294-loaded-entry-cannot-be-cut",
}  # fmt: skip
"""Scenarios in which 40 causes have a part."""


@pytest.mark.sampled(3)
@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(CAUSED))
def test_a_cause_with_other_numbers_is_found(name: str) -> None:
    for played in all_profiles(load(shipped_file(name))):
        for index, step in enumerate(played.steps):
            for loss in step.why:
                before, after, detail = int(loss.before), int(loss.after), dict(loss.detail)
                told = Lost(played, index, before, after, detail)
                lies = [
                    replace(told, after=before + 10_001),
                    replace(told, detail={key: _lie(value) for key, value in detail.items()}),
                ]
                judge = CAUSES[loss.rule]

                assert judge(told)
                assert not all(judge(lie) for lie in lies), loss


def _lie(value: object) -> Any:
    if isinstance(value, float):
        return 0.0 if value else 10_001.0
    return value + 10_001 if isinstance(value, int) else f"no {value}"


@pytest.mark.thorough
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.what)
def test_a_planted_falsehood_is_found(lie: Lie, monkeypatch: pytest.MonkeyPatch) -> None:
    lie.plant(monkeypatch)
    found = claims_of(lie.scenario).false
    assert any(each.startswith(lie.broken) for each in found), found[:3]
