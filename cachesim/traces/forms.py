"""Traces of other forms than blocks, runs and events, as requests.

    agents    {"block_size": 64, "requests": [{"t": 0.0, "in": 700, "out": 9, "hash_ids": [1, 2]}]}
    chats     {"conversation": [{"role": "user", "content": "..."}, ...]}, "messages", "history"
    calls     {"body": {"messages": [...]}, "response": {...}}, or the body alone
    tokens    {"prompt_token_ids": [1, 2], "output_token_ids": [3]}, SGLang's "input_ids"
    log       Request cmpl-1 details: prompt: 'x', prompt_token_ids: [1, 2], ...    (vLLM's, DEBUG)
    lengths   TIMESTAMP,ContextTokens,GeneratedTokens    (CSV: Azure, BurstGPT)

A text is cut into pieces of four characters, which stand for a token each: texts with a common
beginning have a common prefix of as many tokens. Where token ids are known, these are the tokens.

A conversation becomes a request for each reply:

    turn 1   | system | user |                        reply: assistant
    turn 2   | system | user | assistant | user |     reply: assistant
"""

import csv
import heapq
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Final, TypeAlias

from cachesim.engines.tokens import Run, get_common_prefix
from cachesim.traces.reading import (
    MOST_TOKENS,
    Chains,
    Clock,
    Line,
    TraceError,
    TraceRequest,
    is_batch,
    joined,
    json_of,
    lines_of,
    open_trace,
    parquet_rows,
    text_lines,
    time_of,
    whole,
)
from cachesim.typed import Json, JsonObject

Reader: TypeAlias = Callable[[Iterator[Line]], Iterator[TraceRequest]]
Opened: TypeAlias = tuple[int, Iterator[TraceRequest]]

CHARACTERS: Final = 4
"""Characters of a token."""

CHARACTERS_ASSUMED: Final = (
    f"the trace has texts: a token for every {CHARACTERS} characters is assumed, and one for a role"
)
TOGETHER: Final = "the conversations have no common clock: all start at once"
ALONE: Final = "the trace has lengths only: no two prompts have a token in common"

PIECE: Final = 16
"""Tokens that are compared at once."""

SIBLINGS: Final = 8
"""Most pieces that a new one is compared with, token by token."""


@dataclass(slots=True)
class Texts:
    """Texts as runs: equal beginnings of two texts are the same tokens.

    known     | t0 0..16 | t0 16..32 |
    another   | t0 0..16 | t0 16..21 | t1 0..11 |      its second piece differs in the sixth token
    """

    _next: int = 0
    _after: dict[tuple[int, tuple[Hashable, ...]], tuple[int, tuple[Run, ...]]] = field(
        default_factory=dict
    )
    _siblings: dict[int, list[tuple[Hashable, ...]]] = field(default_factory=dict)

    def runs(self, tokens: Sequence[Hashable]) -> tuple[Run, ...]:
        """The runs of a text from its beginning."""
        runs: list[Run] = []
        node, text = 0, -1
        for at in range(0, len(tokens), PIECE):
            piece = tuple(tokens[at : at + PIECE])
            known = self._after.get((node, piece))
            if known is None:
                if text < 0:
                    self._next += 1
                    text = self._next - 1
                known = len(self._after) + 1, self._split(node, piece, text, at)
                self._after[node, piece] = known
                kept = self._siblings.setdefault(node, [])
                if len(kept) < SIBLINGS:
                    kept.append(piece)
            node, own = known
            runs += own
        return joined(runs)

    def _split(self, node: int, piece: tuple[Hashable, ...], text: int, at: int) -> tuple[Run, ...]:
        """A new piece: what it shares with a sibling, and tokens of its own."""
        shared = 0
        runs: tuple[Run, ...] = ()
        for other in self._siblings.get(node, ()):
            equal = get_common_prefix(piece, other)
            if equal > shared:
                shared, runs = equal, self._after[node, other][1]
        left = list[Run]()
        for name, first, last in runs:
            taken = min(last - first, shared - sum(b - a for _, a, b in left))
            if taken > 0:
                left.append((name, first, first + taken))
        own = [(text, at + shared, at + len(piece))] if shared < len(piece) else []
        return (*left, *own)


