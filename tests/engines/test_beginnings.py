"""Stored prompts are found as a comparison with each of them finds them."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.beginnings import Beginnings
from cachesim.engines.tokens import Rope, get_common_prefix
from cachesim.units import Count, Token, as_tokens


@dataclass(eq=False)
class Stored:
    tokens: Sequence[Token]


LISTS = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12)


def rope(numbers: Sequence[int]) -> Sequence[Token]:
    """A list as the texts of a log: three tokens of each number."""
    made: Sequence[Token] = Rope((number + 1, 0, 3) for number in numbers)  # type: ignore[assignment]
    return made


def compared(stored: Sequence[Stored], tokens: Sequence[Token]) -> dict[Stored, Count]:
    return {each: get_common_prefix(each.tokens, tokens) for each in stored}


def found(tree: Beginnings[Stored], tokens: Sequence[Token]) -> dict[Stored, Count]:
    common: dict[Stored, Count] = {}
    for count, stored in tree.shared(tokens):
        common.update(dict.fromkeys(stored, count))
    return common


@given(lists=LISTS, out=st.lists(st.integers(0, 11)), asked=LISTS, ropes=st.booleans())
def test_the_tree_agrees_with_a_comparison_of_each(
    lists: list[list[int]], out: list[int], asked: list[list[int]], *, ropes: bool
) -> None:
    of = rope if ropes else as_tokens
    tree: Beginnings[Stored] = Beginnings()
    stored = [Stored(of(each)) for each in lists]
    for each in stored:
        tree.add(each)
    gone = {index for index in out if index < len(stored)}
    for index in gone:
        tree.remove(stored[index])
    left = [each for index, each in enumerate(stored) if index not in gone]
    for tokens in map(of, [*lists, *asked]):
        assert list(compared(left, tokens).items()) == list(found(tree, tokens).items())


def test_a_copy_holds_copies() -> None:
    tree: Beginnings[Stored] = Beginnings()
    first = Stored(as_tokens([1, 2]))
    tree.add(first)
    copy, twin = deepcopy((tree, first))
    tree.add(Stored(as_tokens([1, 3])))

    assert [(0, {twin: None}), (2, {twin: None})] == copy.shared(first.tokens)
