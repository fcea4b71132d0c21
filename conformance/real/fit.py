"""The rules nearest to the results of another version: hill climbing by single fields.

    a release -> the change that gains the most requests -> ... -> no change gains any

A change is tried first on the workloads that still disagree; only one that gains there is tried on
those that agree. Where no single change gains anything, pairs of those that change something are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import reduce
from itertools import combinations
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from rich.box import SIMPLE_HEAD
from rich.table import Table

from cachesim.engines.family import Family
from cachesim.engines.words import counted
from cachesim.errors import CachesimError
from cachesim.prove.playing import Difference, console
from cachesim.typed import Value

T = TypeVar("T")
"""A value of rules, in parts."""


@dataclass(frozen=True, slots=True)
class Change:
    """A rule field set to one value."""

    part: str  # names of the parts that lead to it: "scheduler", "rules.reuse"
    field: str
    value: Value

    def of(self, rules: T) -> T:
        return cast(
            "T", _set(rules, (*tuple(filter(None, self.part.split("."))), self.field), self.value)
        )

    def holds(self, rules: object) -> bool:
        return bool(self.value_in(rules) == self.value)

    def value_in(self, rules: object) -> Value:
        return value_of(rules, self.part, self.field)

    @property
    def name(self) -> str:
        return ".".join(filter(None, (self.part.removeprefix("rules."), self.field)))

    def __str__(self) -> str:
        return f"{self.name} = {shown(self.value)}"


def shown(value: Value) -> str:
    """A value as a table shows it; a set has an order then."""
    if isinstance(value, frozenset):
        return " ".join(sorted(value))
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def value_of(rules: object, part: str, field: str) -> Value:
    """The value of one field of the rules."""
    return reduce(getattr, filter(None, (*part.split("."), field)), rules)


def changes(known: Sequence[object]) -> tuple[Change, ...]:
    """Every field with every value: all of a choice, both of a switch, else those known so far."""
    found = []
    owner: Any = type(known[0])
    for part, name, kind in rule_fields(owner):
        values = list(_values(kind))
        for value in (value_of(rules, part, name) for rules in known):
            if value not in values:
                values.append(value)
        found += [Change(part, name, value) for value in values]
    return tuple(found)


def rule_fields(kind: type, part: str = "") -> Iterator[tuple[str, str, Value]]:
    """Part, name and type of every field, in the order in which the rules list them."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        hint: Any = hints[each.name]
        if is_dataclass(hint):
            inner: Any = hint
            yield from rule_fields(inner, ".".join(filter(None, (part, each.name))))
        elif hint is not str:  # a name is no rule
            yield part, each.name, hint


def _values(kind: Value) -> tuple[Value, ...]:
    if kind is bool:
        return (False, True)
    origin: object = get_origin(kind)
    return get_args(kind) if origin is Literal else ()


def _set(rules: Value, path: tuple[str, ...], value: Value) -> Value:
    name, *rest = path
    inner = _set(getattr(rules, name), tuple(rest), value) if rest else value
    return replace(rules, **{name: inner})


D = TypeVar("D", bound=Difference)
D_contra = TypeVar("D_contra", contravariant=True)


class Recorded(Protocol[D_contra]):
    """A workload with a wheel's results."""

    @property
    def requests(self) -> int:
        """The number of requests it has."""

    def agreeing(self, difference: D_contra | None) -> int:
        """The number of them before a difference: all where there is none."""


R = TypeVar("R", bound=Recorded[Any])

PAIRED: Final = 12
"""So many disagreeing workloads are tried with pairs of changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Changes made at once, and the number of requests that agree with them."""

    changes: tuple[Change, ...]
    agreeing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Generic[T, D]):
    """The nearest rules found, and the steps of the search."""

    nearest: str  # the release that it began with
    trial: T
    at_first: int  # requests that agreed with that release as it is
    steps: tuple[Step, ...]
    differences: tuple[D, ...]  # workloads that still disagree
    requests: int


@dataclass(slots=True)
class _Score(Generic[T, D]):
    """Rules, and the agreement of each recording with them."""

    trial: T
    agreeing: list[int]  # per recording: requests until the first difference
    differences: dict[int, D]

    @property
    def total(self) -> int:
        return sum(self.agreeing)