def tokens_of_text(text: str) -> list[Hashable]:
    """Pieces of a text that stand for a token each."""
    return [text[at : at + CHARACTERS] for at in range(0, len(text), CHARACTERS)]


@dataclass(slots=True)
class Requests:
    """Requests from prompts and replies in tokens."""

    assumed: str = ""
    chains: Chains = field(default_factory=Chains)
    texts: Texts = field(default_factory=Texts)

    def of(
        self, prompt: Sequence[Run], reply: Sequence[Run], time: float, *, silent: bool
    ) -> TraceRequest:
        more = {"silent": silent, "seconds": True, "assumed": self.assumed}
        request = self.chains.request(joined(prompt), joined(reply), time, **more)
        return request if request.output else replace(request, output=1)

    def of_messages(
        self, messages: Sequence["Message"], reply: str, time: float, *, silent: bool
    ) -> TraceRequest:
        """The request of a chat; the reply's role ends its prompt."""
        runs = list[Run]()
        for message in messages:
            runs += self._head(message.role)
            runs += self.texts.runs(tokens_of_text(message.text))
        runs += self._head("assistant")
        return self.of(runs, self.texts.runs(tokens_of_text(reply)), time, silent=silent)

    def _head(self, role: str) -> tuple[Run, ...]:
        return self.texts.runs([(role,)])


# -- chats and calls -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a chat."""

    role: str
    text: str
    time: float | None = None


ROLES: Final[Mapping[str, str]] = {
    "human": "user",
    "gpt": "assistant",
    "ai": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "model": "assistant",
}
"""Names of roles in other data sets."""

CHATS: Final = ("conversation", "conversations", "messages", "history", "trajectory")
"""Keys of a list of messages, the most telling first."""


def messages_of(value: Json, place: str) -> list[Message]:
    """The messages of a list, in any of the usual spellings."""
    if not isinstance(value, list) or not value:
        msg = f"{place} is no list of messages; write [{{'role': 'user', 'content': '...'}}, ...]"
        raise TraceError(msg)
    return [_message(message, place) for message in value]


def _message(value: Json, place: str) -> Message:
    if not isinstance(value, dict):
        msg = f"{place} has {str(value)[:40]}; write {{'role': 'user', 'content': '...'}}"
        raise TraceError(msg)
    role = value.get("role", value.get("from"))
    if not isinstance(role, str):
        msg = f"{place} has a message without a role; write {{'role': 'user', 'content': '...'}}"
        raise TraceError(msg)
    parts = [
        text_of(value[key])
        for key in ("system_prompt", "content", "value", "text")
        if value.get(key) is not None
    ]
    calls = value.get("tool_calls")
    parts += [json.dumps(calls, ensure_ascii=False)] if calls else []
    return Message(ROLES.get(role, role), "".join(parts), instant(value.get("timestamp")))


def text_of(value: Json) -> str:
    """The text of a message's content: a text, or parts of which some are texts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(text_of(part) for part in value)
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def instant(value: Json) -> float | None:
    """Milliseconds of a date, or of a number of seconds; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float) and 0 <= value < 1 << 40:
        return 1000.0 * value
    if isinstance(value, datetime):
        return 1000.0 * value.replace(tzinfo=None).timestamp()
    if isinstance(value, str):
        try:  # Azure's dates have seven digits of a second
            text = re.sub(r"(\.\d{6})\d+", r"\1", value.strip()).replace("Z", "+00:00")
            return 1000.0 * datetime.fromisoformat(text).timestamp()
        except ValueError:
            return None
    return None


def chat_requests(requests: Requests, value: JsonObject, place: str) -> Iterator[TraceRequest]:
    """A request for each reply of a conversation; its last message may be a reply or not."""
    key = next(key for key in CHATS if isinstance(value.get(key), list))
    messages = messages_of(value[key], f"{place}: {key}")
    start = instant(value.get("timestamp")) or 0.0
    replies = [at for at, message in enumerate(messages) if message.role == "assistant" and at]
    for at in replies:
        each = messages[at]
        time = start if each.time is None else each.time
        yield requests.of_messages(messages[:at], each.text, time, silent=False)
    if not replies or replies[-1] != len(messages) - 1:
        last = messages[-1].time
        yield requests.of_messages(messages, "", start if last is None else last, silent=True)


