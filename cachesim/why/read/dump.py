"""Recorded requests as JSON Lines: an OpenAI-style request on each line, with its answer.

    {"request": {"messages": [...], "tools": [...]}, "usage": {...}, "timings": {...}}
    {"segments": [{"part": "message 1", "role": "system", "characters": 512, "hashes": [...]}], ...}

    {"action": "erase", "slot": 0, "status": 200}

    {"number": 1, "adds": {"seen": {...}, "tokens": {...}}}

A line has the request itself, or, where nobody wants to keep text, a hash for each 64 characters of
each of its parts; `cachesim record` writes both forms. `usage` and `timings` are as the server sent
them; both may be missing. A line with an action is a call of llama-server's `/slots/N`. A line that
adds to an earlier one has what `cachesim record` found after that one was written.
"""

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, BinaryIO, Final

from cachesim.errors import InputError
from cachesim.typed import mapping
from cachesim.why.read.fields import check_fields
from cachesim.why.read.segments import Segment, segments_of, usage_of, whole
from cachesim.why.read.slot_actions import SlotAction, action_from, is_action

KEYS: Final = ("request", "segments", "messages", "prompt", "action", "adds")
"""A line has one of these at least."""

LONGEST_REQUEST: Final = 64 * 2**20
"""Most bytes of a line: a request with its whole conversation."""

MOST_KEPT: Final = 2**31
"""Most characters kept of all requests; repeated parts count once."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request of a dump."""

    number: int
    line: int
    segments: tuple[Segment, ...]
    prompt_tokens: int | None
    cached: int | None
    processed: int | None
    generated: int | None
    slot: int | None = None
    cancelled: bool = False
    model: str = ""
    reply: tuple[Segment, ...] = ()
    began: float | None = None  # seconds since 1970
    seconds: float | None = None
    prefill_seconds: float | None = None
    status: int | None = None
    fingerprint: str = ""  # the server's own word for its build
    server: Mapping[str, Any] = field(default_factory=dict)  # what the recorder knew of it
    sampling: Mapping[str, Any] = field(default_factory=dict)
    runs: tuple[tuple[int, int, int], ...] = ()  # its tokens, where the recorder could ask for them
    user_starts: tuple[int, ...] = ()
    divergence: Mapping[str, Any] | None = None  # what the recorder saw, while it had the texts
    seen: tuple[int, int, int] | None = None  # begins like whom, characters, continues whom
    actions: tuple[SlotAction, ...] = ()  # what was done to slots since the request before it
    source: str = ""  # the file of the line

    @property
    def characters(self) -> int:
        """Characters of all segments."""
        return sum(segment.length for segment in self.segments)

    @property
    def was_read(self) -> bool:
        return self.status is None or self.status < 400


def is_dump(head: bytes) -> bool:
    """True if a file begins like recorded requests, not like a log."""
    line = head.removeprefix(BOM_UTF8).lstrip()
    return line.startswith(b"{") and any(f'"{key}"'.encode() in line for key in KEYS)


class DumpReader:
    """Reader of dumps; repeated parts are stored once."""

    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self.unread: Counter[str] = Counter()  # requests whose prompt was not recorded, by why
        self.cut: list[str] = []  # files whose last line is not whole
        self._known: dict[Segment, Segment] = {}
        self._kept = 0
        self._first = 0  # the number of a file's first request
        self._places: dict[int, int] = {}  # of the requests of a file, by their numbers
        self._actions: list[SlotAction] = []  # since the last request

    def read(self, name: str, file: BinaryIO) -> None:
        """Add every request of a file; an invalid line is an error with its number."""
        number = 0
        first = len(self.requests)
        self._first = self._next
        self._places.clear()
        while True:
            number += 1
            raw = file.readline(LONGEST_REQUEST + 1)
            if not raw:
                return
            if not raw.strip():
                continue
            if len(raw) > LONGEST_REQUEST:
                msg = f"{name}:{number}: the line is longer than {LONGEST_REQUEST >> 20} MiB"
                raise InputError(msg)
            try:
                entry = _entry(name, number, raw)
            except InputError:
                if raw.endswith(b"\n") or len(self.requests) == first:
                    raise
                self.cut.append(f"{name}:{number}")  # whoever wrote it was ended in the middle
                return
            self._add(name, number, entry)

    @property
    def _next(self) -> int:
        last = self._actions[-1].number if self._actions else -1
        return max(last, self.requests[-1].number if self.requests else -1) + 1

    def _add(self, name: str, line: int, entry: Mapping[str, Any]) -> None:
        if "adds" in entry:
            self._extend(entry)
            return
        if entry.get("unread") and not entry.get("segments") and not entry.get("request"):
            self.unread[str(entry["unread"])[:100]] += 1
            return
        try:
            if is_action(entry):
                self._actions.append(acted(entry, number=self._next, first=self._first))
                return
            check_fields(entry, has_prompt=True)
            try:
                recorded = recorded_from(
                    entry, line=line, number=self._next, first=self._first, keep=self._keep
                )
            except ValueError:
                check_fields(entry, has_prompt=False)
                raise
        except ValueError as error:
            raise InputError(f"{name}:{line}: {error}") from None
        if self._kept > MOST_KEPT:
            raise InputError(f"{name}: more than {MOST_KEPT >> 30} GiB of text; split the file")
        self._places[recorded.number] = len(self.requests)
        self.requests.append(replace(recorded, source=name, actions=tuple(self._actions)))
        self._actions.clear()

    def _extend(self, entry: Mapping[str, Any]) -> None:
        """What a recorder found after it had written a request's line."""
        number = whole(entry.get("number"))
        place = None if number is None else self._places.get(self._first + number)
        if place is not None:
            found = analysis_of(mapping(entry["adds"]), self._first)
            self.requests[place] = replace(self.requests[place], **found)

    def _keep(self, segment: Segment) -> Segment:
        known = self._known.setdefault(segment, segment)
        if known is segment:
            self._kept += len(segment.text) + 64 * len(segment.hashes)
        return known


