"""A message of a log: a literal word that its line must contain, then its numbers."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Fields: TypeAlias = Mapping[str, str]
"""The numbers of a message, by name, as they are printed."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A message: its name, the literal words of its lines, and its numbers."""

    name: str
    words: str
    shape: re.Pattern[str]


def pattern(name: str, words: str, shape: str) -> Pattern:
    """A message whose shape takes a bounded time on any line."""
    return Pattern(name, words, re.compile(bounded(shape)))


def bounded(shape: str) -> str:
    """The shape with bounds for numbers and words: a search begins at each character of a line."""
    bounds = {r"\d+": r"\d{1,18}", r"\w+": r"\w{1,80}", r"\S*": r"\S{0,300}", r"\S+": r"\S{1,300}"}
    for free, bound in bounds.items():
        shape = shape.replace(free, bound)
    return shape


DIGITS, WIDEST = 12, 200
"""Most digits of a number, and most characters of a field."""


def _is_sane(field: str | None) -> bool:
    if field is None:
        return True
    is_number = field[:1].isdecimal() and field[-1:].isdecimal() and "-" not in field
    return len(field) <= (DIGITS + 8 if is_number else WIDEST)


def first(patterns: Iterable[Pattern], body: str) -> tuple[str, Fields] | None:
    """The first message that a line has, with its numbers."""
    for pattern in patterns:
        if pattern.words in body:
            found = pattern.shape.search(body)
            if found is not None and all(map(_is_sane, found.groups())):
                return pattern.name, {k: v for k, v in found.groupdict().items() if v is not None}
    return None
