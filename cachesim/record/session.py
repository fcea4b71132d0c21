"""Finished exchanges: a line in the file, a cause in the live view.

    proxy (event loop) ── exchange ──> queue ──> recording (a thread) ──> file
                                                     └──> analysis (a thread) ──> file, view

The end of an answer waits for its line. An analysis that takes longer than `ANALYSIS` does not hold
the line up: what it finds becomes a further line, which adds to that one. Threads are given the
processor for a moment at a time, so that answers that are passing never wait long for them.
"""

import hashlib
import json
import secrets
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from cachesim.record.exchange import MOVED, ZLIB_OR_GZIP, AnswerFields, Exchange
from cachesim.record.plan import RecordFile
from cachesim.record.tokenizer import ServerTokenizer
from cachesim.typed import mapping
from cachesim.why.explain.live import Live
from cachesim.why.read.dump import LONGEST_REQUEST, Recorded, acted, recorded_from
from cachesim.why.read.segments import (
    BLOCK,
    PLACES,
    Segment,
    is_lm_studio,
    messages_of,
    segments_of,
)
from cachesim.why.read.slot_actions import SlotAction

# -- hashes of texts -------------------------------------------------------------------------------

#     text      [ 64 characters ][ 64 characters ][ the rest ]
#     hashes     h1 = H(key, "", 1st)  h2 = H(key, h1, 2nd)  h3 = H(key, h2, rest)
#
# The key is drawn when the recorder starts, is never written, and goes with it: nobody can try out
# texts against the hashes afterwards. Each hash depends on all text of its part before it.

DIGEST: Final = 6
"""Bytes of a hash, large enough against collisions of a million million texts."""

MOST_KNOWN: Final = 64 << 20
"""Most characters of parts with cached hashes, as clients repeat them."""


