"""Causes and events are declared values with words of their own."""

from dataclasses import fields

import pytest

from cachesim.engines import facts
from cachesim.engines.causes import Cause, Ledger
from cachesim.engines.events import Event
from cachesim.engines.words import filled, in_numbers, in_words, names_in
from cachesim.errors import ContractError
from cachesim.units import Count

CAUSES = [(engine, each) for engine in facts.engines() for each in facts.causes_of(engine)]
EVENTS = [(engine, each) for engine in facts.engines() for each in facts.events_of(engine)]

by_name = {
    "ids": lambda each: getattr(each, "id", None) or getattr(each, "__name__", None) or str(each)
}


BORROWS_CAUSES = {"rapid-mlx"}
BORROWS_EVENTS = {"ollama", "omlx", "rapid-mlx"}
"""Engines that have only those of mlx-lm, over whose caches they serve."""


def test_every_engine_declares_causes_and_events() -> None:
    assert facts.engines()
    assert set(facts.engines()) - BORROWS_CAUSES == {engine for engine, _ in CAUSES}
    assert set(facts.engines()) - BORROWS_EVENTS == {engine for engine, _ in EVENTS}


def test_no_engine_has_two_causes_of_one_id() -> None:
    named = [(engine, cause.id) for engine, cause in CAUSES]
    assert len(set(named)) == len(named)


def test_what_two_engines_say_alike_is_written_once() -> None:
    words = [cause.sentence for _, cause in CAUSES] + [event.template for _, event in EVENTS]
    twice = [each for each in set(words) if len({id(word) for word in words if word == each}) > 1]
    assert [each for each in twice if each] == []


@pytest.mark.parametrize(("engine", "event"), EVENTS, **by_name)
def test_every_event_has_a_sentence_over_its_own_fields(engine: str, event: type[Event]) -> None:
    known = {field.name for field in fields(event)}
    composes = event.sentence is not Event.sentence  # its numbers decide what is said
    assert composes or event.template
    assert set() == names_in(event.template) - known
    assert engine


@pytest.mark.parametrize(("engine", "cause"), CAUSES, **by_name)
def test_every_cause_says_something_without_a_full_stop(engine: str, cause: Cause) -> None:
    words = cause.render(dict.fromkeys((*cause.numbers, *cause.derived), 7))
    assert words
    assert not words.endswith((".", ":"))
    assert not words[0].isupper()
    assert cause.about.endswith(".")
    assert engine


@pytest.mark.parametrize(
    "broken", [{"sentence": "", "about": "About."}, {"sentence": "words", "about": ""}]
)
def test_a_cause_without_words_is_not_made(broken: dict[str, str]) -> None:
    with pytest.raises(ContractError):
        Cause(id="broken", **broken)


@pytest.mark.parametrize(
    ("sentence", "fields"), [("{n} tokens", ()), ("tokens", ("n",)), ("{n} tokens", ("n",))]
)
def test_a_branch_hands_over_exactly_the_numbers_that_its_cause_declares(
    sentence: str, fields: tuple[str, ...]
) -> None:
    cause = Cause(id="c", sentence=sentence, about="About.", fields=fields)
    for detail in ({}, {"n": 1, "m": 2}, {"m": 2}):
        with pytest.raises(ContractError, match="cause c is declared with fields"):
            Ledger(Count(9)).apply(cause, 4, **detail)


def test_an_unchanged_number_needs_no_cause() -> None:
    cause = Cause(id="c", sentence="{n} tokens", about="About.", fields=("n",))
    ledger = Ledger(Count(9))
    ledger.apply(cause, 9, n=1)
    assert () == ledger.losses


def test_values_in_words() -> None:
    assert "yes" == in_words(value=True)
    assert "0.333" == in_words(1 / 3)
    assert "undefined" == in_words(None)
    assert "none" == in_words([])
    assert "1; 2; 3; and 2 more" == in_words([1, 2, 3, 4, 5])
    shown = {"pos_min": 3, "pos_max": 5, "n_tokens": 6}
    assert "6[3..5]" == in_words(shown)
    assert "6[3..5] refused: 3 >= 2" == in_words(shown | {"numbers": "3 >= 2"})
    assert "a 1, b 2" == in_words({"a": 1, "b": 2})
    assert "4 tokens in slot 0" == filled("{n} tokens in slot {slot}", {"n": 4, "slot": 0})


@pytest.mark.parametrize(
    ("several", "one"),
    [
        ("{n} tokens of slot 1", "1 token of slot 1"),
        ("only {n} of its tokens match", "only 1 of its tokens matches"),
        ("{n} tokens match, all {n} tokens are there", "1 token matches, all 1 token is there"),
        ("chunks of at least {n} tokens were moved", "chunks of at least 1 token were moved"),
        ("2{n} tokens match", "21 tokens match"),
        ("1.{n} tokens match", "1.1 tokens match"),
    ],
)
def test_one_token_is_told_in_the_singular(several: str, one: str) -> None:
    assert one == filled(several, {"n": 1})


def test_a_rule_in_numbers_keeps_what_is_no_name() -> None:
    values = {"pos_max": 5, "pos_next": 5, "pos_end": 6, "prefix_end": 9}
    assert "5 > 5" == in_numbers("pos_max > pos_next", values)
    assert "6 > 9 or 5 > 5 - 1" == in_numbers(
        "pos_end > prefix_end or pos_max > pos_next - 1", values
    )
