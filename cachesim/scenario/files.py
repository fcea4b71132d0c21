"""Scenario files: TOML (or JSON) in, Scenarios out."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from cachesim.errors import ScenarioError
from cachesim.scenario import limits
from cachesim.scenario.checks import scenario_of
from cachesim.scenario.format import Scenario

STDIN: Final = "-"


def load(path: Path) -> Scenario:
    """The scenario in a file; every line of an error begins with the file's name."""
    try:
        with path.open("rb") as file:
            data = file.read(limits.FILE_BYTES + 1)
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror or error}"
        raise ScenarioError(msg) from None
    return loads(data, name=str(path))


def load_stream(stream: IO[bytes], *, name: str = "standard input") -> Scenario:
    """The scenario that comes through a pipe."""
    return loads(stream.read(limits.FILE_BYTES + 1), name=name)


def loads(data: bytes, *, name: str) -> Scenario:
    """The scenario in the bytes of a file."""
    try:
        return scenario_of(content_of(data))
    except ScenarioError as error:
        lines = (f"{name}: {problem}" for problem in error.problems)
        raise ScenarioError(*lines) from None


def content_of(data: bytes) -> Mapping[str, Any]:
    """The tables of a TOML or JSON text."""
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
    if text.lstrip().startswith("{"):
        return _parsed(json.loads, text, "JSON")
    return _parsed(tomllib.loads, text, "TOML")


def _parsed(parse: Any, text: str, language: str) -> Mapping[str, Any]:  # noqa: ANN401 - a parser
    try:
        content = parse(text)
    except RecursionError:
        msg = f"is nested too deeply for {language}"
    except ValueError as error:  # what both parsers raise, and Python for endless digits
        msg = f"is not {language}: {error}"
    else:
        return content  # type: ignore[no-any-return]
    raise ScenarioError(msg)