@dataclass(slots=True)
class Search(Generic[R, T, D]):
    """A climb over rule fields; `play` finds where rules first differ from a recording."""

    recordings: Sequence[R]
    known: Mapping[str, T]
    play: Callable[[R, T], D | None]
    log: Callable[[str], None] = field(default=lambda _: None)

    def run(self, begin: tuple[str, T] | None = None) -> Fit[T, D]:
        """Climb while agreement grows: from named rules, or from the nearest known release."""
        first = self.known if begin is None else dict([begin])
        scores = {name: self._score(trial) for name, trial in first.items()}
        for name, score in scores.items():
            self.log(f"{name}: {score.total} of {self._requests} requests")
        nearest = max(scores, key=lambda name: scores[name].total)
        best, steps = scores[nearest], []
        while best.differences:
            single = [(each,) for each in self._open(best)]
            found = self._best(best, single, list(best.differences)) or self._best_pair(best)
            if found is None:
                break
            made, best = found
            steps.append(Step(changes=made, agreeing=best.total))
            self.log(f"{' and '.join(map(str, made))}: {best.total}")
        return Fit(
            nearest=nearest,
            trial=best.trial,
            at_first=scores[nearest].total,
            steps=tuple(steps),
            differences=tuple(
                best.differences[difference] for difference in sorted(best.differences)
            ),
            requests=self._requests,
        )

    @property
    def _requests(self) -> int:
        return sum(recording.requests for recording in self.recordings)

    def _score(self, trial: T) -> _Score[T, D]:
        score = _Score[T, D](trial, [], {})
        for index in range(len(self.recordings)):
            agreeing, difference = self._outcome(index, trial)
            score.agreeing.append(agreeing)
            if difference is not None:
                score.differences[index] = difference
        return score

    def _outcome(self, index: int, trial: T) -> tuple[int, D | None]:
        recording = self.recordings[index]
        difference = self.play(recording, trial)
        return recording.agreeing(difference), difference

    def _best_pair(self, now: _Score[T, D]) -> tuple[tuple[Change, ...], _Score[T, D]] | None:
        """Two changes at once, each effective on a workload that disagrees."""
        few = list(now.differences)[:PAIRED]
        active = [each for each in self._open(now) if self._changes_something(now, each, few)]
        pairs = [
            (one, other)
            for one, other in combinations(active, 2)
            if (one.part, one.field) != (other.part, other.field)
        ]
        return self._best(now, pairs, few)

    def _open(self, now: _Score[T, D]) -> list[Change]:
        known = tuple(self.known.values())
        found = [change for change in changes(known) if not change.holds(now.trial)]
        return sorted(found, key=lambda change: not any(map(change.holds, known)))

    def _changes_something(self, now: _Score[T, D], change: Change, where: Sequence[int]) -> bool:
        trial = change.of(now.trial)
        pairs = ((self.play(self.recordings[at], trial), now.differences[at]) for at in where)
        return any(
            found is None or (found.step, found.simulated) != (before.step, before.simulated)
            for found, before in pairs
        )

    def _best(
        self, now: _Score[T, D], trials: Sequence[tuple[Change, ...]], where: Sequence[int]
    ) -> tuple[tuple[Change, ...], _Score[T, D]] | None:
        """The trial that gains the most; the first of several that gain alike."""
        gains = []
        for made in trials:
            trial = changed(now.trial, made)
            gain = sum(self._outcome(at, trial)[0] - now.agreeing[at] for at in where)
            gains.append((gain, made))
        best: tuple[tuple[Change, ...], _Score[T, D]] | None = None
        for gain, made in sorted(gains, key=lambda each: -each[0]):
            least = now.total if best is None else best[1].total
            if now.total + gain <= least and where == list(now.differences):
                break  # the others can only lose elsewhere
            if gain <= 0:
                break
            score = self._score(changed(now.trial, made))
            if score.total > least:
                best = (made, score)
        return best


def changed(trial: T, made: Sequence[Change]) -> T:
    """Rules with several fields changed."""
    for change in made:
        trial = change.of(trial)
    return trial


MOST: Final = 14
"""Workloads that differ, and as many that agree, on which rule fields are tried at a time."""

ROUNDS: Final = 4
"""So many samples are drawn of the workloads that still differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played(Generic[T]):
    """A workload with another version's results; `check` compares rules with them."""

    kind: str
    requests: int  # steps that are compared
    size: int  # about how long it takes to run
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


CONTRADICTIONS: Final = (
    *(CachesimError, ArithmeticError, LookupError, AssertionError, TypeError),
    *(AttributeError, ValueError, RecursionError),
)
"""Exceptions under rules that no server ever had together."""


def play_under(played: Played[T], rules: T) -> Difference | None:
    """Compare rules with a recording; contradictory rules agree with nothing."""
    try:
        return played.check(rules)
    except CONTRADICTIONS as error:
        return Difference(step=0, simulated=type(error).__name__)


def explain(
    version: str, release: str, known: Mapping[str, T], played: Sequence[Played[T]]
) -> tuple[Found, ...]:
    """Fit a release's rules to another version's results, and print the changed fields.

    Fields are tried on a sample of the workloads that differ and of those that agree, then compared
    on all; remaining differences are sampled again.
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
            values = tuple(change.value_in(rules) for change in step.changes)
            rules = changed(rules, step.changes)
            now = _agreeing(played, rules)
            found.append(Found(changes=step.changes, values=values, gained=now - before))
            before = now
        exhausted = not steps
        if exhausted:
            break
    out, requests = console(), sum(each.requests for each in played)
    if found:
        out.print(_table(found, version, release, known, requests - first))
    left = sum(play_under(each, rules) is not None for each in played)
    agree = f"{len(played) - left} of {counted(len(played), 'workload')} agree"
    if not found:
        out.print(f"no rule field, and no pair of them, explains it: {agree}")
    elif left and exhausted:
        out.print(f"with these values {agree}; no further field, and no pair, explains the rest")
    else:
        out.print(f"with these values {agree}")
    return tuple(found)


def judge_newest(
    family: Family[T, Any], version: str, release: str, status: int, played: Sequence[Played[T]]
) -> int:
    """Compare a version with a release; fit the rule fields if it differs."""
    console().print(f"{family.name} {version} is {'as' if status == 0 else 'NOT as'} {release}")
    if status and played:
        explain(version, release, {each.name: each.rules for each in family.releases}, played)
    return status


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
            part = share if last else "with the next"
            table.add_row(change.name, shown(value), shown(change.value), _span(holding), part)
    return table


def _span(names: Sequence[str]) -> str:
    if not names:
        return "no known release"
    return ", ".join(names) if len(names) < 4 else f"{names[0]} .. {names[-1]} ({len(names)})"
