"""Somebody writes a prompt cache of forty lines, and is told which law it breaks, and how."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from cachesim.testing import BrokenLawError, State, VacuousCheckError, check_prompt_cache
from cachesim.testing.prompt_cache_laws import shown, unit_of
from cachesim.units import Tokens
from tests.testing import planted_caches
from tests.testing.planted_caches import (
    PLANTED,
    PLANTED_FOR_STATES,
    PLANTED_UNDER_SALTS,
    Blocks,
    LastTwoTokens,
    NeverFound,
    NoParent,
    Once,
    OnlyLastToken,
    ShortestPrefix,
    Store,
    Trie,
    WholePrompt,
)

# -- a user's cache ------------------------------------------------------------------------------


class MyPromptCache:
    """A dictionary of conversations; the longest one that the prompt begins with is used."""

    def __init__(self, capacity: int = 4) -> None:
        self.capacity = capacity
        self.entries: dict[Tokens, State] = {}

    def insert(self, tokens: Tokens, state: State) -> None:
        self.entries.pop(tokens, None)
        self.entries[tokens] = state
        while len(self.entries) > self.capacity:
            self.entries.pop(next(iter(self.entries)))

    def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
        best: Tokens = ()
        for held in self.entries:
            shared = self._shared(held, tokens)
            if shared > self._shared(best, tokens):
                best = held
        covered = min(self._shared(best, tokens), len(tokens) - 1)
        if covered <= 0:
            return None
        return self._cut(best, covered)

    @staticmethod
    def _shared(one: Tokens, other: Tokens) -> int:
        pairs = enumerate(zip(one, other, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))

    def _cut(self, held: Tokens, covered: int) -> tuple[int, State] | None:
        state = copy.copy(self.entries[held])  # shallow: the token list is shared
        state.trim(len(held) - covered)
        return covered, state


class MendedPromptCache(MyPromptCache):
    """The same with the two mends that the laws ask for."""

    def _cut(self, held: Tokens, covered: int) -> tuple[int, State] | None:
        state = copy.deepcopy(self.entries[held])
        if len(held) > covered and not state.trim(len(held) - covered):
            return None
        return covered, state


# -- what they are told --------------------------------------------------------------------------


def test_a_shallow_copy_is_told_in_three_steps() -> None:
    with pytest.raises(BrokenLawError) as told:
        check_prompt_cache(MyPromptCache)

    assert "no aliasing" == told.value.law
    assert len(told.value.story) <= 3
    assert told.value.story[0].startswith("insert([0])")


def test_a_state_that_cannot_be_cut_is_handed_out_too_long() -> None:
    class Careless(MyPromptCache):
        def _cut(self, held: Tokens, covered: int) -> tuple[int, State] | None:
            state = copy.deepcopy(self.entries[held])
            state.trim(len(held) - covered)  # refused by a recurrent state; nobody looks
            return covered, state

    check_prompt_cache(Careless)
    with pytest.raises(BrokenLawError) as told:
        check_prompt_cache(Careless, trimmable=False)

    assert "true states" == told.value.law
    assert 2 == len(told.value.story)


@pytest.mark.parametrize("trimmable", [True, False])
def test_the_mended_cache_holds_all_laws(trimmable: bool) -> None:
    check_prompt_cache(MendedPromptCache, trimmable=trimmable)


def test_a_whole_prompt_must_not_be_covered() -> None:
    class Greedy(MendedPromptCache):
        def fetch(self, tokens: Tokens) -> tuple[int, State] | None:
            exact = self.entries.get(tokens)
            return (len(tokens), copy.deepcopy(exact)) if exact else super().fetch(tokens)

    with pytest.raises(BrokenLawError, match="one token left"):
        check_prompt_cache(Greedy)


# -- caches of others, right and wrong -----------------------------------------------------------


@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: each.__name__)
def test_a_planted_bug_is_found(planted: Callable[[], Any]) -> None:
    with pytest.raises(BrokenLawError) as told:
        check_prompt_cache(planted, examples=300)

    assert told.value.law in PLANTED[planted]
    assert len(told.value.story) <= 8


@pytest.mark.parametrize("planted", PLANTED_UNDER_SALTS, ids=lambda each: each.__name__)
def test_a_missing_salt_is_found(planted: Callable[[], Any]) -> None:
    check_prompt_cache(planted)
    with pytest.raises(BrokenLawError) as told:
        check_prompt_cache(planted, salts=True)

    assert PLANTED_UNDER_SALTS[planted] == told.value.law


@pytest.mark.parametrize("planted", PLANTED_FOR_STATES, ids=lambda each: each.__name__)
def test_a_bug_that_only_states_show_is_found(planted: Callable[[], Any]) -> None:
    with pytest.raises(BrokenLawError) as told:
        check_prompt_cache(planted, trimmable=False)

    assert PLANTED_FOR_STATES[planted] == told.value.law


@pytest.mark.parametrize("trimmable", [True, False])
@pytest.mark.parametrize("right", [Blocks, Trie, Store, Once])
def test_a_right_cache_holds_all_laws(right: Callable[[], Any], trimmable: bool) -> None:
    report = check_prompt_cache(right, trimmable=trimmable)

    assert 300 == report.examples
    assert report.fetched.total() > 300


def test_a_right_cache_holds_all_laws_under_salts() -> None:
    assert check_prompt_cache(Blocks, salts=True).fetched.total() > 300


@pytest.mark.parametrize("unit", [1, 7, 256])
def test_the_unit_of_a_cache_is_found_and_prompts_are_as_long(
    unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planted_caches, "UNIT", unit)

    report = check_prompt_cache(Blocks, examples=100)

    assert unit == unit_of(Blocks) == report.units[0]
    assert {unit, 2 * unit, 3 * unit} <= set(report.fetched)


@pytest.mark.parametrize("unit", [4, 16, 64])
@pytest.mark.parametrize("planted", [OnlyLastToken, LastTwoTokens, NoParent, WholePrompt])
def test_bugs_are_found_whatever_the_size_of_blocks(
    unit: int, planted: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planted_caches, "UNIT", unit)

    with pytest.raises(BrokenLawError):
        check_prompt_cache(planted)


def test_a_check_of_a_cache_that_never_hands_out_anything_fails_as_vacuous() -> None:
    with pytest.raises(VacuousCheckError, match="nothing was ever handed out, so nothing was"):
        check_prompt_cache(NeverFound)


def test_the_report_has_how_often_something_was_fetched_and_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planted_caches, "UNIT", 8)

    report = check_prompt_cache(Blocks, unit=8, examples=40)

    total = report.fetched.total()
    assert str(report).startswith(
        f"40 examples, {report.insertions} insertions, {report.requests} requests of which {total} "
        f"fetched something, with pieces of 8, 1, 16 tokens; tokens covered (how often): 8 ("
    )


def test_a_cache_that_prefers_older_entries_may_be_allowed() -> None:
    with pytest.raises(BrokenLawError, match="write newest=False"):
        check_prompt_cache(ShortestPrefix)

    check_prompt_cache(ShortestPrefix, newest=False)


def test_a_cache_that_makes_states_of_its_own_tokens_is_not_accused() -> None:
    class OwnTokens(Blocks):
        def answer(self, found: list[list[int]], tokens: Tokens) -> tuple[int, State] | None:
            covered = sum(map(len, found))
            return (covered, State([int(each) for each in tokens[:covered]])) if covered else None

    check_prompt_cache(OwnTokens)


def test_long_prompts_are_told_as_runs() -> None:
    assert "[0, 0, 1]" == shown([0, 0, 1])
    assert "[0 x 16, 1, 3 x 2]" == shown([0] * 16 + [1, 3, 3])