def _entry(name: str, line: int, raw: bytes) -> Mapping[str, Any]:
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name}:{line}: is no JSON: {str(error)[:100]}") from None
    if not isinstance(entry, dict):
        raise InputError(f"{name}:{line}: is no JSON object; write one request on each line")
    return entry


def acted(entry: Mapping[str, Any], *, number: int, first: int = 0) -> SlotAction:
    """The action of a line; ValueError for an invalid one."""
    own = whole(entry.get("number"))
    if own is not None and first + own >= number:
        number = first + own
    return action_from(
        entry,
        number=number,
        began=_moment(entry.get("time")),
        seconds=_number(entry.get("seconds")),
    )


def recorded_from(
    entry: Mapping[str, Any],
    *,
    line: int,
    number: int,
    first: int = 0,
    keep: Callable[[Segment], Segment] = lambda segment: segment,
) -> Recorded:
    """The request of a line; ValueError without a prompt.

    A recorder numbers its requests, and its lines speak of each other by these numbers: they count
    from `first` on. Where they do not grow the line is taken for itself.
    """
    request, entry = _with_answer(entry)
    found = _hashed(entry["segments"]) if "segments" in entry else segments_of(request)
    segments = tuple(map(keep, found))
    if not segments:
        raise ValueError("has no messages and no prompt; write an OpenAI-style request")
    counts = counts_of(entry)
    own = whole(entry.get("number"))
    in_order = own is not None and first + own >= number
    if own is not None and in_order:
        number = first + own
    sampling = mapping(entry.get("sampling")) or {
        key: request[key] for key in ("cache_prompt", "id_slot", "n") if key in request
    }
    milliseconds = _number(mapping(entry.get("timings")).get("prompt_ms"))
    analysis = analysis_of(entry, first)
    if not in_order:
        analysis |= {"runs": (), "user_starts": (), "seen": None}
    return Recorded(
        number=number,
        line=line,
        segments=segments,
        prompt_tokens=counts.prompt,
        cached=counts.cached,
        processed=counts.processed,
        generated=counts.generated,
        slot=whole(entry.get("slot"), entry.get("id_slot")),
        cancelled=entry.get("cancelled") is True,
        model=str(entry.get("model") or request.get("model") or "")[:200],
        reply=tuple(map(keep, _reply(entry.get("reply")))),
        began=_moment(entry.get("time")),
        seconds=_number(entry.get("seconds")),
        prefill_seconds=None if milliseconds is None else milliseconds / 1000,
        status=whole(entry.get("status")),
        fingerprint=str(entry.get("fingerprint") or "")[:200],
        sampling=sampling,
        **analysis,
    )


def analysis_of(entry: Mapping[str, Any], first: int) -> dict[str, Any]:
    """The fields of a request that a recorder adds to what was sent and answered."""
    tokens = mapping(entry.get("tokens"))
    return {
        "server": mapping(entry.get("server")),
        "runs": tuple(_runs(tokens.get("runs"), 2 * first)),
        "user_starts": tuple(sorted(_wholes(tokens.get("user_starts")))),
        "divergence": mapping(entry.get("parting")) or None,
        "seen": _seen(mapping(entry.get("seen")), first),
    }


