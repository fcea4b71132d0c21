"""Every bug that is put back must be caught, and by what it does: without it nothing is found."""

import pytest

from cachesim.typed import there_is
from conformance.mutants.hunt import caught, control
from conformance.mutants.others import ALL
from conformance.mutants.switches import Mutant

HUNTED = [
    pytest.param(each, id=each.name, marks=[pytest.mark.thorough] if number % 4 else [])
    for number, each in enumerate(ALL)
]
"""The other three quarters are thorough."""

CRASHES = frozenset({"list-drops-nothing-for-its-length", "prefixes-stay"})
"""Mutants that break a contract before a count is compared."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mutant", HUNTED)
def test_the_mutant_is_caught_by_what_it_answers(mutant: Mutant) -> None:
    """One layer of each kind shows it as soon as all of them."""
    catch = there_is(caught(mutant))
    assert (catch.how == "crash") == (mutant.name in CRASHES)
    assert mutant.caught_by == "records" or catch == caught(mutant, thin=True)


@pytest.mark.sampled(4)
@pytest.mark.thorough
@pytest.mark.parametrize("mutant", HUNTED)
def test_the_same_hunt_without_the_mutant_finds_nothing(mutant: Mutant) -> None:
    """As many examples as the mutant took at most; `-m conformance.mutants` plays them all."""
    assert control(mutant, examples=30) is None


def test_there_are_enough_of_them_and_no_two_share_a_name() -> None:
    assert len(ALL) >= 30
    assert len({each.name for each in ALL}) == len(ALL)
