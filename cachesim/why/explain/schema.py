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


_HOW: Final = {"enum": HOWS, "description": "The source of the number."}
_TEXT: Final = {"type": "string"}
_TEXT_OR_NONE: Final = {"type": ["string", "null"]}
_LOSS: Final = _table(
    "A cause that lowered the number, or regained tokens.",
    {
        "rule": _TEXT,
        "from": {"type": "integer"},
        "to": {"type": "integer"},
        "detail": {"type": "object"},
        "sentence": _TEXT,
        "by": {"const": "the log", "description": "From the log, not from the replay."},
    },
    ["rule", "from", "to", "sentence"],
)
_PARTING: Final = _table(
    "Its divergence from the request that it continues, by the text.",
    {
        "kind": _TEXT,
        "part": _TEXT,
        "where": _TEXT,
        "character": {"type": "integer"},
        "equal_characters": {"type": "integer"},
        "before": {"type": "string", "description": "What stood there, where text is kept."},
        "after": {"type": "string", "description": "What stands there now."},
        "sentence": _TEXT,
        "advice": _TEXT,
        "lines": {
            "type": "array",
            "items": _TEXT,
            "description": "Both lines, with `-` and `+`, where text is kept.",
        },
    },
    ["kind", "part", "character"],
)
_SHARED: Final = {
    "number": {"type": "integer"},
    "line": {"type": "integer"},
    "prompt_tokens": COUNT,
    "cached": COUNT,
    "processed": COUNT,
    "slot": {"type": ["integer", "null"]},
    "agrees": {"type": ["boolean", "null"]},
    "known": {"type": "object", "additionalProperties": _HOW},
    "equal": COUNT,
    "again": COUNT,
    "again_changed": COUNT
    | {"description": "At most so many more were prefilled for a change before them."},
    "turn": {"type": "string", "description": "What it is to the tokens before it."},
    "because": {"type": ["string", "null"], "description": "The rule or change that cost most."},
    "seconds": {"type": ["number", "null"], "description": "Of its prefill."},
}
"""What a request of a log and a recorded one both have."""


def _request_of_a_log() -> dict[str, Any]:
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
        _SHARED
        | {
            "server": {"type": "integer"},
            "generated": COUNT,
            "refused": {"type": "boolean", "description": "True if it was too long."},
            "parent": COUNT | {"description": "The request whose further answer it is."},
            "cancelled": {
                "type": ["boolean", "null"],
                "description": "True where the server printed that the client left.",
            },
            "replayed": replayed,
            "bounds": {"type": "object", "additionalProperties": {"type": "array"}},
            "common": COUNT,
            "common_with": _TEXT,
            "equal_with": _TEXT_OR_NONE | {"description": "Who held the `equal` tokens."},
            "held": COUNT,
            "by": {"type": ["string", "null"], "description": "Who can change that."},
            "why": {"type": "array", "items": _LOSS},
            "log_says": {"type": "array", "items": _TEXT},
            "stale": _TEXT_OR_NONE,
            "checkpoints": {
                "type": "array",
                "items": {"type": "object", "additionalProperties": {"type": "integer"}},
                "description": "Those of its slot when it began.",
            },
        },
        [*NUMBERS, "number", "cancelled", "replayed", "known"],
    )


def _request_of_a_recording() -> dict[str, Any]:
    replayed = _table("The replay's count.", {"cached": COUNT, "processed": COUNT}, ["cached"])
    return _table(
        "One recorded request, in order of time.",
        _SHARED
        | {
            "cancelled": {"type": "boolean"},
            "continues": COUNT | {"description": "The request whose conversation it is."},
            "begins_like": COUNT | {"description": "The request that it shares most with."},
            "equal_characters": COUNT,
            "characters": COUNT,
            "sections": {
                "type": "object",
                "additionalProperties": COUNT,
                "description": "Tokens of tools, system prompt and messages.",
            },
            "tokens_after": COUNT | {"description": "Prompt tokens from the divergence on."},
            "how": _HOW,
            "replayed": replayed,
            "losses": {"type": "array", "items": _LOSS},
            "parting": _PARTING | {"type": ["object", "null"]},
            "slot_taken": _TEXT_OR_NONE,
            "retokenised": _TEXT_OR_NONE,
            "why": {"type": "string", "description": "Its sentence in the live view."},
        },
        [*NUMBERS, "number", "cancelled", "replayed", "known", "sections", "parting", "why"],
    )


def why_schema() -> dict[str, Any]:
    """Schema of `cachesim why --format json`: of a log, or of recorded requests."""
    body = _table(
        "A log or recorded requests, replayed.",
        {
            "format": {"const": FORMAT},
            "log": {"type": "object"},
            "servers": {"type": "array", "description": "Those of a log."},
            "dump": {"type": "object", "description": "Recorded requests have this, and no log."},
            "server": {"type": "object", "description": "The one of recorded requests."},
            "wrong": {"type": "array", "description": "Wrong answers that the log proves."},
            "left_out_says": {"type": "string", "description": "What is in no sum."},
            "bytes_say": {"type": "string", "description": "Whose bytes the memory figures are."},
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
            "requests": {
                "type": "array",
                "items": {"anyOf": [_request_of_a_log(), _request_of_a_recording()]},
            },
            "what_if": {"type": "array"},
            "tuned": {
                "type": ["object", "null"],
                "description": "The result of `cachesim why --tune`; null if nothing was tried.",
            },
        },
        ["format", "agreement", "totals", "causes", "requests", "what_if"],
    )
    either = {"anyOf": [{"required": ["servers"]}, {"required": ["dump"]}]}
    return {**schema_head("why", "why"), **body, **either}


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
            "server": _table(
                "The known settings of the server.",
                {
                    "build": _TEXT,
                    "slots": number,
                    "n_ctx": number,
                    "model": {"type": "string", "description": "The name of its file."},
                    "profile": {"type": "string", "description": "As `--profile` gave it."},
                    "options": {"type": "object", "description": "As `--set` gave them."},
                },
                [],
            ),
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
            "parting": _PARTING,
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
