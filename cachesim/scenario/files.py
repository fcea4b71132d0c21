"""Scenario files: TOML (or JSON) in, Scenarios out."""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from cachesim.errors import ScenarioError
from cachesim.scenario import limits
from cachesim.scenario.checks import capped, checked
from cachesim.scenario.format import Scenario
from cachesim.scenario.lines import line_of, lines_of
from cachesim.scenario.reading import Problem


def load(path: Path | str) -> Scenario:
    """The scenario in a file; every line of an error begins with the file's name."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # the latter: a name with a null character
        msg = f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ScenarioError(msg) from None
    return loads(data, name=str(path))


def load_stream(stream: IO[bytes], *, name: str = "standard input") -> Scenario:
    """The scenario that comes through a pipe."""
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
        raise ScenarioError(*_told(problems, text, name))
    return scenario


def _told(problems: Sequence[Problem], text: str, name: str) -> list[str]:
    lines = {} if is_json(text) else lines_of(text)
    placed = [(line_of(each.path, lines), str(each)) for each in problems]
    placed.sort(key=lambda each: each[0] or 0)
    told = capped([problem if line is None else f"{line}: {problem}" for line, problem in placed])
    return [f"{name}:{each}" if each[0].isdigit() else f"{name}: {each}" for each in told]


def is_json(text: str) -> bool:
    """Whether the text is meant to be JSON."""
    return text.lstrip().startswith("{")


def text_of(data: bytes) -> str:
    """The text of a file, as long as it may be."""
    if len(data) > limits.FILE_BYTES:
        msg = f"is larger than {limits.FILE_BYTES} bytes"
        raise ScenarioError(msg)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}"
        raise ScenarioError(msg) from None
    if not text.strip():
        msg = "is empty"
        raise ScenarioError(msg)
    return text


LINES: Final = (
    ". Its lines are objects, one each, and a scenario is one: `cachesim replay` plays traces, "
    "`cachesim why` reads recorded requests"
)


def _has_lines(text: str) -> bool:
    first, _, rest = text.strip().partition("\n")
    try:
        return bool(rest) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


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
        msg = f"is not {language}: {error}{LINES if _has_lines(text) else ''}"
    else:
        return content
    raise ScenarioError(msg)
