"""The JSON Schemas: of the scenario file, written from its fields, and of the output."""

from collections.abc import Mapping
from dataclasses import Field, fields
from types import MappingProxyType
from typing import Any, Final, get_args, get_origin, get_type_hints

from cachesim.scenario.format import ACTIONS, LONGEST, Scenario, key_of
from cachesim.scenario.schema_detail import run_detail, step_detail

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "Scenario": ("format", "name", "model", "engine", "step"),
    "Server": ("name",),
    "Turn": ("role", "content"),
}
"""What a file cannot do without."""


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


def _nested(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a type
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return {"type": "array", "items": _table(inner), "maxItems": LONGEST[inner]}
    return _table(kind)


def _object(
    about: str, properties: dict[str, Any], optional: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    return {
        "type": "object",
        "description": about,
        "properties": properties | dict(optional),
        "required": list(properties),
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_COUNT: Final = {"type": "integer", "minimum": 0}
_COUNT_OR_NULL: Final = {"type": ["integer", "null"], "minimum": 0}
_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_TABLE: Final = {"type": "object"}


def _step() -> dict[str, Any]:
    why = _object(
        "One rule that changed how many tokens were usable.",
        {"rule": _TEXT, "from": _COUNT, "to": _COUNT, "detail": _TABLE},
    )
    checkpoint = _object(
        "One saved state of the slot.",
        {"pos_min": {"type": "integer"}, "pos_max": {"type": "integer"}, "n_tokens": _COUNT},
    )
    entry = _object("One parked conversation.", {"n_tokens": _COUNT, "checkpoints": _COUNT})
    event = _object("One thing that happened.", {"event": _TEXT})
    optional = {"detail": step_detail()}
    answers = ["same", "rounding", "by-design", "diverged", None]
    return _object(
        "One step of a scenario, as the server left it.",
        {
            "name": _TEXT,
            "do": {"enum": list(ACTIONS)},
            "prompt_tokens": _COUNT,
            "cached": _COUNT_OR_NULL,
            "processed": _COUNT_OR_NULL,
            "generated": _list({"type": "integer"}),
            "answer": {"enum": answers},
            "max_difference": {"type": ["number", "null"]},
            "reuse": {"enum": ["as declared", "lost", "unsound", None]},
            "why": _list(why),
            "slot": {"type": ["integer", "null"]},
            "truncated": {"type": "boolean"},
            "checkpoints": _list(checkpoint),
            "prompt_cache": _list(entry),
            "events": _list(event),
            "error": _TEXT_OR_NULL,
            "message": _TEXT,
            "explanation": {"type": ["object", "null"]},
            "slots": _list(_object("One slot.", {"id": _COUNT, "n_tokens": _COUNT})),
        },
        optional,
    )


def output_schema() -> dict[str, Any]:
    """The JSON Schema of what `cachesim run --format json` prints."""
    run = _object(
        "One scenario on one profile.",
        {
            "scenario": _TEXT,
            "profile": _TEXT,
            "as_expected": {"type": "boolean"},
            "steps": _list(_step()),
            "arithmetic": {"enum": ["float", "ring", "counts"]},
            "mismatches": _list(_TEXT),
        },
        {"detail": run_detail()},
    )
    top = _object(
        "Every run, in the order asked for.", {"format": {"const": 1}, "runs": _list(run)}
    )
    return {"$schema": DIALECT, "title": "cachesim output, format 1"} | top
