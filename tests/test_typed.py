"""Checks at run time of values beyond the type checker."""

import pytest

from cachesim.errors import ContractError
from cachesim.typed import of_kind, there_is


def test_a_value_of_the_class_is_handed_on() -> None:
    assert "x" == of_kind(str, "x")


def test_a_value_of_another_class_is_a_bug() -> None:
    with pytest.raises(ContractError, match="int where only str can be"):
        of_kind(str, 1)


def test_what_is_there_is_handed_on_and_nothing_is_a_bug() -> None:
    assert 0 == there_is(0)
    with pytest.raises(ContractError, match="nothing where something must be"):
        there_is(None)