class Hasher:
    """Hasher of prompt parts with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: dict[str, tuple[str, ...]] = {}
        self._size = 0

    def hashed(self, segment: Segment) -> Segment:
        """A part of a prompt without its text."""
        text = segment.text
        known = self._known.get(text)
        if known is None:
            if self._size + len(text) > MOST_KNOWN:
                self._known.clear()
                self._size = 0
            known = self._known[text] = self._computed(text)
            self._size += len(text)
        return replace(segment, text="", hashes=known, characters=len(text))

    def name(self, text: str) -> str:
        """Pseudonym of a name, constant for one key."""
        return self._computed(text)[-1] if text else ""

    def _computed(self, text: str) -> tuple[str, ...]:
        found = []
        before = b""
        for at in range(0, len(text), BLOCK):
            block = text[at : at + BLOCK].encode("utf-8", "surrogatepass")
            before = hashlib.blake2b(before + block, key=self._key, digest_size=DIGEST).digest()
            found.append(before.hex())
        return tuple(found)


# -- a session -------------------------------------------------------------------------------------


SAMPLING: Final = (
    "cache_prompt", "id_slot", "n", "n_cmpl", "n_predict", "max_tokens", "max_completion_tokens",
    "n_cache_reuse", "n_keep", "n_discard", "t_max_predict_ms", "temperature", "top_p", "top_k",
    "min_p", "seed", "speculative.n_max", "ignore_eos", "enable_thinking", "reasoning_effort",
    "add_generation_prompt", "continue_final_message", "parallel_tool_calls", "num_ctx",
    "num_keep", "num_predict", "think", "max_new_tokens", "max_length", "max_context_length",
    "max_output_tokens", "context_length",
)  # fmt: skip
"""Fields of a request that affect the cache or the sampling."""

KEPT_TEXT: Final = (*PLACES, "model", "stream", "tool_choice", "input_extra")
"""Further fields of a request that `--keep-text` keeps."""

TOOK: Final = (
    "prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "cache_n", "draft_n",
    "draft_n_accepted",
)  # fmt: skip
LONGEST_WORD: Final = 200


def request_in(exchange: Exchange) -> tuple[dict[str, Any], str]:
    """The request as JSON, or the reason why it is not available."""
    body = exchange.body
    if not body.is_whole:
        return {}, f"the request is longer than {LONGEST_REQUEST >> 20} MiB"
    if not body.ended:
        return {}, "the request was not forwarded whole"
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


def reply_of(fields: AnswerFields) -> tuple[Segment, ...]:
    """Reply in the parts repeated by the next request."""
    parts = (("reasoning", fields.reasoning), ("text", fields.text), ("tool call", fields.calls))
    return tuple(
        Segment("reply", "assistant", kind, "".join(texts)) for kind, texts in parts if any(texts)
    )


def entry_of(exchange: Exchange, request: Mapping[str, Any], problem: str) -> dict[str, Any]:
    """The line without the texts."""
    fields = exchange.answer.fields
    entry: dict[str, Any] = {
        "format": 1,
        "number": exchange.number,
        "time": datetime.fromtimestamp(exchange.began, UTC).isoformat(timespec="microseconds"),
        "client": exchange.client,
        "path": exchange.path,
        "model": short(request.get("model") or fields.facts.get("model")),
        "stream": request.get("stream") is True,
        "status": exchange.status,
        "bytes": {"request": exchange.body.size, "answer": exchange.answer.size},
        "sampling": _sampling_of(request),
        "usage": numbers_of(fields.usage),
        "timings": numbers_of({key: fields.timings.get(key) for key in TOOK}),
        "first_byte_seconds": rounded(exchange.first_byte),
        "seconds": rounded(exchange.seconds),
        "cancelled": exchange.cancelled,
    }
    if fields.progress:
        entry["progress"] = numbers_of(fields.progress)
    slot = fields.facts.get("id_slot")
    if isinstance(slot, int):
        entry["slot"] = slot
    if isinstance(fields.facts.get("system_fingerprint"), str):
        entry["fingerprint"] = short(fields.facts["system_fingerprint"])
    for key, why in (
        ("error", fields.error or exchange.broken),
        ("unread", problem or exchange.answer.unread),
    ):
        if why:
            entry[key] = short(why)
    return entry


def action_entry(
    exchange: Exchange, called: tuple[str, int], request: Mapping[str, Any], hasher: Hasher | None
) -> dict[str, Any]:
    """The line of a call of `/slots/N`: a file's name is hashed like texts."""
    action, slot = called
    name = str(request.get("filename") or "")[:LONGEST_WORD]
    facts = exchange.answer.fields.facts
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
    """A line with the prompt and the reply: hashed, or as text without a hasher."""
    if hasher is None:
        kept = {key: request[key] for key in (*KEPT_TEXT, *SAMPLING) if key in request}
        parts = [{"kind": segment.kind, "text": segment.text} for segment in reply]
        return {**entry, "request": kept, "reply": parts}
    return {
        **entry,
        "segments": [shown(hasher.hashed(segment)) for segment in segments_of(request)],
        "reply": [shown(hasher.hashed(segment)) for segment in reply],
    }


def with_own_texts(
    entry: Mapping[str, Any], request: Mapping[str, Any], reply: tuple[Segment, ...]
) -> Recorded:
    """The request for the comparison, with texts in memory only."""
    found = recorded_from({**entry, "request": dict(request)}, line=0, number=0)
    return replace(found, number=int(entry["number"]), reply=reply)


def shown(segment: Segment) -> dict[str, Any]:
    """A part of a prompt as JSON."""
    return {
        "part": segment.part,
        "role": segment.role,
        "kind": segment.kind,
        "characters": segment.length,
        "hashes": list(segment.hashes),
    }


def _sampling_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that affect a cache: numbers, booleans or short words."""
    nested = ("chat_template_kwargs", "options", "sampling_params")
    inner = {key: value for name in nested for key, value in mapping(request.get(name)).items()}
    fields = {**inner, **request}
    return {
        key: fields[key] if not isinstance(fields[key], str) else short(fields[key])[:20]
        for key in SAMPLING
        if isinstance(fields.get(key), int | float | str)
    }


def numbers_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers alone, nested ones included."""
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
    """Seconds, rounded, fine enough for an order."""
    return None if seconds is None else round(seconds, 6)


def short(value: object) -> str:
    """A word of the client or the server, of bounded length."""
    return str(value)[:LONGEST_WORD] if isinstance(value, str | int) else ""


