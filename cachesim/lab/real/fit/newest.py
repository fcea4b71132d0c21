"""The rule fields that explain what another version does differently from a known release."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rich.box import SIMPLE_HEAD
from rich.table import Table

from cachesim.engines.words import counted
from cachesim.errors import CachesimError
from cachesim.lab.real.agreement import Difference
from cachesim.lab.real.fit.search import Change, Search, changed, shown
from cachesim.lab.real.playing import console
from cachesim.typed import Value

T = TypeVar("T")
"""A value of rules."""

MOST: Final = 14
"""Workloads that differ, and as many that agree, on which rule fields are tried at a time."""

ROUNDS: Final = 4
"""So many samples are drawn of the workloads that still differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played(Generic[T]):
    """A workload that another version played; `check` holds rules against what it did."""

    kind: str
    requests: int  # steps that are compared
    size: int  # about how long it takes to play
    check: Callable[[T], Difference | None]

    def agreeing(self, difference: Difference | None) -> int:
        """The steps before a difference: all where there is none."""
        return self.requests if difference is None else difference.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Rule fields that were changed at once, the values before, and the steps that agree for it."""

    changes: tuple[Change, ...]
    values: tuple[Value, ...]
    gained: int


def play_under(played: Played[T], rules: T) -> Difference | None:
    """Hold rules against a recording; rules that contradict each other agree with nothing."""
    try:
        return played.check(rules)
    except (CachesimError, ArithmeticError, LookupError, AssertionError, TypeError) as error:
        return Difference(step=0, simulated=type(error).__name__)
    except (AttributeError, ValueError, RecursionError) as error:
        return Difference(step=0, simulated=type(error).__name__)


def explain(
    version: str, release: str, known: Mapping[str, T], played: Sequence[Played[T]]
) -> tuple[Found, ...]:
    """Fit a release's rules to what another version did, and print the fields that explain it.

    Fields are tried on a sample of the workloads that differ and of those that agree, then held
    against all of them; what still differs is sampled again.
    """
    rules, found, exhausted = known[release], list[Found](), False
    beside, first = console(stderr=True), _agreeing(played, rules)
    before = first
    for _ in range(ROUNDS):
        differing = [each for each in played if play_under(each, rules) is not None]
        agreeing = [each for each in played if each not in differing]
        search = Search(
            (*_sample(differing), *_sample(agreeing)),
            known,
            play_under,
            lambda line: beside.print(f"  {line}"),
        )
        steps = search.run((release, rules)).steps if differing else ()
        for step in steps:
            values = tuple(each.value_in(rules) for each in step.changes)
            rules = changed(rules, step.changes)
            now = _agreeing(played, rules)
            found.append(Found(changes=step.changes, values=values, gained=now - before))
            before = now
        exhausted = not steps
        if exhausted:
            break
    out, asked = console(), sum(each.requests for each in played)
    if found:
        out.print(_table(found, version, release, known, asked - first))
    left = sum(play_under(each, rules) is not None for each in played)
    agree = f"{len(played) - left} of {counted(len(played), 'workload')} agree"
    if not found:
        out.print(f"no rule field, and no pair of them, explains it: {agree}")
    elif left and exhausted:
        out.print(f"with these values {agree}; no further field, and no pair, explains the rest")
    else:
        out.print(f"with these values {agree}")
    return tuple(found)


def _agreeing(played: Sequence[Played[T]], rules: T) -> int:
    return sum(each.agreeing(play_under(each, rules)) for each in played)


def _sample(played: Sequence[Played[T]]) -> list[Played[T]]:
    """The smallest workload of each kind, then the next one of each, and so on."""
    turns: dict[str, int] = {}
    order = []
    for each in sorted(played, key=lambda one: one.size):
        turns[each.kind] = turns.get(each.kind, 0) + 1
        order.append((turns[each.kind], each.size, each))
    return [each for _, _, each in sorted(order, key=lambda entry: entry[:2])][:MOST]


def _table(
    found: Sequence[Found], version: str, release: str, known: Mapping[str, T], missing: int
) -> Table:
    """The fields in the order in which they were found, and the share that each explains."""
    table = Table(box=SIMPLE_HEAD)
    for head in ("rule", release, version, "as in", "explained"):
        table.add_column(
            head,
            justify="right" if head == "explained" else "left",
            overflow="fold",
            no_wrap=head != "as in",
        )
    for each in found:
        share = f"{each.gained / missing:.0%}"
        for change, value in zip(each.changes, each.values, strict=True):
            holding = [name for name, rules in known.items() if change.holds(rules)]
            last = change == each.changes[-1]
            told = share if last else "with the next"
            table.add_row(change.name, shown(value), shown(change.value), _span(holding), told)
    return table


def _span(names: Sequence[str]) -> str:
    if not names:
        return "no known release"
    return ", ".join(names) if len(names) < 4 else f"{names[0]} .. {names[-1]} ({len(names)})"
