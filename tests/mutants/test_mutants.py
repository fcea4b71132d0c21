"""The suite must catch every one of these; one that gets away fails here."""

import pytest

from tests.mutants.hunt import caught_after
from tests.mutants.llama_cpp import LLAMA_CPP
from tests.mutants.others import OTHERS
from tests.mutants.switches import Mutant

ALL = LLAMA_CPP + OTHERS


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant: Mutant) -> None:
    assert caught_after(mutant) is not None


def test_there_are_enough_of_them_and_no_two_share_a_name() -> None:
    assert len(ALL) >= 30
    assert len({mutant.name for mutant in ALL}) == len(ALL)
