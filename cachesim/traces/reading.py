"""Traces from files, in three forms, told apart by the first line; one request or batch a line.

    blocks   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
    texts    {"timestamp": 0, "prompt": [[0, 0, 6758]], "reply": [[1, 0, 500]]}
    events   {"ts": 0.0, "events": [{"type": "BlockStored", "block_hashes": [17, 18], ...}]}

Blocks are as Mooncake and Bailian publish them: an id stands for its block and everything before
it, so equal ids are equal prefixes; the last block may be partly filled. Files are read line by
line, compressed ones too: a trace may be larger than memory.

Timestamps count milliseconds in Mooncake's files and in texts, seconds in Bailian's and in events.
"""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias, cast

from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.packed import HEAD_BYTES, unpacked
from cachesim.traces.asked import Asked, TraceError
from cachesim.traces.kv_events import Stream, is_batch, requests_of
from cachesim.traces.runs import Chains, asked_of
from cachesim.typed import Json

UNITS: Final = {"Mooncake": 512, "Bailian": 16}
"""Tokens that an id stands for, by who publishes such files."""

CHATS: Final = frozenset({"chat_id", "parent_chat_id"})
"""Keys that only Bailian's lines have."""

Clock: TypeAlias = Literal["s", "ms"]
"""What timestamps count in."""

MOST_TOKENS: Final = 1 << 24
MOST_ID: Final = 1 << 36
MOST_CHARACTERS: Final = 1 << 26
"""Characters of a line: no request is longer, and a file without line ends is not read whole."""


def open_trace(
    path: Path,
    unit: int = 0,
    *,
    name: str = "",
    clock: Clock | None = None,
    rank: int | None = None,
) -> tuple[int, Iterator[Asked]]:
    """A trace's block size, given or found in its first request, and its requests; 1: exact runs.

    `name` replaces the path in messages, `clock` what the form's timestamps count in. Of a stream
    of events, `rank` keeps the requests of one data-parallel rank.
    """
    name = name or str(path)
    lines = _lines(path, name)
    head = next(lines, None)
    if head is None:
        msg = f"{name}: no request in it; write one JSON object a line"
        raise TraceError(msg)
    lines = chain([head], lines)
    if is_batch(head[0]):
        return _of_events(lines, Stream(rank=rank, milliseconds=clock == "ms"), name)
    if rank is not None:
        msg = f"{name}: --rank is {rank}, and only KV events name ranks; leave it out"
        raise TraceError(msg)
    if isinstance(head[0], dict) and "prompt" in head[0]:
        chains, seconds = Chains(), clock == "s"
        return 1, (
            asked_of(_object(t, p), _time(t, p, seconds=seconds), chains, p, seconds=seconds)
            for t, p in lines
        )
    chats = isinstance(head[0], dict) and bool(head[0].keys() & CHATS)
    unit = unit or _unit_of(_read(*head), name, chats=chats)
    seconds = clock == "s" if clock else chats or unit == UNITS["Bailian"]
    requests = (_read(told, place, seconds=seconds) for told, place in lines)
    return unit, _fitting(requests, unit, name)


def _of_events(
    lines: Iterator[tuple[Any, str]], stream: Stream, name: str
) -> tuple[int, Iterator[Asked]]:
    requests = requests_of(lines, stream)
    first = next(requests, None)
    if first is None:
        ranks = ", ".join(map(str, sorted(stream.ranks)))
        here = f" of rank {stream.rank} (there are {ranks or 'none'})" if stream.ranks else ""
        msg = f"{name}: no block{here} is stored in these events, so there is no request"
        raise TraceError(msg)
    return stream.unit, chain([first], requests)


def _unit_of(first: Asked, name: str, *, chats: bool) -> int:
    """The block size with which the first request has as many blocks as it has ids."""
    found = [unit for unit in UNITS.values() if -(-first.length // unit) == len(first.blocks)]
    if chats and UNITS["Bailian"] in found:
        return UNITS["Bailian"]
    if len(found) != 1:
        known = ", ".join(f"{unit} ({who})" for who, unit in UNITS.items())
        fit = "fit each" if found else "fit none"
        msg = (
            f"{name}:1: {counted(first.length, 'token')} in "
            f"{counted(len(first.blocks), 'block')} {fit} of the known "
            f"block sizes, {known}; write the tokens of a block with --unit"
        )
        raise TraceError(msg)
    return found[0]


def _lines(path: Path, name: str) -> Iterator[tuple[Any, str]]:
    try:
        with _opened(path, name) as file, TextIOWrapper(file, encoding="utf-8-sig") as lines:
            whole = iter(partial(lines.readline, MOST_CHARACTERS), "")
            for number, line in enumerate(whole, 1):
                place = f"{name}:{number}"
                if len(line) >= MOST_CHARACTERS:
                    msg = f"{place}: more than {MOST_CHARACTERS:,} characters; write a request each"
                    raise TraceError(msg)
                if line.strip():
                    yield _json(line, place), place
    except InputError as error:  # of what unpacks it
        raise TraceError(str(error)) from None
    except OSError as error:
        msg = f"{name}: cannot be read: {error.strerror or error}"
        raise TraceError(msg) from None
    except UnicodeDecodeError as error:
        msg = f"{name}: not UTF-8: {error.reason} at byte {error.start}"
        raise TraceError(msg) from None


def _opened(path: Path, name: str) -> BinaryIO:
    file = path.open("rb")
    return unpacked(name, cast("BinaryIO", file), file.peek(HEAD_BYTES))


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


def _read(line: object, place: str, *, seconds: bool = False) -> Asked:
    told = _object(line, place)
    blocks = told.get("hash_ids")
    if not isinstance(blocks, list) or not blocks:
        msg = f"{place}: hash_ids must be a list of whole numbers, one for each block"
        raise TraceError(msg)
    output = told.get("output_length")
    silent = output is None
    return Asked(
        time=_time(told, place, seconds=seconds),
        length=_whole(told.get("input_length"), 1, MOST_TOKENS, f"{place}: input_length"),
        output=1 if silent else _whole(output, 0, MOST_TOKENS, f"{place}: output_length"),
        blocks=tuple(_whole(each, 0, MOST_ID, f"{place}: hash_ids") for each in blocks),
        silent=silent,
        seconds=seconds,
    )


def _time(told: dict[str, Any], place: str, *, seconds: bool = False) -> float:
    time = told.get("timestamp", 0)
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1 << 50:
        unit = "seconds" if seconds else "milliseconds"
        msg = f"{place}: timestamp is {str(time)[:40]}; write {unit}, or leave it out"
        raise TraceError(msg)
    return float(time) * (1000 if seconds else 1)


def _whole(value: object, low: int, high: int, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        msg = f"{place} has {str(value)[:40]}; write a whole number from {low} to {high}"
        raise TraceError(msg)
    return value


def _fitting(requests: Iterable[Asked], unit: int, name: str) -> Iterator[Asked]:
    for number, each in enumerate(requests, 1):
        if -(-each.length // unit) != len(each.blocks):
            msg = (
                f"{name}: request {number} has {each.length} tokens in {len(each.blocks)} blocks; "
                f"with {unit} tokens a block it needs {-(-each.length // unit)}"
            )
            raise TraceError(msg)
        yield each
