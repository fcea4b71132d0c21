"""Traces from files, in three forms, told apart by the first line; one request or batch a line.

    blocks   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
    texts    {"timestamp": 0, "prompt": [[0, 0, 6758]], "reply": [[1, 0, 500]]}
    events   {"ts": 0.0, "events": [{"type": "BlockStored", "block_hashes": [17, 18], ...}]}

Blocks are as Mooncake and Bailian publish them: an id stands for its block and everything before
it, so equal ids are equal prefixes; the last block may be partly filled. Files are read line by
line: a trace may be larger than memory.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from cachesim.traces.asked import Asked, TraceError
from cachesim.traces.kv_events import Stream, is_batch, requests_of
from cachesim.traces.runs import Chains, asked_of
from cachesim.typed import Json

UNITS: Final = {"Mooncake": 512, "Bailian": 16}
"""Tokens that an id stands for, by who publishes such files."""

MOST_TOKENS: Final = 1 << 24
MOST_ID: Final = 1 << 36


def open_trace(path: Path, unit: int = 0) -> tuple[int, Iterator[Asked]]:
    """A trace's block size, told or found in its first request, and its requests; 1: exact runs."""
    lines = _lines(path)
    head = next(lines, None)
    if head is None:
        msg = f"{path}: no request in it; write one JSON object a line"
        raise TraceError(msg)
    lines = chain([head], lines)
    if is_batch(head[0]):
        return _of_events(lines, path)
    if isinstance(head[0], dict) and "prompt" in head[0]:
        chains = Chains()
        return 1, (asked_of(_object(t, p), _time(_object(t, p), p), chains, p) for t, p in lines)
    requests = (_read(told, place) for told, place in lines)
    first = next(requests)
    unit = unit or _unit_of(first, path)
    return unit, _fitting(chain([first], requests), unit, path)


def _of_events(lines: Iterator[tuple[Any, str]], path: Path) -> tuple[int, Iterator[Asked]]:
    stream = Stream()
    requests = requests_of(lines, stream)
    first = next(requests, None)
    if first is None:
        msg = f"{path}: no block is stored in these events, so there is no request"
        raise TraceError(msg)
    return stream.unit, chain([first], requests)


def _unit_of(first: Asked, path: Path) -> int:
    """The block size with which the first request has as many blocks as it has ids."""
    found = [unit for unit in UNITS.values() if -(-first.length // unit) == len(first.blocks)]
    if len(found) != 1:
        known = ", ".join(f"{unit} ({name})" for name, unit in UNITS.items())
        msg = (
            f"{path}:1: {first.length} tokens in {len(first.blocks)} blocks fit none of the known "
            f"block sizes, {known}; say it with --unit"
        )
        raise TraceError(msg)
    return found[0]


def _lines(path: Path) -> Iterator[tuple[Any, str]]:
    """Each line's JSON, and where it stands."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    place = f"{path}:{number}"
                    yield _json(line, place), place
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror or error}"
        raise TraceError(msg) from None
    except UnicodeDecodeError as error:
        msg = f"{path}: not UTF-8: {error.reason} at byte {error.start}"
        raise TraceError(msg) from None


def _json(line: str, place: str) -> Json:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        msg = f"{place}: not JSON: {line.strip()[:60]!r}; write one object a line"
        raise TraceError(msg) from None


def _object(told: object, place: str) -> dict[str, Any]:
    if not isinstance(told, dict):
        msg = f"{place}: not an object; write one with input_length, output_length and hash_ids"
        raise TraceError(msg)
    return told


def _read(line: object, place: str) -> Asked:
    told = _object(line, place)
    blocks = told.get("hash_ids")
    if not isinstance(blocks, list) or not blocks:
        msg = f"{place}: hash_ids must be a list of whole numbers, one for each block"
        raise TraceError(msg)
    return Asked(
        time=_time(told, place),
        length=_whole(told.get("input_length"), 1, MOST_TOKENS, f"{place}: input_length"),
        output=_whole(told.get("output_length"), 0, MOST_TOKENS, f"{place}: output_length"),
        blocks=tuple(_whole(each, 0, MOST_ID, f"{place}: hash_ids") for each in blocks),
    )


def _time(told: dict[str, Any], place: str) -> float:
    time = told.get("timestamp", 0)
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1 << 60:
        msg = f"{place}: timestamp is {time!r}; write milliseconds, or leave it out"
        raise TraceError(msg)
    return float(time)


def _whole(value: object, low: int, high: int, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        msg = f"{place} has {str(value)[:40]}; write a whole number from {low} to {high}"
        raise TraceError(msg)
    return value


def _fitting(requests: Iterable[Asked], unit: int, path: Path) -> Iterator[Asked]:
    for number, each in enumerate(requests, 1):
        if -(-each.length // unit) != len(each.blocks):
            msg = (
                f"{path}: request {number} has {each.length} tokens in {len(each.blocks)} blocks; "
                f"with {unit} tokens a block it needs {-(-each.length // unit)}"
            )
            raise TraceError(msg)
        yield each