def call_requests(requests: Requests, value: JsonObject, place: str) -> Iterator[TraceRequest]:
    """The request of a logged call of OpenAI's API, with its response if logged."""
    body = next((value[key] for key in BODIES if isinstance(value.get(key), dict)), value)
    answer = value.get("response")
    answer = answer.get("body", answer) if isinstance(answer, dict) else {}
    time = next((at for key in TIMES if (at := instant(value.get(key))) is not None), 0.0)
    reply, known = _reply(answer if isinstance(answer, dict) else {}), bool(answer)
    if isinstance(body.get("messages"), list):
        messages = messages_of(body["messages"], f"{place}: messages")
        if body.get("tools"):  # a template writes them first
            tools = json.dumps(body["tools"], ensure_ascii=False)
            messages = [Message("system", tools), *messages]
        yield requests.of_messages(messages, reply, time, silent=not known)
        return
    prompt = body.get("prompt", body.get("input", body.get("text")))
    if not isinstance(prompt, str):
        raise TraceError(f"{place}: the call has neither messages nor a prompt that is a text")
    runs = requests.texts.runs(tokens_of_text(prompt))
    if not runs:
        raise TraceError(f"{place}: the prompt is empty")
    yield requests.of(runs, requests.texts.runs(tokens_of_text(reply)), time, silent=not known)


BODIES: Final = ("body", "request", "payload", "kwargs")
TIMES: Final = ("timestamp", "time", "created_at", "start_time", "ts", "created")


def _reply(answer: JsonObject) -> str:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(first, dict):
        return ""
    message = first.get("message")
    if isinstance(message, dict):
        calls = message.get("tool_calls")
        return text_of(message.get("content") or "") + (
            json.dumps(calls, ensure_ascii=False) if calls else ""
        )
    return text_of(first.get("text") or "")


def is_call(value: JsonObject) -> bool:
    """True for a call: its messages end with what is to be answered, or it has a body."""
    if any(isinstance(value.get(key), dict) for key in BODIES):
        return True
    messages = value.get("messages")
    if isinstance(messages, list):
        last = messages[-1] if messages else None
        role = last.get("role") if isinstance(last, dict) else None
        return role not in {"assistant", "model"}
    return isinstance(value.get("prompt", value.get("text")), str)


