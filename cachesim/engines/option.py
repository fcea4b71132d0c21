"""An option of a server: upstream's flag, its values, and the releases that have it.

An engine's options are the fields of a dataclass, made by `option`: the default is the field's,
everything else its metadata.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import isfinite
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from cachesim.errors import OptionError
from cachesim.typed import Value

Kind: TypeAlias = Literal[
    "yes or no", "whole number", "number", "choice", "text", "texts", "size", "any"
]

UNITS: Final[Mapping[str, int]] = {"": 1, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}
"""Suffixes of a size in bytes: powers of ten."""

MOST_BYTES: Final = 1 << 62

MOST: Final = 1 << 24
"""Upper bound of options with a unit, above every realistic value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A flag of a server, or a field of its requests."""

    name: str
    flag: str = ""  # as upstream spells it
    until_then: tuple[str, str] = ("", "")  # the last release with another spelling, and it
    spelled: Mapping[Any, str] = field(default_factory=dict)  # value -> its words, with {flag}
    switches_off: bool = True  # yes or no: has a `--no-...` form
    about: str = ""
    kind: Kind
    default: Any = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    since: str = ""  # the first release that has it; the first of all if empty
    until: str = ""  # the last release that has it; the newest if empty
    patch: str = ""  # the patch that adds it
    needs: str = ""  # the option without which it has no effect
    later: Mapping[str, Any] = field(default_factory=dict)  # release -> its default from there on
    arrived: Mapping[str, str] = field(default_factory=dict)  # choice -> its first release
    # choice -> an option beside which it has an earlier first release, and that release
    beside: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tried: tuple[Any, ...] = ()  # values that a search tries, the default first
    rare: bool = False  # searches try it in late corners alone
    internal: bool = False  # set by programs, never by users
    may_be_silent: bool = False  # None means "not given"

    @property
    def shape(self) -> str:
        """The accepted values, in words."""
        if self.kind == "yes or no":
            return "true or false"
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind == "size":
            return "a number of bytes, or a text such as '8GB' (M, MB, G, GB: powers of ten)"
        if self.kind == "texts":
            return "a text or a list of texts"
        if self.kind in {"whole number", "number"}:
            what = f"a {self.kind}{self._bounds()}"
            return f"{what} ({self.unit})" if self.unit else what
        return "a text"

    def _bounds(self) -> str:
        if self.low is None:
            return "" if self.high is None else f" up to {self.high:,}".replace(",", "")
        return f" from {self.low} on" if self.high is None else f" from {self.low} to {self.high}"

    def read(self, value: object, what: str = "option") -> Value:
        """Check a value; OptionError names the accepted ones."""
        if value is None and self.may_be_silent:
            return None
        if self.kind == "size":
            value = bytes_of_text(value)
        if self.kind == "texts" and isinstance(value, str):
            value = (value,)
        if not self._accepts(value):
            raise OptionError(f"{what} {self.name!r} is {_short(value)}; write {self.shape}")
        return value

    def _accepts(self, value: object) -> bool:
        if self.kind == "any":
            return True
        if self.kind == "yes or no":
            return isinstance(value, bool)
        if self.kind == "texts":
            return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
        if self.kind in {"choice", "text"}:
            return isinstance(value, str) and (self.kind == "text" or value in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (self.kind == "number" or isinstance(value, int)) and self._holds(value)

    def _holds(self, value: float) -> bool:
        low = value if self.low is None else self.low
        high = value if self.high is None else self.high
        return isfinite(value) and low <= value <= high


def bytes_of_text(value: object) -> object:
    """`8GB` as 8000000000; other values unchanged."""
    if not isinstance(value, str) or len(value) > 40:
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in UNITS:
        return value
    return int(float(match[1]) * UNITS[match[2].upper()])


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write an integer of thousands of digits
        return "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."


def option(flag: str = "", about: str = "", *, default: object, **given: Any) -> Value:
    """A field of an engine's options, with its `Option` as metadata."""
    kind = given.pop("kind", None) or _kind_of(default, given.get("choices", ()))
    whole = Option(name="", default=default, flag=flag, about=about, kind=kind, **_bounded(given))
    return field(default=default, metadata={Option: whole})


def request_field(name: str, kind: Kind, about: str = "", **given: Any) -> Option:
    """A request field without a flag of the server."""
    return Option(name=name, kind=kind, about=about, **_bounded(given))


def _bounded(given: dict[str, Any]) -> dict[str, Any]:
    return {"low": 0, "high": MOST} | given if given.get("unit") else given


def like(options: type, name: str, **changed: Any) -> Value:
    """A field of another engine's options, with changes."""
    declared = {field.name: field.metadata[Option] for field in fields(options)}
    whole = replace(declared[name], **changed)
    return field(default=whole.default, metadata={Option: whole})


def _kind_of(default: object, choices: tuple[str, ...]) -> Kind:
    if isinstance(default, bool):
        return "yes or no"
    if isinstance(default, int):
        return "whole number"
    if isinstance(default, float):
        return "number"
    return "choice" if choices else "text"


@cache
def options_of(options: type) -> tuple[Option, ...]:
    """The options that a dataclass declares, in its order."""
    return tuple(
        replace(field.metadata[Option], name=field.name)
        for field in fields(options)
        if Option in field.metadata
    )


@cache
def options_by_name(options: type) -> Mapping[str, Option]:
    """The options by their names."""
    return MappingProxyType({option.name: option for option in options_of(options)})


def listed(text: str) -> tuple[str, ...]:
    """The names in an option's comma-separated value."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
