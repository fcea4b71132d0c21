"""Scenario files: TOML (or JSON) in, Scenarios out."""

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import IO, Any, Final

from cachesim.errors import ScenarioError
from cachesim.scenario import limits
from cachesim.scenario.checks import capped, checked
from cachesim.scenario.format import Scenario, key_of
from cachesim.scenario.readers import Place
from cachesim.typed import Json


def load(path: Path | str) -> Scenario:
    """The scenario of a file; every line of an error begins with the file's name.

    >>> from cachesim import load
    >>> scenario = load("scenarios/llama.cpp/llama.cpp-two-codes.toml")
    >>> [step.name for step in scenario.step]
    ['rules', 'a-asks', 'b-reads', 'b-asks']
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # the latter: a name with a null character
        msg = f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ScenarioError(msg) from None
    return loads(data, name=str(path))


def load_stream(stream: IO[bytes], *, name: str = "standard input") -> Scenario:
    """The scenario of a stream."""
    return loads(stream.read(limits.FILE_BYTES + 1), name=name)


def loads(data: bytes, *, name: str) -> Scenario:
    """The scenario in the bytes of a file."""
    try:
        text = text_of(data)
        scenario, problems = checked(content_of(text))
    except ScenarioError as error:
        lines = (f"{name}: {problem}" for problem in error.problems)
        raise ScenarioError(*lines) from None
    if problems or scenario is None:
        starts = {} if is_json(text) else lines_of(text)
        placed = [(line_of(problem.path, starts), str(problem)) for problem in problems]
        placed.sort(key=lambda problem: problem[0] or 0)
        said = [problem if line is None else f"{line}: {problem}" for line, problem in placed]
        places = (
            f"{name}:{problem}" if problem[0].isdigit() else f"{name}: {problem}"
            for problem in capped(said)
        )
        raise ScenarioError(*places)
    return scenario


def is_json(text: str) -> bool:
    """True if the text begins like JSON."""
    return text.lstrip().startswith("{")


def text_of(data: bytes) -> str:
    """The text of a file, up to the size limit."""
    if len(data) > limits.FILE_BYTES:
        raise ScenarioError(f"is larger than {limits.FILE_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}"
        raise ScenarioError(msg) from None
    if not text.strip():
        raise ScenarioError("is empty")
    return text


LINES: Final = (
    ". Its lines are objects, one each, and a scenario is one: `cachesim compare` replays traces, "
    "`cachesim why` reads recorded requests"
)


def _has_lines(text: str) -> bool:
    first, _, rest = text.strip().partition("\n")
    try:
        return bool(rest) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


LOG: Final = re.compile(r"\bslot +\w+: +id |prompt eval time =|Prompt processing progress: ")
"""Words of a server's log, which is no scenario."""

TWICE: Final = re.compile(r"overwrite a value|twice|already")
"""Words of Python's errors about a key or a table that is there."""


def _hint(text: str, error: str) -> str:
    """The likely intention of a text that cannot be parsed."""
    if _has_lines(text):
        return LINES
    if LOG.search(text):
        return ". A server's log is explained by `cachesim why`"
    if TWICE.search(error):
        return ". A key is written once; the header of a repeated table is [[step]], not [step]"
    return ""


def content_of(text: str) -> Mapping[str, Any]:
    """The tables of a TOML or JSON text."""
    if is_json(text):
        return _parsed(json.loads, text, "JSON")
    return _parsed(tomllib.loads, text, "TOML")


def _parsed(
    parse: Callable[[str], Mapping[str, Any]], text: str, language: str
) -> Mapping[str, Any]:
    try:
        content = parse(text)
    except RecursionError:
        msg = f"is nested too deeply for {language}"
    except ValueError as error:  # what both parsers raise, and Python for endless digits
        msg = f"is not {language}: {error}{_hint(text, str(error))}"
    else:
        return content
    raise ScenarioError(msg)


