"""Readers of a scenario file's values: parsing, refusal with a reason, JSON Schema.

Every field of the format carries one of these in its annotation. The same object reads the value
and writes the field's part of the JSON Schema, so the two cannot drift apart.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import Repr
from typing import Any, Final, Protocol, TypeAlias

from cachesim.engines.family import did_you_mean
from cachesim.scenario import limits
from cachesim.typed import Value

Place: TypeAlias = tuple[str | int, ...]
"""The path from a value to a part of it."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlist = _SHORT.maxtuple = 4
_SHORT.maxdict, _SHORT.maxlong, _SHORT.maxlevel = 3, 24, 2


class Wrong(ValueError):  # noqa: N818 - reads as the sentence it begins
    """A value that its place does not accept.

    A table or list may have several: `parts` has the place of each, and the reason.
    """

    def __init__(self, text: str, parts: Sequence[tuple[Place, str]] = ()) -> None:
        super().__init__(text)
        self.parts = tuple(parts) or (((), text),)


def short(value: object) -> str:
    """A value in an error message, shortened to a line."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python refuses to write an integer of thousands of digits
        return "a huge number"


def kind_of(value: object) -> str:
    """TOML's name for the type of a value."""
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a string"}
    names |= {list: "an array", tuple: "an array", dict: "a table", type(None): "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")


def found(value: object) -> str:
    """The end of an error message: the value and its type."""
    return f"found {kind_of(value)}: {short(value)}"


class Reader(Protocol):
    """A parser of one value with its schema."""

    def read(self, value: object) -> Value:
        """The parsed value; raises Wrong."""
        ...

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the accepted values."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer between two bounds, both included."""

    low: int
    high: int

    def read(self, value: object) -> int:
        """The integer; a boolean or a float is none."""
        if type(value) is not int:
            raise Wrong(f"must be an integer, {found(value)}")
        if not self.low <= value <= self.high:
            wanted = f"lie between {self.low} and {self.high}"
            msg = f"must {wanted if self.low < self.high else f'be {self.low}'}, {found(value)}"
            raise Wrong(msg)
        return value

    def schema(self) -> dict[str, Any]:
        """An integer with its bounds."""
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number between two bounds."""

    low: float
    high: float

    def read(self, value: object) -> float:
        """The number; `nan` and `inf` are outside every bound."""
        if type(value) not in {int, float}:
            raise Wrong(f"must be a number, {found(value)}")
        if not self.low <= value <= self.high:  # type: ignore[operator]
            raise Wrong(f"must lie between {self.low} and {self.high}, {found(value)}")
        return float(value)  # type: ignore[arg-type]

    def schema(self) -> dict[str, Any]:
        """A number with its bounds."""
        return {"type": "number", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class YesNo:
    """A boolean."""

    def read(self, value: object) -> bool:
        if type(value) is not bool:
            raise Wrong(f"must be true or false, {found(value)}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Text:
    """A string of limited length, optionally of a shape."""

    longest: int = limits.TEXT
    shape: str = ""
    like: str = ""

    def read(self, value: object) -> str:
        if type(value) is not str:
            raise Wrong(f"must be a string, {found(value)}")
        if len(value) > self.longest:
            raise Wrong(f"must have at most {self.longest} characters, found {len(value)}")
        if self.shape and not re.fullmatch(self.shape, value):
            raise Wrong(f"must be {self.like}, {found(value)}")
        return value

    def schema(self) -> dict[str, Any]:
        """A string with its length and shape."""
        shape = {"pattern": f"^{self.shape}$"} if self.shape else {}
        return {"type": "string", "maxLength": self.longest} | shape


@dataclass(frozen=True, slots=True)
class OneOf:
    """A word of an enumeration."""

    words: tuple[str, ...]

    def read(self, value: object) -> str:
        if type(value) is not str:
            raise Wrong(f"must be one of {', '.join(self.words)}, {found(value)}")
        if value not in self.words:
            msg = f"must be one of {', '.join(self.words)}, {found(value)}"
            raise Wrong(msg + nearest(value, self.words))
        return value

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Ids:
    """A list of token ids."""

    longest: int = limits.PROMPT_TOKENS

    def read(self, value: object) -> tuple[int, ...]:
        """The ids; the vocabulary is checked once the model is known."""
        if not isinstance(value, list | tuple):
            raise Wrong(f"must be a list of token ids, {found(value)}")
        if len(value) > self.longest:
            raise Wrong(f"must hold at most {self.longest} tokens, found {len(value)}")
        for index, token in enumerate(value):
            if type(token) is not int or token < 0:
                msg = f"must be a token id, {found(token)}"
                raise Wrong(msg, [((index,), msg)])
        return tuple(value)

    def schema(self) -> dict[str, Any]:
        """A list of integers."""
        items = {"type": "integer", "minimum": 0}
        return {"type": "array", "items": items, "maxItems": self.longest}


@dataclass(frozen=True, slots=True)
class Either:
    """The first reader that accepts the value's type."""

    readers: tuple[tuple[type | tuple[type, ...], Reader], ...]
    expected: str

    def read(self, value: object) -> Value:
        for kinds, reader in self.readers:
            if type(value) in (kinds if isinstance(kinds, tuple) else (kinds,)):
                return reader.read(value)
        raise Wrong(f"must be {self.expected}, {found(value)}")

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [reader.schema() for _, reader in self.readers]}


