"""JSON Schemas of the output of `cachesim why` and of recorded requests."""

from typing import Any, Final, get_args

from cachesim.play.result import schema_head
from cachesim.why.explain.report import FORMAT
from cachesim.why.read.dump import KEYS
from cachesim.why.read.observed import How
from cachesim.why.read.slot_actions import ACTIONS

HOWS: Final = list(get_args(How))
NUMBERS: Final = ("prompt_tokens", "cached", "processed", "slot")
COUNT: Final = {"type": ["integer", "null"], "minimum": 0}


def _table(about: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "description": about, "properties": properties, "required": required}


def _request_of_a_log() -> dict[str, Any]:
    how = {"enum": HOWS, "description": "The source of the number."}
    loss = _table(
        "A cause that lowered the number, or regained tokens.",
        {
            "rule": {"type": "string"},
            "from": {"type": "integer"},
            "to": {"type": "integer"},
            "detail": {"type": "object"},
            "sentence": {"type": "string"},
            "by": {"const": "the log", "description": "From the log, not from the replay."},
        },
        ["rule", "from", "to", "sentence"],
    )
    replayed = _table(
        "The replay's count.",
        {
            "cached": COUNT,
            "processed": COUNT,
            "slot": COUNT,
            "error": {"type": ["string", "null"]},
            "played": {"type": "boolean", "description": "False if nothing was replayed."},
            "declines": {
                "type": "boolean",
                "description": "True where `cache_prompt: false` is assumed of it.",
            },
        },
        ["cached", "processed", "slot"],
    )
    return _table(
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
            "cancelled": {
                "type": ["boolean", "null"],
                "description": "True where the server printed that the client left.",
            },
            "replayed": replayed,
            "agrees": {"type": ["boolean", "null"]},
            "known": {"type": "object", "additionalProperties": how},
            "bounds": {"type": "object", "additionalProperties": {"type": "array"}},
            "common": COUNT,
            "common_with": {"type": "string"},
            "equal": COUNT,
            "again": COUNT,
            "again_changed": COUNT
            | {"description": "At most so many more were prefilled for a change before them."},
            "turn": {"type": "string", "description": "What it is to the tokens of its slot."},
            "held": COUNT,
            "because": {"type": ["string", "null"], "description": "The rule that cost it most."},
            "by": {"type": ["string", "null"], "description": "Who can change that."},
            "seconds": {"type": ["number", "null"], "description": "Of its prefill."},
            "why": {"type": "array", "items": loss},
            "log_says": {"type": "array", "items": {"type": "string"}},
            "stale": {"type": ["string", "null"]},
        },
        [*NUMBERS, "number", "cancelled", "replayed", "known"],
    )


def why_schema() -> dict[str, Any]:
    """Schema of `cachesim why LOG --format json`."""
    body = _table(
        "A log, replayed.",
        {
            "format": {"const": FORMAT},
            "log": {"type": "object"},
            "servers": {"type": "array"},
            "answer": _table(
                "How many tokens were prefilled again, who can change it, how sure this is.",
                {
                    "by": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "says": {"type": "array", "items": {"type": "string"}},
                },
                ["by", "says"],
            ),
            "agreement": {"type": "object"},
            "totals": {"type": "object"},
            "places": {
                "type": "array",
                "description": "The start of most processed tokens, if at one place.",
            },
            "causes": {"type": "array"},
            "requests": {"type": "array", "items": _request_of_a_log()},
            "what_if": {"type": "array"},
            "tuned": {
                "type": ["object", "null"],
                "description": "The result of `cachesim why --tune`; null if nothing was tried.",
            },
        },
        ["format", "servers", "agreement", "totals", "causes", "requests", "what_if"],
    )
    return {**schema_head("why", "why"), **body}


def _segments(about: str) -> dict[str, Any]:
    segment = _table(
        "A part of the prompt or the reply, without its text.",
        {
            "part": {"type": "string", "description": "As in: message 3, tool 1, prompt."},
            "role": {"type": "string"},
            "kind": {"enum": ["text", "reasoning", "tool", "tool call", "attachment"]},
            "characters": {"type": "integer", "minimum": 0},
            "hashes": {
                "type": "array",
                "items": {"type": "string"},
                "description": "One for each 64 characters, a chain: each covers all before.",
            },
            "text": {"type": "string", "description": "Of a reply, where text is kept."},
        },
        [],
    )
    return {"type": "array", "items": segment, "description": about}


def requests_schema() -> dict[str, Any]:
    """A line of recorded requests."""
    number = {"type": ["integer", "null"]}
    seconds = {"type": ["number", "null"], "minimum": 0}
    body = _table(
        "One request and its answer.",
        {
            "format": {"const": FORMAT},
            "number": {"type": "integer", "description": "Counts from 0 in each file."},
            "request": {"type": "object", "description": "As it was sent: a chat or a completion."},
            "segments": _segments("The prompt in parts."),
            "reply": _segments("The first reply in parts."),
            "usage": {"type": "object", "description": "As the server sent it."},
            "timings": {"type": "object", "description": "As llama-server sent it."},
            "progress": {"type": "object", "description": "llama-server's `prompt_progress`."},
            "slot": {"type": "integer"},
            "action": {
                "enum": list(ACTIONS),
                "description": "The action of `/slots/N`; then there is no prompt.",
            },
            "file": {"type": "string", "description": "A hash of the slot file's name."},
            "moved": {"type": "integer", "description": "Tokens saved, restored or erased."},
            "cancelled": {"type": "boolean"},
            "time": {"type": ["string", "number"], "description": "ISO 8601, or since 1970."},
            "seconds": seconds | {"description": "Until the end of the answer."},
            "first_byte_seconds": seconds,
            "client": {"type": "string"},
            "path": {"type": "string"},
            "model": {"type": "string"},
            "stream": {"type": "boolean"},
            "status": number,
            "bytes": {"type": "object"},
            "sampling": {"type": "object", "description": "Fields that matter for a cache."},
            "server": {"type": "object", "description": "The known settings of the server."},
            "fingerprint": {"type": "string", "description": "The server's `system_fingerprint`."},
            "tokens": _table(
                "The prompt's tokens, if the server returned them.",
                {
                    "runs": {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "integer"}},
                        "description": "[text, first, past the last]: text 2n is the prompt of "
                        "request n, 2n + 1 its reply.",
                    },
                    "user_starts": {"type": "array", "items": {"type": "integer"}},
                },
                ["runs"],
            ),
            "seen": {
                "type": "object",
                "properties": {
                    "begins_like": number,
                    "characters": {"type": "integer"},
                    "continues": number,
                },
                "description": "The earlier requests that it was compared with.",
            },
            "parting": _table(
                "Its divergence from the request that it continues, by the text.",
                {
                    "kind": {"type": "string"},
                    "part": {"type": "string"},
                    "where": {"type": "string"},
                    "character": {"type": "integer"},
                    "equal_characters": {"type": "integer"},
                },
                ["kind", "part", "character"],
            ),
            "adds": {
                "type": "object",
                "description": "`server`, `tokens`, `seen` and `parting` of the earlier line of "
                "this number, which was written before they were known.",
            },
            "error": {"type": "string", "description": "The server's short name of it."},
            "unread": {"type": "string", "description": "Why its prompt or answer is missing."},
        },
        [],
    )
    choice = {"anyOf": [{"required": [key]} for key in KEYS]}
    return {**schema_head("requests", "recorded request"), **body, **choice}
