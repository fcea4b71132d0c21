"""The rule fields that a search may change, one at a time, and the values each may take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import reduce
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from cachesim.typed import Value

T = TypeVar("T")
"""A value of rules, in parts."""


@dataclass(frozen=True, slots=True)
class Change:
    """One rule field set to one value."""

    part: str  # names of the parts that lead to it: "scheduler", "rules.reuse"
    field: str
    value: Value

    def of(self, rules: T) -> T:
        """The rules with this field changed."""
        return cast("T", _set(rules, (*self._parts, self.field), self.value))

    def holds(self, rules: object) -> bool:
        """True where the rules have this value already."""
        return bool(self.value_in(rules) == self.value)

    def value_in(self, rules: object) -> Value:
        """The value that rules have in this field."""
        return value_of(rules, self.part, self.field)

    @property
    def _parts(self) -> tuple[str, ...]:
        return tuple(filter(None, self.part.split(".")))

    @property
    def name(self) -> str:
        """The field as reports name it."""
        return ".".join(filter(None, (self.part.removeprefix("rules."), self.field)))

    def __str__(self) -> str:
        return f"{self.name} = {shown(self.value)}"


def shown(value: Value) -> str:
    """A value as a table shows it; a set has an order then."""
    if isinstance(value, frozenset):
        return " ".join(sorted(value))
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def value_of(rules: object, part: str, field: str) -> Value:
    """What rules have in one field."""
    return reduce(getattr, filter(None, (*part.split("."), field)), rules)


def changes(known: Sequence[object]) -> tuple[Change, ...]:
    """Every field with every value: all of a choice, both of a switch, else those known so far."""
    found = []
    owner: Any = type(known[0])
    for part, field, kind in rule_fields(owner):
        values = list(_values(kind))
        for value in (value_of(rules, part, field) for rules in known):
            if value not in values:
                values.append(value)
        found += [Change(part, field, value) for value in values]
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