def read_chats(lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """Chats, trajectories of SWE-agent, and calls, one in each line."""
    requests = Requests(CHARACTERS_ASSUMED)
    for value, place in lines:
        if not isinstance(value, dict):
            msg = f"{place}: not an object; write a conversation or a request in each line"
            raise TraceError(msg)
        steps = value.get("trajectory")
        if isinstance(steps, list) and any(
            (isinstance(step, dict) and ("query" in step or "action" in step)) for step in steps
        ):
            yield from _steps(requests, steps, value, place)
        elif not is_call(value) and any(isinstance(value.get(key), list) for key in CHATS):
            yield from chat_requests(requests, value, place)
        else:
            yield from call_requests(requests, value, place)


def _steps(
    requests: Requests, steps: Sequence[Json], value: JsonObject, place: str
) -> Iterator[TraceRequest]:
    """SWE-agent's steps, each with the messages that were sent; of older ones the history."""
    if all(isinstance(step, dict) and isinstance(step.get("query"), list) for step in steps):
        for at, step in enumerate(steps):
            messages = messages_of(step["query"], f"{place}: trajectory[{at}].query")
            reply = text_of(step.get("response") or "")
            yield requests.of_messages(messages, reply, 0.0, silent=False)
    elif isinstance(value.get("history"), list):
        yield from chat_requests(requests, {"history": value["history"]}, place)
    else:
        raise TraceError(f"{place}: the trajectory has neither queries nor a history of messages")


# -- token ids -------------------------------------------------------------------------------------

PROMPTS: Final = ("prompt_token_ids", "input_ids", "token_ids", "prompt_ids", "origin_input_ids")
REPLIES: Final = ("output_token_ids", "output_ids", "completion_token_ids")


def token_ids(value: Json, keys: Sequence[str], place: str) -> list[int] | None:
    """The token ids under the first of some keys."""
    key = next((key for key in keys if value.get(key) is not None), None)
    if key is None:
        return None
    ids = value[key]
    if isinstance(ids, list) and "..." in ids:
        msg = f"{place}: the log has a part of {key}; start SGLang with `--log-requests-level 3`"
        raise TraceError(msg)
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise TraceError(f"{place}: {key} is {str(ids)[:40]}; write a list of whole numbers")
    return ids


def read_tokens(lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """Dumped requests with token ids, and SGLang's request log in JSON.

    A request of the log stands where it was received, with the reply of the line that ends it.
    """
    requests = Requests()
    waiting: dict[str, tuple[JsonObject, float, JsonObject | None]] = {}
    for value, place in lines:
        if not isinstance(value, dict):
            raise TraceError(f"{place}: not an object; write prompt_token_ids in each line")
        time = instant(value.get("timestamp")) or 0.0
        event, name = value.get("event"), str(value.get("rid"))
        if event is None:
            yield _of_tokens(requests, value, value, time, place)
        elif event == RECEIVED:
            waiting[name] = value.get("obj", {}), time, None
        elif event == FINISHED:
            body, began, _ = waiting.get(name, (value.get("obj", {}), time, None))
            waiting[name] = body, began, value.get("out") or {}
        while waiting and (first := next(iter(waiting.values())))[2] is not None:
            del waiting[next(iter(waiting))]
            yield _of_tokens(requests, first[0], first[2], first[1], place)
    for body, began, answer in waiting.values():
        yield _of_tokens(requests, body, answer or {}, began, "a request that did not end")


RECEIVED, FINISHED = "request.received", "request.finished"

LOGGED: Final = re.compile(
    r'^(?:\[[^\]]{1,60}\] )?(?=\{"timestamp": "[^"]{1,40}", "event": "request\.)'
)
"""The time before a request in JSON in SGLang's log, where there is one."""


def read_sglang_log(lines: Iterable[tuple[str, str]]) -> Iterator[TraceRequest]:
    """The requests of a log of SGLang with `--log-requests-format json`; see `RequestLogger`."""
    logged = ((LOGGED.search(text), text, place) for text, place in lines)
    return read_tokens(
        (json_of(text[at.end() :], place), place) for at, text, place in logged if at
    )


ASKED: Final = re.compile(
    r".{0,300}?Request (\S{1,300}) details: prompt: .*prompt_token_ids: \[([\d, ]*)\]"
)
ANSWERED: Final = re.compile(
    r".{0,300}?Generated response (\S{1,300})( \(streaming delta\))?.* details: output_token_ids: "
    r"(?:\[([\d, ]*)\]|None)"
)
"""Lines of vLLM's log with `--enable-log-requests` and the level DEBUG."""

BEGUN: Final = re.compile(r"\s*(\{|\[\s*($|[\[{\"]|-?[\d.]+,))")
"""The beginning of JSON; lines of logs begin with `[transformers]`, `[2026-11-29` or `[8081]`."""


def read_vllm_log(lines: Iterable[tuple[str, str]]) -> Iterator[TraceRequest]:
    """The requests of a log of vLLM, where they were received; see `RequestLogger`."""
    requests = Requests()
    waiting: dict[str, tuple[list[int], list[int] | None]] = {}
    deltas: dict[str, list[int]] = {}  # of answers that are streamed: their last line has no ids

    def of(prompt: list[int], reply: list[int] | None) -> TraceRequest:
        runs, answer = requests.texts.runs(prompt), requests.texts.runs(reply or ())
        return requests.of(runs, answer, 0.0, silent=not reply)

    def received(name: str) -> str | None:
        """The name of a prompt: completions append its number in the request (`cmpl-a-0`)."""
        parts = (name for name, (_, reply) in waiting.items() if reply is None)
        if name in waiting:  # a further choice (`n`) is none of the prompt's reply
            return name if waiting[name][1] is None else None
        return next((part for part in parts if part.rpartition("-")[0] == name), None)

    for text, place in lines:
        if match := ASKED.match(text):
            waiting[match[1]] = _ids_in(match[2], place), None
        elif (match := ANSWERED.match(text)) and (name := received(match[1])):
            reply = deltas.setdefault(name, [])
            reply += _ids_in(match[3] or "", place)
            if not match[2]:
                waiting[name] = waiting[name][0], deltas.pop(name)
        while waiting and (first := next(iter(waiting.values())))[1] is not None:
            del waiting[next(iter(waiting))]
            if first[0]:
                yield of(*first)
    yield from (
        of(prompt, reply or deltas.get(name)) for name, (prompt, reply) in waiting.items() if prompt
    )


def _ids_in(text: str, place: str) -> list[int]:
    """Token ids between commas; no tokenizer has one of more than 18 digits."""
    parts = [part for part in map(str.strip, text.split(",")) if part]
    wrong = next(
        (part for part in parts if not (part.isascii() and part.isdigit()) or len(part) > 18), None
    )
    if wrong is not None:
        raise TraceError(f"{place}: {wrong[:20]!r} is no token id; write whole numbers")
    return list(map(int, parts))


def _of_tokens(
    requests: Requests, body: JsonObject, answer: JsonObject, time: float, place: str
) -> TraceRequest:
    ids, reply = token_ids(body, PROMPTS, place), token_ids(answer, REPLIES, place)
    texts = requests.texts
    prompt = texts.runs(ids) if ids else texts.runs(tokens_of_text(text_of(body.get("text") or "")))
    if not prompt:
        raise TraceError(f"{place}: no prompt; write its token ids as {' or '.join(PROMPTS[:2])}")
    known = reply is not None or isinstance(answer.get("text"), str)
    tokens = reply if reply is not None else tokens_of_text(text_of(answer.get("text") or ""))
    return requests.of(
        prompt,
        texts.runs(tokens if answer is not body or reply else ()),
        time,
        silent=not known or not tokens,
    )


# -- agents with sub-agents ------------------------------------------------------------------------


def read_agents(lines: Iterator[Line]) -> Iterator[TraceRequest]:
    """Weka's and AgentX's traces: a conversation in each line, of which all start at once.

    Hash ids number whole blocks; what remains of a prompt is a block of its own. Times of a
    sub-agent's requests count from its start, or from the conversation's where they say so.
    """
    numbers, fresh = dict[Hashable, int](), count()
    streams = []
    for at, (value, place) in enumerate(lines):
        if not isinstance(value, dict) or not isinstance(value.get("requests"), list):
            raise TraceError(f"{place}: requests is no list; write a conversation in each line")
        size = whole(value.get("block_size"), 1, MOST_TOKENS, f"{place}: block_size")
        scope = "" if value.get("hash_id_scope") == "global" else at
        stream = []
        for request, time in _flattened(value["requests"], place):
            where = f"{place}: a request at {time:g} s"
            length = whole(request.get("in"), 1, MOST_TOKENS, f"{where}: in")
            output = whole(request.get("out"), 0, MOST_TOKENS, f"{where}: out")
            ids = request.get("hash_ids")
            if not isinstance(ids, list):
                raise TraceError(f"{where}: hash_ids is no list of whole numbers")
            blocks = []
            for block_hash in ids[: -(-length // size)]:
                key = (scope, whole(block_hash, 0, 1 << 36, f"{where}: hash_ids"))
                if key not in numbers:
                    numbers[key] = next(fresh)
                blocks.append(numbers[key])
            while len(blocks) < -(-length // size):
                blocks.append(next(fresh))
            stream.append(
                TraceRequest(
                    time=1000 * time,
                    length=length,
                    output=output,
                    blocks=tuple(blocks),
                    seconds=True,
                    assumed=TOGETHER,
                )
            )
        stream.sort(key=lambda trace_request: trace_request.time)
        streams.append(stream)
    yield from heapq.merge(*streams, key=lambda request: request.time)


def _flattened(requests: Sequence[Json], place: str) -> Iterator[tuple[JsonObject, float]]:
    for request in requests:
        if not isinstance(request, dict):
            raise TraceError(f"{place}: requests has {str(request)[:40]}; write an object for each")
        time = time_of(request.get("t"), f"{place}: t")
        inner = request.get("requests")
        if inner is None:
            yield request, time
            continue
        if not isinstance(inner, list):
            raise TraceError(f"{place}: a sub-agent's requests is no list")
        nested = list(_flattened(inner, place))
        start = 0.0 if nested and nested[0][1] >= time > 0 else time
        yield from ((request, start + at) for request, at in nested)


# -- lengths only ----------------------------------------------------------------------------------

COLUMNS: Final = (
    ("timestamp", ("timestamp", "arrived_at", "arrival_time")),
    ("input", ("contexttokens", "request tokens", "num_prefill_tokens", "input_length")),
    ("output", ("generatedtokens", "response tokens", "num_decode_tokens", "output_length")),
)
"""Columns of tables without hashes: Azure's, BurstGPT's, vidur's."""


def columns_of(head: str) -> dict[str, int] | None:
    """The places of the columns in a table's head; None if it is no such table."""
    names = [part.strip().strip('"').lower() for part in head.split(",")]
    columns = {
        key: next((names.index(name) for name in known if name in names), -1)
        for key, known in COLUMNS
    }
    return None if min(columns.values()) < 0 else columns


def read_lengths(
    rows: Iterable[tuple[Sequence[str], str]], columns: Mapping[str, int]
) -> Iterator[TraceRequest]:
    """Requests of which only lengths are known: no two have a token in common."""
    fresh, start = count(), None
    for row, place in rows:
        cells = [row[at].strip() if at < len(row) else "" for at in columns.values()]
        try:
            length, output = (int(float(cell)) for cell in cells[1:])
        except (ValueError, OverflowError):
            msg = f"{place}: {', '.join(cells[1:])[:40]!r} are no two numbers of tokens"
            raise TraceError(msg) from None
        time = instant(_number(cells[0]))
        if time is None:
            raise TraceError(f"{place}: timestamp is {cells[0][:40]!r}; write seconds or a date")
        start = time if start is None else start
        if length < 1:
            continue  # BurstGPT has failed requests of no tokens
        length = whole(length, 1, MOST_TOKENS, f"{place}: tokens of the prompt")
        yield TraceRequest(
            time=max(0.0, time - start),
            length=length,
            output=whole(output, 0, MOST_TOKENS, f"{place}: tokens of the reply"),
            blocks=tuple(next(fresh) for _ in range(-(-length // LENGTHS))),
            seconds=True,
            assumed=ALONE,
        )


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def reader_of(value: Json) -> Reader | None:
    """The reader of a form, by its first value."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("requests"), list) and "block_size" in value:
        return read_agents
    if any(value.get(key) is not None for key in PROMPTS) or value.get("event") in EVENTS:
        return read_tokens
    if any(isinstance(value.get(key), list) for key in CHATS) or is_call(value):
        return read_chats
    return None


EVENTS: Final = (RECEIVED, FINISHED)


def open_form(
    path: Path,
    unit: int = 0,
    *,
    name: str = "",
    clock: Clock | None = None,
    rank: int | None = None,
) -> Opened:
    """A trace's block size and its requests, in any form; see `open_trace`."""
    name = name or str(path)
    open_file = opened(path, name)
    if open_file is None:
        return open_trace(path, unit, name=name, clock=clock, rank=rank)
    if rank is not None or clock is not None or unit:
        flag = "--rank" if rank is not None else "--timestamps" if clock else "--unit"
        msg = f"{name}: {flag} is for blocks and events, and this form says it itself; leave it out"
        raise TraceError(msg)
    return open_file


def opened(path: Path, name: str) -> Opened | None:
    """The block size and the requests of a file of these forms; None if it is of another."""
    if not path.is_dir() and parquet_rows(path, name) is None:
        lossy = partial(text_lines, path, name, errors="replace")  # a log has parts of characters
        head = next((text for text, _ in lossy() if text.strip()), "")
        columns = columns_of(head)
        if columns is not None:
            if "hash_ids" in head.lower():
                msg = f"{name}:1: the column hash_ids is read from JSON Lines and Parquet, not CSV"
                raise TraceError(msg)
            rows = islice(text_lines(path, name), 1, None)
            cells = ((next(csv.reader([text])), at) for text, at in rows if text.strip())
            return LENGTHS, read_lengths(cells, columns)
        if not BEGUN.match(head):
            for shape, read in ((ASKED, read_vllm_log), (LOGGED, read_sglang_log)):
                if any(shape.search(text) for text, _ in lossy()):
                    return 1, read(lossy())
            return None
    lines = lines_of(path, name)
    first = next(lines, None)
    reader = None if first is None or is_batch(first[0]) else reader_of(first[0])
    if first is None or reader is None:
        return None
    size = 1
    if reader is read_agents:
        size = whole(first[0]["block_size"], 1, MOST_TOKENS, f"{first[1]}: block_size")
    return size, reader(chain([first], lines))


LENGTHS: Final = 16
"""Tokens of the blocks of requests of which only lengths are known."""
