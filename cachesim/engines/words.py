"""Formatting of values in the sentences of events and causes."""

import re
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any, Final

MOST: Final = 3
"""Maximum items that are listed; the rest is counted."""

MIB: Final = 1 << 20
"""Bytes of a MiB."""

_NAME: Final = re.compile(r"[a-z_]+")
_ONE: Final = re.compile(
    r"(?<![\d.])(of at least )?1 (of its tokens|tokens)(?: (match|are|were|have))?\b"
)
_VERBS: Final = {"match": "matches", "are": "is", "were": "was", "have": "has"}


def filled(template: str, values: Mapping[str, Any]) -> str:
    """A template with each `{name}` replaced by its value in words."""
    return of_one(template.format_map({name: in_words(value) for name, value in values.items()}))


def of_one(text: str) -> str:
    """The text with one token in the singular: "1 token matches"."""

    def singular(found: re.Match[str]) -> str:
        inside, noun, verb = found.groups()
        one = f"{inside or ''}1 {'token' if noun == 'tokens' else noun}"
        if verb is None:
            return one
        return f"{one} {verb if inside else _VERBS[verb]}"  # chunks of at least 1 token were moved

    return _ONE.sub(singular, text)


def counted(number: int, noun: str) -> str:
    """A number and its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def numbered(noun: str, numbers: Sequence[int], most: int = MOST + 1) -> str:
    """Some things by their numbers, the first ones if they are many."""
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    plural = "" if len(numbers) == 1 else "s"
    return f"{noun}{plural} {', '.join(map(str, numbers[:most]))}{more}"


def names_in(template: str) -> frozenset[str]:
    """The names of a template's placeholders."""
    return frozenset(name for _, name, _, _ in Formatter().parse(template) if name)


def in_numbers(rule: str, values: Mapping[str, int]) -> str:
    """A rule with its names replaced by numbers: `pos_max > pos_next` is `0 > 0`."""
    return _NAME.sub(lambda name: str(values.get(name[0], name[0])), rule)


def in_words(value: object) -> str:
    """A value as text, without quotes and braces."""
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        rest = dict(value)
        if {"pos_min", "pos_max"} <= rest.keys():
            low, high = rest.pop("pos_min"), rest.pop("pos_max")
            shown = f"{rest.pop('n_tokens', '')}[{low}..{high}]"
            return f"{shown} refused: {rest['numbers']}" if rest.get("numbers") else shown
        return ", ".join(f"{name} {in_words(value)}" for name, value in rest.items())
    if isinstance(value, list | tuple):
        named = "; ".join(map(in_words, value[:MOST])) or "none"
        return named if len(value) <= MOST else f"{named}; and {len(value) - MOST} more"
    return str(value)


def mib(size: int) -> str:
    """Bytes in MiB, with one decimal."""
    return f"{size / MIB:,.1f}"


def table_of(model: str) -> str:
    """A model as the table of a scenario that describes it."""
    return f"[models.{model}]" if model else "[model]"
