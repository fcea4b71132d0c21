"""The JSON Schemas: of the scenario file, written from its fields, and of the output."""

from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from cachesim.engines.causes import Loss
from cachesim.engines.events import Event, Tone
from cachesim.engines.facts import causes_of, events_of, shipped
from cachesim.play.result import Run
from cachesim.scenario.format import LONGEST, Scenario, key_of

Schema: TypeAlias = dict[str, Any]

Annotation: TypeAlias = Any
"""A type as an annotation writes it."""

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "Scenario": ("format", "name", "model", "engine", "step"),
    "Server": ("name",),
    "Turn": ("role", "content"),
}
"""Required keys of a file."""


def scenario_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file, for editors and checkers."""
    schema = _table(Scenario)
    return {"$schema": DIALECT, "title": "cachesim scenario, format 1"} | schema


def _table(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    required = REQUIRED.get(cls.__name__, ())
    return {
        "type": "object",
        "description": (cls.__doc__ or "").split("\n")[0],
        "properties": {key_of(cls, each.name): _field(each, hints) for each in fields(cls)},
        "additionalProperties": False,
    } | ({"required": list(required)} if required else {})


def _field(each: "Field[Any]", hints: Mapping[str, Any]) -> dict[str, Any]:
    kind, *notes = get_args(hints[each.name])
    about = next(note for note in notes if isinstance(note, str))
    reader = next((note for note in notes if hasattr(note, "schema")), None)
    schema = reader.schema() if reader is not None else _nested(kind)
    default = each.default
    if isinstance(default, str | int) and default != "" and each.name != "format":
        schema = schema | {"default": default}
    return {**schema, "description": about}


def _nested(kind: type) -> dict[str, Any]:
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return {"type": "array", "items": _table(inner), "maxItems": LONGEST[inner]}
    return _table(kind)


def output_schema() -> dict[str, Any]:
    """The JSON Schema of what `cachesim run --format json` prints."""
    top = _closed(
        "Every run, in the order asked for.",
        {"format": {"const": 1}, "runs": {"type": "array", "items": _value(Run)}},
    )
    return {"$schema": DIALECT, "title": "cachesim output, format 1"} | top


def _closed(about: str, properties: dict[str, Any], optional: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


def _value(kind: Annotation) -> Schema:
    """The schema of a type, as `as_json` writes its values."""
    if is_dataclass(kind):
        return SPECIAL.get(kind, partial(_dataclass, kind))()
    origin: object = get_origin(kind)
    inside = get_args(kind)
    if origin is None:
        return _plain(kind)
    if origin is Annotated:
        return _value(inside[0]) | {"description": inside[1]}
    if origin in {UnionType, Union}:
        return _or_null(_value(next(each for each in inside if each is not type(None))))
    return _container(origin, inside)


def _container(origin: object, inside: tuple[Any, ...]) -> Schema:
    if origin is Literal:
        return {"enum": list(inside)}
    if origin is tuple:
        return {"type": "array", "items": _value(inside[0])}
    return {"type": "object"}


def _plain(kind: type) -> Schema:
    """A name for a plain type (`Count`, `Pos`) stands for what it is made of."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": next(word for each, word in names.items() if issubclass(kind, each))}


def _or_null(schema: Schema) -> Schema:
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}


def _dataclass(kind: Annotation) -> Schema:
    hints = get_type_hints(kind, include_extras=True)
    properties = {each.name: _value(hints[each.name]) for each in fields(kind)}
    optional = ("detail",) if "detail" in properties else ()
    return _closed((kind.__doc__ or "").split("\n")[0], properties, optional)


def _event() -> Schema:
    known = sorted({each.name() for engine in shipped() for each in events_of(engine)})
    properties: dict[str, Any] = {
        "event": {"type": "string", "examples": known},
        "slot": {"type": "integer", "description": "The slot, or -1."},
        "task": {"type": "integer", "description": "The task, or -1."},
        "tone": {"enum": list(get_args(Tone)), "description": "What it means for the tokens."},
        "sentence": {"type": "string", "description": "What happened, in words."},
    }
    return _closed("One thing that happened, with fields of its own.", properties)


def _loss() -> Schema:
    """An entry of `why`: its cause is one of those that any engine declares."""
    known = sorted({each.id for engine in shipped() for each in causes_of(engine)})
    properties: dict[str, Any] = {
        "rule": {"type": "string", "examples": known, "description": "The cause."},
        "from": {"type": "integer", "description": "Usable tokens before."},
        "to": {"type": "integer", "description": "Usable tokens after."},
        "detail": {"type": "object", "description": "The numbers of the test that was made."},
        "sentence": {"type": "string", "description": "What happened, in words."},
    }
    return _closed("One cause that changed how many tokens were usable.", properties)


SPECIAL: Final[Mapping[Any, Callable[[], Schema]]] = {Event: _event, Loss: _loss}
"""Types whose schema does not follow from their fields."""
