"""A sample of the claims is checked here; the whole by `python -m tests.claims`.

Then the checker itself is put to the test: each planted falsehood must be found.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import islice
from typing import Any, Final, NamedTuple

import pytest

from cachesim.engines.causes import Loss
from cachesim.engines.family import FAMILIES
from cachesim.engines.ledger import Ledger
from cachesim.engines.llamacpp import causes, checkpoints
from cachesim.engines.llamacpp.checkpoints import ERASURES
from cachesim.engines.profile import Profile
from cachesim.errors import InputError
from cachesim.scenario import evidence, load, scenario_of, statements
from cachesim.scenario.result import Culprit, Fact
from cachesim.scenario.shipped import shipped_file
from cachesim.scenario.wrong import Past
from cachesim.testing.search import workloads
from tests.claims.checks import CHECKS, Tally, every
from tests.claims.played import all_profiles, play

SAMPLE: Final = (
    "llama.cpp-26207-from-ram",
    "llama.cpp-three-requests",
    "llama.cpp-24143-load-consumes-entry",
    "llama.cpp-window-one-beyond",
    "llama.cpp-22083-two-chats",
    "mlx-lm-1736-padding-in-the-state",
    "ik_llama.cpp-1888-one-token-too-far",
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


@pytest.mark.parametrize("name", SAMPLE)
def test_what_is_said_of_a_scenario_is_true(name: str) -> None:
    tally = claims_of(name)
    assert [] == tally.false
    assert tally.checked > 40


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


def test_every_kind_of_statement_has_its_check() -> None:
    words = {
        fact.word
        for name in SAMPLE
        for played in all_profiles(load(shipped_file(name)))
        for step in played.steps
        for fact in step.facts
    }
    assert words <= set(CHECKS)
    assert {"equal", "rule", "wrong", "because", "restored", "kept by", "but with"} <= words


# --- planted falsehoods -----------------------------------------------------------------------


class Lie(NamedTuple):
    """Something false that would be said, where it shows, and which claim it breaks."""

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
    wrong = {k: replace(each, rule="pos_max > pos_next") for k, each in ERASURES.items()}
    patch.setattr(checkpoints, "ERASURES", wrong)


def _cut_one_token_further(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint is said to be cut to one token more than match."""
    made = checkpoints.CheckpointCut

    def told(*, cut_tokens: int, **fields: Any) -> Any:
        return made(cut_tokens=cut_tokens + 1, **fields)

    patch.setattr(checkpoints, "CheckpointCut", told)


def _similar_although_off(patch: pytest.MonkeyPatch) -> None:
    """A slot is said to share too little, where sharing was not looked at."""
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
    """What followed in some other conversation is said to stand in this one."""
    explain = import_module("cachesim.verify.explain")
    original = explain._parting

    def told(*arguments: Any) -> Any:
        found = original(*arguments)
        return found and replace(found, there=found.token)

    patch.setattr(explain, "_parting", told)


def _sentence_of_another(patch: pytest.MonkeyPatch) -> None:
    original = Loss.as_dict
    patch.setattr(
        Loss, "sentence", property(lambda self: f"Memory reaches back to 77: {self.rule}")
    )
    assert original


THREE, LOADED = "llama.cpp-three-requests", "llama.cpp-24143-load-consumes-entry"
PADDED = "mlx-lm-1736-padding-in-the-state"

LIES: Final = (
    Lie("one more token is right than is", PADDED, "right up to",
        changed(evidence, "culprit", edited(matches=lambda c: c.matches + 1))),
    Lie("padding is called a token", PADDED, "padding",
        changed(evidence, "culprit", edited(padding=lambda _: 0))),
    Lie("the token came from another step", THREE, "whose",
        changed(evidence, "origin", lambda _: lambda *_: "step B, b")),
    Lie("the released rule is printed for a patch", THREE, "erased", _released_rule),
    Lie("a checkpoint is cut one token too far up", "llama.cpp-24797-labels-for-contents", "cut",
        _cut_one_token_further),
    Lie("somebody else made the checkpoint", THREE, "made by", _first_maker),
    Lie("the next token there is the one here", THREE, "parting", _what_followed_anywhere),
    Lie("the threshold is one too high", THREE, "depth", _threshold_off_by_one),
    Lie("what was kept shares one token more", THREE, "kept by",
        changed(statements, "slipped", reworded("shares 0 tokens", "shares 1 tokens"))),
    Lie("an ideal cache reuses one token more", LOADED, "ideal",
        changed(statements, "_reuse", reworded("reused 199", "reused 200"))),
    Lie("another count was shared with the entry", LOADED, "consumed",
        changed(statements, "_gone", reworded("for the 100", "for the 99"))),
    Lie("server and cold run are exchanged", THREE, "wrong",
        changed(statements, "wrong_facts", reworded("token 1:", "token 2:"))),
    Lie("nothing has held it since another step", "llama.cpp-22083-two-chats", "gone",
        changed(statements, "_gone", reworded("since step B", "since step A"))),
    Lie("a slot that was not measured shares too little", "two-slots", "similarity",
        _similar_although_off),
    Lie("a cause says a number of its own", THREE, "rule numbers", _sentence_of_another),
)  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.what)
def test_a_planted_falsehood_is_found(lie: Lie, monkeypatch: pytest.MonkeyPatch) -> None:
    lie.plant(monkeypatch)
    found = claims_of(lie.scenario).false
    assert any(each.startswith(lie.broken) for each in found), found[:3]