def _each_read(parts: Iterable[tuple[Any, object]], reader: Reader) -> dict[Any, Any]:
    read, wrongs = {}, []
    for key, value in parts:
        try:
            read[key] = reader.read(value)
        except Wrong as wrong:
            wrongs += [((key, *place), text) for place, text in wrong.parts]
    if wrongs:
        msg = "; ".join(f"at {place}: {text}" for place, text in wrongs[:3])
        raise Wrong(msg, wrongs)
    return read


@dataclass(frozen=True, slots=True)
class Each:
    """A list with items of one kind."""

    item: Reader
    longest: int

    def read(self, value: object) -> tuple[Any, ...]:
        """The items; an error names the first wrong one's place."""
        if not isinstance(value, list | tuple):
            raise Wrong(f"must be a list, {found(value)}{self._as_one(value)}")
        if len(value) > self.longest:
            raise Wrong(f"must hold at most {self.longest} items, found {len(value)}")
        return tuple(_each_read(enumerate(value), self.item).values())

    def _as_one(self, value: object) -> str:
        """The list of a single item, for an item that was written without brackets."""
        try:
            self.item.read(value)
        except Wrong:
            return ""
        return f"; write [{short(value)}]"

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(), "maxItems": self.longest}


WORD: Final = r"[A-Za-z_][A-Za-z0-9_-]*"


def named(value: object, longest: int, shape: str = WORD) -> Mapping[str, Any]:
    """A table with names of this shape; its values are not read."""
    if not isinstance(value, Mapping):
        raise Wrong(f"must be a table, {found(value)}")
    if len(value) > longest:
        raise Wrong(f"must hold at most {longest} names, found {len(value)}")
    for name in value:
        if not isinstance(name, str) or not re.fullmatch(shape, name):
            raise Wrong(f"has a name that cannot be one: {short(name)}")
    return value


@dataclass(frozen=True, slots=True)
class Table:
    """A table from names to values of one kind."""

    value: Reader
    longest: int
    shape: str = WORD

    def read(self, value: object) -> Mapping[str, Any]:
        """The table, in the order of the file."""
        return _each_read(named(value, self.longest, self.shape).items(), self.value)

    def schema(self) -> dict[str, Any]:
        """An object with values of one kind."""
        return {
            "type": "object",
            "additionalProperties": self.value.schema(),
            "propertyNames": {"pattern": f"^{self.shape}$"},
            "maxProperties": self.longest,
        }


def nearest(name: object, names: Sequence[str]) -> str:
    """`; did you mean 'x'?` for a similar name, else empty."""
    close = did_you_mean(str(name), names, alike=0.5)
    return close and f"; {close}"