_PART: Final = r"""(?:"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
_KEY: Final = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
HEADER: Final = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]\]?")
ASSIGNED: Final = re.compile(rf"[ \t]*({_KEY})[ \t]*=")
PIECE: Final = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|[\[\]{}\n]''',
    re.DOTALL,
)
"""Tokens that end a value or quote its end."""


def lines_of(text: str) -> Mapping[Place, int]:
    """The line of every table and key, counted from 1."""
    starts = [0, *(match.end() for match in re.finditer(r"\n", text))]
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    at = 0
    while at < len(text):
        line = bisect_right(starts, at)
        header, assigned = HEADER.match(text, at), ASSIGNED.match(text, at)
        if header:
            table = _table(parts_of(header[2]), counts, is_list=header[1] == "[[")
            lines.setdefault(table, line)
            at = header.end()
        elif assigned:
            path = (*table, *parts_of(assigned[1]))
            for end in range(len(table) + 1, len(path) + 1):
                lines.setdefault(path[:end], line)
            at = assigned.end()
        at = _end_of_value(text, at)
    return lines


def _table(parts: Place, counts: dict[Place, int], *, is_list: bool) -> Place:
    """The table of a header; a list's name refers to its last table."""
    path: Place = ()
    for index, part in enumerate(parts):
        path = (*path, part)
        if is_list and index == len(parts) - 1:
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = (*path, counts[path] - 1)
    return path


def _end_of_value(text: str, at: int) -> int:
    depth = 0
    for piece in PIECE.finditer(text, at):
        if piece[0] in "[{":
            depth += 1
        elif piece[0] in "]}":
            depth -= 1
        elif piece[0] == "\n" and depth <= 0:
            return piece.end()
    return len(text)


def parts_of(key: str) -> Place:
    """The names of a dotted key, without their quotes."""
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))


def line_of(path: Place, lines: Mapping[Place, int]) -> int | None:
    """The line of a value, or of its enclosing table."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


# A scenario as the text of a TOML file, so that what a search found can be run again.

TABLES: Final = ("source", "shows", "model", "models", "engine", "chat", "spans")
LISTS: Final = ("step", "expect")


def to_toml(scenario: Scenario) -> str:
    """The file's text, without default values."""
    lines = [
        f"{key} = {toml_of(value)}"
        for key, value in _set_fields(scenario)
        if key not in TABLES and key not in LISTS
    ]
    for name in TABLES:
        lines += _text_of(name, getattr(scenario, name))
    for name in LISTS:
        for item in getattr(scenario, name):
            lines += [
                "",
                f"[[{name}]]",
                *[f"{key} = {toml_of(value)}" for key, value in _set_fields(item)],
            ]
    return "\n".join(lines) + "\n"


def _text_of(name: str, table: Json) -> list[str]:
    inner = dict(_set_fields(table)) if is_dataclass(table) else dict(table)
    nested = {key: value for key, value in inner.items() if isinstance(value, Mapping)}
    own = [f"{_key(key)} = {toml_of(value)}" for key, value in inner.items() if key not in nested]
    lines = ["", f"[{name}]", *own] if own else []
    for key, value in nested.items():
        lines += _text_of(f"{name}.{key}", value)
    return lines


def _set_fields(item: Json) -> Iterator[tuple[str, Json]]:
    """The fields that differ from their defaults, under their keys in the file."""
    for field in fields(item):
        value = getattr(item, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if value is not None and (value != default or field.name == "format"):
            yield key_of(type(item), field.name), value


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)


def toml_of(value: Json) -> str:
    """A value as the file holds it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            inside = ", ".join(f"{_key(key)} = {toml_of(item)}" for key, item in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case _ if is_dataclass(value):
            inside = ", ".join(f"{key} = {toml_of(item)}" for key, item in _set_fields(value))
            return f"{{ {inside} }}"
        case _:
            return f"[{', '.join(toml_of(item) for item in value)}]"
