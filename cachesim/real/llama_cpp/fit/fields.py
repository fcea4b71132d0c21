"""The rule fields that a search may change, one at a time, and the values each may take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Literal, get_args, get_origin, get_type_hints

from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.real.llama_cpp.trial import Defaults, Trial
from cachesim.typed import Value


@dataclass(frozen=True, slots=True)
class Change:
    """One rule field, or one default, set to one value."""

    part: str  # "reuse", "memory", ..., "defaults"
    field: str
    value: Value

    def of(self, trial: Trial) -> Trial:
        """The trial with this field changed."""
        if self.part == "defaults":
            return replace(trial, defaults=replace(trial.defaults, **{self.field: self.value}))
        part = replace(getattr(trial.rules, self.part), **{self.field: self.value})
        return replace(trial, rules=replace(trial.rules, **{self.part: part}))

    def holds(self, trial: Trial) -> bool:
        """True where the trial says so already."""
        return bool(value_of(trial, self.part, self.field) == self.value)

    def __str__(self) -> str:
        return f"{self.part}.{self.field} = {shown(self.value)}"


def shown(value: Value) -> str:
    """A value as a table shows it; a set has an order then."""
    return " ".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def value_of(trial: Trial, part: str, field: str) -> Value:
    """What a trial says in one field."""
    owner = trial.defaults if part == "defaults" else getattr(trial.rules, part)
    return getattr(owner, field)


def changes(known: Sequence[Trial]) -> tuple[Change, ...]:
    """Every field with every value: all of a choice, both of a switch, else those known so far."""
    found = []
    for part, field, kind in rule_fields():
        values = list(_values(kind))
        for value in (value_of(trial, part, field) for trial in known):
            if value not in values:
                values.append(value)
        found += [Change(part, field, value) for value in values]
    return tuple(found)


def rule_fields() -> Iterator[tuple[str, str, Value]]:
    """Part, name and type of every field, in the order in which the rules list them."""
    for part, kind in (*get_type_hints(ServerRules).items(), ("defaults", Defaults)):
        if not is_dataclass(kind):
            continue
        hints = get_type_hints(kind)
        yield from (
            (part, each.name, hints[each.name])
            for each in fields(kind)
            if hints[each.name] is not str  # a name is no rule
        )


def _values(kind: Value) -> tuple[Value, ...]:
    if kind is bool:
        return (False, True)
    origin: object = get_origin(kind)
    return get_args(kind) if origin is Literal else ()