def _with_answer(entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A line's request, and the line with the counts that other recorders store elsewhere.

    LiteLLM keeps the answer under `response` and the tools under `model_parameters`; a batch of
    OpenAI's has the request under `body`, and the answer under `response.body`.
    """
    request = mapping(entry.get("request") or entry.get("body"))
    request = request or {**mapping(entry.get("model_parameters")), **entry}
    answer = mapping(entry.get("response"))
    answer = mapping(answer.get("body")) or answer
    kept = {key: entry.get(key) or answer.get(key) for key in ("usage", "timings")}
    kept["usage"] = kept["usage"] or usage_of(answer) or usage_of(entry)
    if not kept["usage"]:
        kept["usage"] = mapping(entry.get("metadata")).get("usage_object")
    if not kept["usage"] and "prompt_tokens" in entry:
        kept["usage"] = {key: entry.get(key) for key in ("prompt_tokens", "completion_tokens")}
    return request, {**entry, **{key: value for key, value in kept.items() if value}}


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of a request, as the server reported them."""

    prompt: int | None
    cached: int | None
    processed: int | None
    generated: int | None


def counts_of(entry: Mapping[str, Any]) -> Counts:
    """Token counts in `usage` and `timings`, under the names of each API."""
    usage, timings = mapping(entry.get("usage")), mapping(entry.get("timings"))
    progress = mapping(entry.get("progress"))
    inner = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    details = mapping(inner)
    from_anthropic = whole(usage.get("cache_read_input_tokens"))
    cached = whole(
        timings.get("cache_n"),
        details.get("cached_tokens"),
        from_anthropic,
        progress.get("cache"),
        entry.get("cached"),
    )
    processed = whole(timings.get("prompt_n"))
    prompt = whole(usage.get("prompt_tokens"), progress.get("total"), entry.get("prompt_tokens"))
    given = whole(usage.get("input_tokens"))
    if prompt is None and "input_tokens_details" in usage:  # OpenAI's responses: the whole prompt
        prompt = given
    if prompt is None and given is not None:  # Anthropic's word for what was not reused
        prompt = (
            given + (from_anthropic or 0) + (whole(usage.get("cache_creation_input_tokens")) or 0)
        )
    if prompt is None and cached is not None and processed is not None:
        prompt = cached + processed
    prompt = prompt or None  # no prompt has 0 tokens: some servers write 0 where they do not count
    if prompt is not None and cached is not None:
        processed = prompt - cached if processed is None and cached <= prompt else processed
    generated = whole(
        usage.get("completion_tokens"), usage.get("output_tokens"), timings.get("predicted_n")
    )
    return Counts(prompt, cached, processed, generated)


def _hashed(parts: object) -> Iterator[Segment]:
    for item in parts if isinstance(parts, list) else []:
        part = mapping(item)
        hashes = part.get("hashes", [])
        yield Segment(
            part=str(part.get("part", "prompt"))[:100],
            role=str(part.get("role", ""))[:100],
            kind=str(part.get("kind", "text"))[:100],
            text="",
            hashes=tuple(map(str, hashes)) if isinstance(hashes, list) else (),
            characters=whole(part.get("characters")) or 0,
        )


def _reply(parts: object) -> Iterator[Segment]:
    if isinstance(parts, str):
        parts = [{"kind": "text", "text": parts}]
    for item in parts if isinstance(parts, list) else []:
        part = mapping(item)
        if isinstance(part.get("text"), str):
            kind = str(part.get("kind", "text"))[:100]
            yield Segment("reply", "assistant", kind, part["text"])
        else:
            yield from _hashed([part])


def _runs(runs: object, shift: int) -> Iterator[tuple[int, int, int]]:
    for run in runs if isinstance(runs, list) else []:
        numbers = _wholes(run)
        if len(numbers) == 3 and numbers[1] < numbers[2]:
            yield numbers[0] + shift, numbers[1], numbers[2]


def _wholes(values: object) -> list[int]:
    found = [whole(value) for value in values] if isinstance(values, list) else []
    return [message for message in found if message is not None]


def _seen(seen: Mapping[str, Any], first: int) -> tuple[int, int, int] | None:
    if not seen:
        return None
    numbers = [whole(seen.get(key)) for key in ("begins_like", "characters", "continues")]
    like, equal, continues = (-1 if number is None else number for number in numbers)
    like, continues = (place + first if place >= 0 else -1 for place in (like, continues))
    return like, max(0, equal), continues


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e15 else None


def _moment(value: object) -> float | None:
    if not isinstance(value, str):
        return _number(value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
