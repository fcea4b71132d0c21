"""Random mutants: one place of a decision is changed, planted, and found or known as equivalent."""

import ast
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from cachesim.engines.family import Profile
from cachesim.engines.ik_llama.context import Cells
from cachesim.errors import TokenError
from cachesim.verify.oracle import Oracles
from conformance.mutants.random import ports, search
from conformance.mutants.random.equivalent import EQUIVALENT
from conformance.mutants.random.means import Example
from conformance.mutants.random.operators import sites
from conformance.mutants.random.ports import ENGINES, PORTS, RandomMutant, candidates, draw
from conformance.mutants.random.session import PlantingError, control, judge

IK = PORTS["ik_llama.cpp"]

CODE = '''
def decides(first: int, last: int) -> None:
    """Text with a < b."""
    if first < last and first:
        self.items.pop(0)
    if first < 0:
        raise ValueError(f"{first} < 0")
    self.ledger.apply(causes.GONE, first - 1)
    while first:
        continue
    self.total += min(first, 3)
    other(first, last)
    for left, right in zip(self.items, self.others, strict=True):
        del left
'''

CHANGES = {
    ("negated condition", "not (first < last and first)"),
    ("and/or", "first < last or first"),
    ("comparison", "first <= last"),
    ("dropped statement", "pass"),
    ("first/last", "self.items.pop()"),
    ("constant", "1"),
    ("negated condition", "not first"),
    ("early return", "return"),
    ("continue and break", "break"),
    ("arithmetic", "self.total -= min(first, 3)"),
    ("min/max", "max(first, 3)"),
    ("constant", "4"),
    ("constant", "2"),
    ("swapped arguments", "other(last, first)"),
    ("off by one", "other(first + 1, last)"),
    ("off by one", "other(first, last + 1)"),
}


def test_each_operator_changes_one_place_and_no_report() -> None:
    function = ast.parse(CODE).body[0]
    assert isinstance(function, ast.FunctionDef)
    found = {
        (site.operator, ast.unparse(ast.fix_missing_locations(site.replacement)))
        for site in sites(function, {"other": ("int", "int")})
    }

    assert CHANGES == found


def test_a_seed_always_draws_the_same_mutants_of_different_statements() -> None:
    first, again = (draw(IK, 100, 0) for _ in range(2))

    assert 100 == len({id(each.site.statement) for each in first})
    assert [each.key for each in first] == [each.key for each in again]
    assert {each.key for each in first} != {each.key for each in draw(IK, 100, 1)}
    for each in first:
        assert each.source in (ENGINES / each.function.file).read_text()


def test_a_statement_that_goes_redraws_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before = draw(IK, 40, 0)
    gone = before[0].site.statement
    rest = tuple(candidate for candidate in candidates(IK) if candidate.site.statement is not gone)
    monkeypatch.setattr(ports, "candidates", lambda _: rest)

    assert [each.key for each in before[1:]] == [each.key for each in draw(IK, 39, 0)]


@pytest.mark.thorough
def test_every_equivalent_is_a_mutant_that_can_be_drawn_and_has_a_reason() -> None:
    drawn = {candidate.key for port in PORTS.values() for candidate in candidates(port)}

    assert set() == {*EQUIVALENT} - drawn
    assert all(len(why.split()) > 4 for why in EQUIVALENT.values())


def advance(old: str) -> RandomMutant:
    """A change of `if self.head >= self.size` in the search of ik_llama.cpp's cells."""
    return next(
        candidate
        for candidate in candidates(IK)
        if candidate.function.qualname == "Cells.advance"
        and (candidate.old, candidate.operator) == (old, "comparison")
    )


def starts_again() -> bool:
    cells = Cells(4, recurrent=False, hybrid=False)
    cells.place(0, np.arange(4), [0] * 4)  # type: ignore[list-item]
    cells.advance(4)
    return cells.head == 0


def counts() -> bool:
    return Cells(4, recurrent=False, hybrid=False).used == 0


def fails() -> bool:
    raise ValueError


@pytest.mark.thorough
def test_a_planted_mutant_is_found_by_what_reaches_it_and_the_control_by_nothing() -> None:
    ports.load(IK)
    mutants = [advance("self.head >= self.size")]
    examples = [
        Example("laws", "reaches it", starts_again),
        Example("laws", "does not", counts),
        Example("check", "is wrong without it", fails),
    ]
    known = control(examples, mutants, 2)
    ((number, outcome),) = judge(examples, known, mutants, 1)

    assert [True, True, False] == [known[at].holds for at in range(3)]
    assert [{0}, set(), set()] == [{*known[at].reached} for at in range(3)]
    assert (0, "laws", "reaches it", "differs") == (
        number,
        outcome.means,
        outcome.example,
        outcome.how,
    )
    assert starts_again()  # nothing is planted in this process


def endless(place: SimpleNamespace) -> bool:
    while Cells(2, recurrent=False, hybrid=False).size:
        place.turns += 1
    return True


@pytest.mark.thorough
def test_an_example_that_never_ends_is_found() -> None:
    ports.load(IK)
    mutants = [advance("self.head >= self.size")]
    examples = [Example("laws", "hangs", partial(endless, SimpleNamespace(turns=0)))]
    known = control([Example("laws", "hangs", starts_again)], mutants, 1)
    ((_, outcome),) = judge(examples, known, mutants, 1)

    assert ("laws", "hangs") == (outcome.means, outcome.how)


@pytest.mark.thorough
def test_a_mutant_that_cannot_be_planted_is_an_error() -> None:
    ports.load(IK)
    lost = advance("self.head >= self.size")
    gone = replace(lost, function=replace(lost.function, file="ik_llama/of_another_tree.py"))

    with pytest.raises(PlantingError, match=r"of_another_tree\.py"):
        list(judge([], {}, [gone], 1))


@pytest.mark.thorough
def test_a_mutant_without_the_only_call_of_super_is_planted() -> None:
    vllm = PORTS["vllm"]
    ports.load(vllm)
    forget = next(
        candidate
        for candidate in candidates(vllm)
        if (candidate.function.qualname, candidate.new) == ("Vllm.forget", "pass")
        and candidate.source.startswith("super()")
    )
    examples = [Example("laws", "of another function", counts)]
    known = {0: replace(control(examples, [forget], 1)[0], reached=frozenset({0}))}
    ((_, outcome),) = judge(examples, known, [forget], 1)

    assert (None, 1) == (outcome.means, outcome.tried["laws"])


def test_tokens_that_a_mutant_makes_and_the_network_refuses_are_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        msg = "an ubatch without tokens"
        raise TokenError(msg)

    monkeypatch.setattr(search, "_judged", refuse)
    found = search._failures(Profile.parse("sglang@0.5.23"), "dense", 0, 0, Oracles())
    monkeypatch.setattr(search, "Guided", refuse)
    refused = search._failures(Profile.parse("sglang@0.5.23"), "dense", 0, 0, Oracles())

    assert {("TokenError", -1)} == found[1]
    assert (None, frozenset()) == refused