MOST_WAITING: Final = 256 << 20
"""Most bytes of exchanges waiting to be written."""

ANALYSIS: Final = 0.1
"""Seconds for which a line waits for its analysis."""

MOST_STORED: Final = 256
"""Most conversations of LM Studio that may be continued."""

POSITIONS: Final = ("kind", "part", "where", "character", "equal_characters")
"""Fields of a divergence that quote nothing of the prompt."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the live view."""

    number: int
    client: str
    cancelled: bool
    why: str
    prompt: int | None = None
    cached: int | None = None
    again: int | None = None
    how: str = ""  # how `prompt` and `cached` are known; empty where there is no prompt


@dataclass(frozen=True, slots=True)
class Late:
    """An analysis that its line did not wait for."""

    number: int
    analysis: Future[dict[str, Any]]


class Session:
    """Recorder of exchanges in a thread of its own."""

    def __init__(
        self,
        file: RecordFile,
        *,
        keep_text: bool,
        tokenizer: ServerTokenizer | None,
        live: Live,
        view: Callable[[Row], None],
        complain: Callable[[str], None],
    ) -> None:
        self._file = file
        self._hasher = None if keep_text else Hasher(secrets.token_bytes(32))
        self._tokenizer = tokenizer
        self.live = live
        self._view = view
        self._complain = complain
        self.without_prompt: Counter[str] = Counter()  # requests, by why none could be read
        self._stored: dict[str, list[Any]] = {}  # messages, by the name of LM Studio's answer
        self._actions: list[SlotAction] = []  # since the last request with a prompt
        self._queue: SimpleQueue[Exchange | Late | None] = SimpleQueue()
        self._number = 0  # of the next request
        self._analyst = ThreadPoolExecutor(1, "analysis")
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    def take(self, exchange: Exchange) -> None:
        """Queue a finished exchange."""
        with self._lock:
            self._waiting += exchange.body.size
        self._queue.put(exchange)

    @property
    def is_behind(self) -> bool:
        return self._waiting > MOST_WAITING

    def close(self) -> None:
        """Write the remaining lines."""
        self._queue.put(None)
        self._thread.join()
        self._analyst.shutdown()
        self._queue.put(None)
        self._work()  # what the last analyses found
        self._file.close()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Late):
                self._add(item)
                continue
            try:
                self._write(item)
            except Exception as error:  # noqa: BLE001 - requests are forwarded after any error
                self._complain(  # its text may quote the prompt
                    f"request {item.number} could not be recorded: {type(error).__name__}"
                )
            if item.on_disk is not None:
                item.on_disk()
            with self._lock:
                self._waiting -= item.body.size

    def _write(self, exchange: Exchange) -> None:
        fields = exchange.answer.close()
        exchange.cancelled = exchange.cancelled and not fields.ended
        request, problem = request_in(exchange)
        exchange.number = self._number
        self._number += 1
        if exchange.action is not None:
            self._write_action(exchange, exchange.action, request)
            return
        request = self._whole(exchange, request)
        entry = entry_of(exchange, request, problem)
        reply = reply_of(fields)
        self._store(exchange, request, reply)
        analysis: Future[dict[str, Any]] | None = None
        if not problem:
            try:
                with_own_texts(entry, request, reply)
                actions = tuple(self._actions)
                analysis = self._analyst.submit(
                    self._analysed, exchange, dict(entry), request, reply, actions
                )
                self._actions.clear()
                entry = with_texts(entry, request, reply, self._hasher)
            except ValueError as error:  # no prompt in it
                entry["unread"] = str(error)[:100]
        if "segments" not in entry and "request" not in entry:
            entry["segments"] = []
            self.without_prompt[str(entry.get("unread"))] += 1
        if analysis is None:
            self._keep(entry)
            return
        try:
            entry |= analysis.result(ANALYSIS)
        except TimeoutError:
            self._keep(entry)
            late = partial(Late, exchange.number)
            analysis.add_done_callback(lambda found: self._queue.put(late(found)))
        except Exception as error:  # noqa: BLE001 - the line is kept without it
            self._keep(entry)
            self._not_analysed(exchange.number, error)
        else:
            self._keep(entry)

    def _add(self, late: "Late") -> None:
        """Write what a line could not wait for."""
        try:
            self._keep({"format": 1, "number": late.number, "adds": late.analysis.result()})
        except Exception as error:  # noqa: BLE001 - the line is kept without it
            self._not_analysed(late.number, error)

    def _not_analysed(self, number: int, error: Exception) -> None:
        """Say that an analysis failed; its text may quote the prompt."""
        self._complain(f"request {number} could not be analysed: {type(error).__name__}")

    def _write_action(
        self, exchange: Exchange, called: tuple[str, int], request: Mapping[str, Any]
    ) -> None:
        """Write a slot's save, restore or erasure, before the next request."""
        entry = action_entry(exchange, called, request, self._hasher)
        action = acted(entry, number=exchange.number)
        self._actions.append(action)
        self._keep(entry)
        self._analyst.submit(self._view, row_of(exchange, action.sentence))

    def _whole(self, exchange: Exchange, request: dict[str, Any]) -> dict[str, Any]:
        if not is_lm_studio(exchange.path):
            return request
        before = request.get("previous_response_id")
        earlier = self._stored.get(str(before)) if before else []
        if earlier is None:
            return request  # its beginning was not recorded
        rest = {key: value for key, value in request.items() if key != "previous_response_id"}
        return messages_of(rest, earlier)

    def _store(
        self, exchange: Exchange, request: Mapping[str, Any], reply: tuple[Segment, ...]
    ) -> None:
        name = exchange.answer.fields.facts.get("response_id")
        if name is None or "messages" not in request:
            return
        keys = {"text": "content", "reasoning": "reasoning_content"}
        answer = {keys[segment.kind]: segment.text for segment in reply if segment.kind in keys}
        self._stored[str(name)] = [*request["messages"], {"role": "assistant", **answer}]
        if len(self._stored) > MOST_STORED:
            del self._stored[next(iter(self._stored))]

    def _keep(self, entry: Mapping[str, Any]) -> None:
        was_well = not self._file.problem
        if not self._file.write(entry) and was_well:
            self._complain(
                f"RECORDING STOPPED: {self._file.path}: {self._file.problem}; "
                f"{self._file.lines} requests are in it. Requests still pass through."
            )

    def _analysed(
        self,
        exchange: Exchange,
        entry: dict[str, Any],
        request: dict[str, Any],
        reply: tuple[Any, ...],
        actions: tuple[SlotAction, ...],
    ) -> dict[str, Any]:
        """What the line says beside the request and its answer; the live view gets a row."""
        facts = {} if self._tokenizer is None else dict(self._tokenizer.properties())
        about = self.live.about
        given = {"profile": about.profile, "options": dict(about.options)}
        server = facts | {key: value for key, value in given.items() if value}
        added: dict[str, Any] = {"server": server}
        entry["server"] = server
        own = with_own_texts(entry, request, reply)
        tokens = (
            None
            if self._tokenizer is None or exchange.broken or not own.was_read
            else self._tokenizer.tokens_of(exchange.path, request, own)
        )
        if tokens is not None:
            added["tokens"] = asdict(tokens)
            own = replace(own, runs=tokens.runs, user_starts=tokens.user_starts)
        found = self.live.add(replace(own, actions=actions))
        added["seen"] = {
            "begins_like": found["begins_like"],
            "characters": found["equal_characters"],
            "continues": found["continues"],
        }
        if found["parting"] is not None:
            added["parting"] = {
                key: value
                for key, value in found["parting"].items()
                if self._hasher is None or key in POSITIONS
            }
        lines = () if found["parting"] is None else found["parting"]["lines"]
        row = row_of(exchange, "\n".join((found["why"], *lines)))
        numbers = {"prompt": found["prompt_tokens"], "cached": own.cached, "again": found["again"]}
        self._view(replace(row, how=found["how"], **numbers))
        return added


def row_of(exchange: Exchange, why: str) -> Row:
    """Row of the live view without numbers."""
    return Row(
        number=exchange.number, client=exchange.client, cancelled=exchange.cancelled, why=why
    )
