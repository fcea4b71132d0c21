"""Rows for a comparison, read from a file: a profile, its options, and a model of its own.

[[row]]
name = "full16+mamba16"
profile = "ENGINE@RELEASE"
model = {preset = "hybrid"}
options = {block_size = 16}
"""

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from cachesim.errors import ScenarioError
from cachesim.scenario.comparing import Row
from cachesim.scenario.format import Model
from cachesim.typed import Json

KEYS: Final = {"name", "profile", "model", "options"}
MODEL_KEYS: Final = {"preset", "window"}


def policies() -> tuple[Row, ...]:
    """The rows that come with cachesim."""
    text = files(__package__).joinpath("policies.toml").read_text(encoding="utf-8")
    return read(text, "policies.toml")


def rows_in(path: Path) -> tuple[Row, ...]:
    """The rows of a user's file."""
    try:
        return read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot read {path}: {error}"
        raise ScenarioError(msg) from error


def read(text: str, name: str) -> tuple[Row, ...]:
    """All rows, or what is wrong with each."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"{name}: {error}"
        raise ScenarioError(msg) from error
    given = content.get("row")
    if not isinstance(given, list) or not given or set(content) != {"row"}:
        msg = f"{name}: write one or more [[row]] with name and profile, and nothing else"
        raise ScenarioError(msg)
    problems = [
        f"{name}: row {number}: {problem}"
        for number, each in enumerate(given, 1)
        if (problem := _problem(each))
    ]
    if problems:
        raise ScenarioError(*problems)
    return tuple(_row(each) for each in given)


def _problem(given: Json) -> str:
    if not isinstance(given, dict):
        return "write a table"
    for key in ("name", "profile"):
        if not isinstance(given.get(key), str):
            return f"{key} is missing: write a text"
    unknown = set(given) - KEYS
    if unknown:
        return f"there is no {min(unknown)!r}; there are {', '.join(sorted(KEYS))}"
    model, options = given.get("model", {}), given.get("options", {})
    if not isinstance(options, dict):
        return "options is no table: write {flag = value}"
    known = isinstance(model, dict) and not set(model) - MODEL_KEYS
    return "" if known else "model takes preset and window: write {preset = 'hybrid'}"


def _row(given: dict[str, Any]) -> Row:
    model = Model(**given["model"]) if "model" in given else None
    return Row(
        name=given["name"],
        profile=given["profile"],
        options=given.get("options", {}),
        model=model,
    )
