"""One line of the file: what is kept of a request and its answer. What is not named is not kept."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from cachesim.logs.dump import LONGEST_REQUEST, Recorded, recorded_from
from cachesim.logs.segments import PLACES, Segment, segments_of
from cachesim.record.answer import MOVED, ZLIB_OR_GZIP, Said
from cachesim.record.exchange import Exchange
from cachesim.record.hashing import Hasher
from cachesim.typed import mapping

SAMPLING: Final = (
    "cache_prompt", "id_slot", "n", "n_cmpl", "n_predict", "max_tokens", "max_completion_tokens",
    "n_cache_reuse", "n_keep", "n_discard", "t_max_predict_ms", "temperature", "top_p", "top_k",
    "min_p", "seed", "speculative.n_max", "ignore_eos", "enable_thinking", "reasoning_effort",
    "add_generation_prompt", "continue_final_message", "parallel_tool_calls",
    "num_ctx", "num_keep", "num_predict", "think", "max_new_tokens", "max_length",
    "max_context_length", "max_output_tokens", "context_length",
)  # fmt: skip
"""Fields of a request that change what a server keeps or reuses, or what it says."""

KEPT_TEXT: Final = (*PLACES, "model", "stream", "tool_choice", "input_extra")
"""What `--keep-text` keeps of a request, besides those."""

TOOK: Final = ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "cache_n", "draft_n",
               "draft_n_accepted")  # fmt: skip
LONGEST_WORD: Final = 200


def request_in(exchange: Exchange) -> tuple[dict[str, Any], str]:
    """The request as JSON, and where that cannot be had, why."""
    body = exchange.body
    if not body.is_whole:
        return {}, f"the request is longer than {LONGEST_REQUEST >> 20} MiB"
    data = b"".join(body.chunks)
    if body.encoding.strip().lower() in {"gzip", "x-gzip", "deflate"}:
        unpacker = zlib.decompressobj(wbits=ZLIB_OR_GZIP)
        try:
            data = unpacker.decompress(data, LONGEST_REQUEST)
        except zlib.error:
            return {}, "the request's packing is damaged"
        if unpacker.unconsumed_tail:
            return {}, f"the request unpacks to more than {LONGEST_REQUEST >> 20} MiB"
    elif body.encoding.strip().lower() not in {"", "identity"}:
        return {}, f"the request is packed with {body.encoding[:20]!r}"
    try:
        request = json.loads(data)
    except (ValueError, RecursionError):
        return {}, "the request is no JSON"
    return (request, "") if isinstance(request, dict) else ({}, "the request is no JSON object")


def reply_of(said: Said) -> tuple[Segment, ...]:
    """What was answered, in the parts in which it comes back with the next request."""
    parts = (("reasoning", said.reasoning), ("text", said.text), ("tool call", said.calls))
    return tuple(
        Segment("reply", "assistant", kind, "".join(texts)) for kind, texts in parts if any(texts)
    )


def entry_of(exchange: Exchange, request: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """All of a line but for the texts."""
    said = exchange.answer.said
    entry: dict[str, Any] = {
        "format": 1,
        "number": exchange.number,
        "time": datetime.fromtimestamp(exchange.began, UTC).isoformat(timespec="microseconds"),
        "client": exchange.client,
        "path": exchange.path,
        "model": short(request.get("model") or said.facts.get("model")),
        "stream": request.get("stream") is True,
        "status": exchange.status,
        "bytes": {"request": exchange.body.size, "answer": exchange.answer.size},
        "sampling": _sampling_of(request),
        "usage": numbers_of(said.usage),
        "timings": numbers_of({key: said.timings.get(key) for key in TOOK}),
        "first_byte_seconds": rounded(exchange.first_byte),
        "seconds": rounded(exchange.seconds),
        "cancelled": exchange.cancelled,
    }
    if said.progress:
        entry["progress"] = numbers_of(said.progress)
    slot = said.facts.get("id_slot")
    if isinstance(slot, int):
        entry["slot"] = slot
    if isinstance(said.facts.get("system_fingerprint"), str):
        entry["fingerprint"] = short(said.facts["system_fingerprint"])
    for key, why in (
        ("error", said.error or exchange.broken),
        ("unread", problem or exchange.answer.unread),
    ):
        if why:
            entry[key] = short(why)
    return entry


def action_entry(
    exchange: Exchange,
    called: tuple[str, int],
    request: Mapping[str, Any],
    hasher: Hasher | None,
) -> dict[str, Any]:
    """The line of a call of `/slots/N`: a file's name is hashed as texts are."""
    action, slot = called
    name = str(request.get("filename") or "")[:LONGEST_WORD]
    facts = exchange.answer.said.facts
    entry = entry_of(exchange, {}, "")
    for key in ("model", "stream", "sampling", "usage", "timings"):
        del entry[key]
    entry |= {"action": action, "slot": slot}
    if name:
        entry["file"] = name if hasher is None else hasher.name(name)
    moved = next((facts[key] for key in MOVED if key in facts), None)
    return entry | ({} if moved is None else {"moved": moved})


def with_texts(
    entry: dict[str, Any],
    request: Mapping[str, Any],
    reply: tuple[Segment, ...],
    hasher: Hasher | None,
) -> dict[str, Any]:
    """A line with the prompt and the reply: as hashes, or, where there is no hasher, as text."""
    if hasher is None:
        kept = {key: request[key] for key in (*KEPT_TEXT, *SAMPLING) if key in request}
        parts = [{"kind": each.kind, "text": each.text} for each in reply]
        return {**entry, "request": kept, "reply": parts}
    return {
        **entry,
        "segments": [shown(hasher.hashed(each)) for each in segments_of(request)],
        "reply": [shown(hasher.hashed(each)) for each in reply],
    }


def with_own_texts(
    entry: Mapping[str, Any], request: Mapping[str, Any], reply: tuple[Segment, ...]
) -> Recorded:
    """The request as the differ reads it, its texts in memory only."""
    found = recorded_from({**entry, "request": dict(request)}, line=0, number=0)
    return replace(found, number=int(entry["number"]), reply=reply)


def shown(segment: Segment) -> dict[str, Any]:
    """A part of a prompt as JSON has it."""
    return {
        "part": segment.part,
        "role": segment.role,
        "kind": segment.kind,
        "characters": segment.length,
        "hashes": list(segment.hashes),
    }


def _sampling_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that matter for a cache, where they are numbers, yes or no, or a short word."""
    nested = ("chat_template_kwargs", "options", "sampling_params")
    inner = {key: value for name in nested for key, value in mapping(request.get(name)).items()}
    fields = {**inner, **request}
    return {
        key: fields[key] if not isinstance(fields[key], str) else short(fields[key])[:20]
        for key in SAMPLING
        if isinstance(fields.get(key), int | float | str)
    }


def numbers_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers alone, those of inner objects too."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            inner = numbers_of(value)
            if inner:
                found[str(key)[:40]] = inner
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[str(key)[:40]] = value
    return found


def rounded(seconds: float | None) -> float | None:
    """Seconds, fine enough to tell what came before what."""
    return None if seconds is None else round(seconds, 6)


def short(value: object) -> str:
    """A word of the client or the server, of bounded length."""
    return str(value)[:LONGEST_WORD] if isinstance(value, str | int) else ""
