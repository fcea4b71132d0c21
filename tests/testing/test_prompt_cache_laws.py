"""Somebody writes a prompt cache of forty lines, and is told which law it breaks, and how."""

import copy

import pytest

from cachesim.testing import BrokenLawError, State, check_prompt_cache
from cachesim.units import Tokens

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
