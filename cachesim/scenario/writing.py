"""A scenario as the text of a TOML file, so that what a search found can be played again."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Final

from cachesim.scenario.format import Scenario, key_of
from cachesim.typed import Json

TABLES: Final = ("source", "shows", "model", "engine", "chat", "spans")
LISTS: Final = ("step", "expect")


def to_toml(scenario: Scenario) -> str:
    """The file's text; what has its default value is left out."""
    lines = [
        f"{key} = {_value(value)}"
        for key, value in _set_fields(scenario)
        if key not in TABLES and key not in LISTS
    ]
    for name in TABLES:
        lines += _table(name, getattr(scenario, name))
    for name in LISTS:
        for each in getattr(scenario, name):
            lines += ["", f"[[{name}]]", *_lines(each)]
    return "\n".join(lines) + "\n"


def _table(name: str, table: Json) -> list[str]:
    inner = dict(_set_fields(table)) if is_dataclass(table) else dict(table)
    nested = {key: value for key, value in inner.items() if isinstance(value, Mapping)}
    own = [f"{_key(key)} = {_value(value)}" for key, value in inner.items() if key not in nested]
    lines = ["", f"[{name}]", *own] if own else []
    for key, value in nested.items():
        lines += _table(f"{name}.{key}", value)
    return lines


def _lines(item: object) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in _set_fields(item)]


def _set_fields(item: Json) -> Iterator[tuple[str, Json]]:
    """The fields that differ from their defaults, under their keys in the file."""
    for each in fields(item):
        value = getattr(item, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if value is not None and (value != default or each.name == "format"):
            yield key_of(type(item), each.name), value


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else json.dumps(name)


def _value(value: Json) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            inside = ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case _ if is_dataclass(value):
            inside = ", ".join(f"{key} = {_value(each)}" for key, each in _set_fields(value))
            return f"{{ {inside} }}"
        case _:
            return f"[{', '.join(_value(each) for each in value)}]"
