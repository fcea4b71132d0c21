"""The JSON Schemas of what `cachesim why` prints and of the recorded requests that it reads."""

from typing import Any, Final

from cachesim.logs.telling import FORMAT

HOWS: Final = ["printed", "computed", "bounded", "assumed", "unknown"]
NUMBERS: Final = ("prompt_tokens", "cached", "processed", "slot")
COUNT: Final = {"type": ["integer", "null"], "minimum": 0}


def _table(about: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": required,
    }


def why_schema() -> dict[str, Any]:
    """What `cachesim why LOG --format json` prints."""
    how = {"enum": HOWS, "description": "How the number is known."}
    loss = _table(
        "A cause that lowered the number, or won tokens back.",
        {
            "rule": {"type": "string"},
            "from": {"type": "integer"},
            "to": {"type": "integer"},
            "detail": {"type": "object"},
            "sentence": {"type": "string"},
            "by": {"const": "the log", "description": "Read off the log, not off the replay."},
        },
        ["rule", "from", "to", "sentence"],
    )
    replayed = _table(
        "What the replay answers.",
        {
            "cached": COUNT,
            "processed": COUNT,
            "slot": COUNT,
            "error": {"type": ["string", "null"]},
        },
        ["cached", "processed", "slot"],
    )
    request = _table(
        "One request, in order of launch.",
        {
            "number": {"type": "integer"},
            "server": {"type": "integer"},
            "line": {"type": "integer"},
            "prompt_tokens": COUNT,
            "cached": COUNT,
            "processed": COUNT,
            "generated": COUNT,
            "slot": {"type": ["integer", "null"]},
            "cancelled": {"type": "boolean"},
            "replayed": replayed,
            "agrees": {"type": ["boolean", "null"]},
            "known": {"type": "object", "additionalProperties": how},
            "bounds": {"type": "object", "additionalProperties": {"type": "array"}},
            "common": COUNT,
            "common_with": {"type": "string"},
            "equal": COUNT,
            "again": COUNT,
            "why": {"type": "array", "items": loss},
            "log_says": {"type": "array", "items": {"type": "string"}},
            "stale": {"type": ["string", "null"]},
        },
        [*NUMBERS, "number", "cancelled", "replayed", "known"],
    )
    body = _table(
        "A log, replayed.",
        {
            "format": {"const": FORMAT},
            "log": {"type": "object"},
            "servers": {"type": "array"},
            "agreement": {"type": "object"},
            "totals": {"type": "object"},
            "causes": {"type": "array"},
            "requests": {"type": "array", "items": request},
            "what_if": {"type": "array"},
        },
        ["format", "servers", "agreement", "totals", "causes", "requests", "what_if"],
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "why", **body}


def requests_schema() -> dict[str, Any]:
    """One line of recorded requests."""
    segment = _table(
        "A part of the prompt, without its text.",
        {
            "part": {"type": "string"},
            "role": {"type": "string"},
            "kind": {"enum": ["text", "reasoning", "tool", "tool call", "attachment"]},
            "characters": {"type": "integer", "minimum": 0},
            "hashes": {
                "type": "array",
                "items": {"type": "string"},
                "description": "One for each 64 characters.",
            },
        },
        ["part", "characters", "hashes"],
    )
    body = _table(
        "One request and what came back.",
        {
            "request": {"type": "object", "description": "As it was sent: a chat or a completion."},
            "segments": {"type": "array", "items": segment},
            "usage": {"type": "object", "description": "As the server sent it."},
            "timings": {"type": "object", "description": "As llama-server sent it."},
            "slot": {"type": "integer"},
            "cancelled": {"type": "boolean"},
            "time": {"type": ["string", "number"]},
            "path": {"type": "string"},
        },
        [],
    )
    keys = ("request", "segments", "messages", "prompt")
    choice = {"anyOf": [{"required": [key]} for key in keys]}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "recorded request"}
    return {**head, **body, **choice}
