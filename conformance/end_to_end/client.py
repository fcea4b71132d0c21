"""A client of an HTTP server: one call, its answer, and the counts of tokens in it."""

import http.client
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

SECONDS: Final = 30
"""Until an unanswered call is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    path: str
    body: Mapping[str, Any]
    leave_after: int | None = None
    """Events of a stream that are read before the client disconnects; None: all."""
    delay: float = 0.0
    """Seconds between the start of a group and this call."""


@dataclass(slots=True)
class Answer:
    """The counts of one request, as its client read them; None where the answer had none."""

    path: str
    group: int
    status: int = 0
    prompt: int | None = None
    cached: int | None = None
    processed: int | None = None
    slot: int | None = None
    cancelled: bool = False
    text: str = ""
    prompt_ms: float | None = None  # as the server's log has it too
    total: int | None = None  # of the prompt, where the server streamed its progress
    likely: tuple[Mapping[str, float], ...] = ()  # logarithms of probabilities, if asked for them

    @property
    def was_launched(self) -> bool:
        """True where a slot has certainly processed it."""
        return self.cached is not None

    def as_dict(self) -> dict[str, Any]:
        """A line of the truth that is kept beside a log."""
        names = ("path", "group", "status", "prompt", "cached", "processed", "slot", "cancelled")
        return {name: getattr(self, name) for name in (*names, "prompt_ms")}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Answer":
        return cls(**plain)


def post(address: str, call: Call, group: int = 0) -> Answer:
    """Send one request and read its answer, or leave in the middle of it."""
    time.sleep(call.delay)
    answer = Answer(path=call.path, group=group)
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=SECONDS)
    headers = {"Content-Type": "application/json"}
    with suppress(OSError, http.client.HTTPException):
        connection.request("POST", call.path, json.dumps(call.body).encode(), headers)
        response = connection.getresponse()
        answer.status = response.status
        if call.body.get("stream"):
            _read_events(response, call, answer)
        else:
            _read(json.loads(response.read() or b"null"), answer)
    connection.close()
    return answer


def _read_events(response: http.client.HTTPResponse, call: Call, answer: Answer) -> None:
    events = 0
    for line in response:
        data = line.strip().removeprefix(b"data:").strip()
        if not data.startswith(b"{"):
            continue
        _read(json.loads(data), answer)
        events += 1
        if events == call.leave_after:
            answer.cancelled = True
            answer.prompt, answer.processed = answer.total, None  # timings so far are not whole
            return


def _read(event: Any, answer: Answer) -> None:
    """Counts of a whole answer, or of one event of a stream; later ones replace earlier ones."""
    if not isinstance(event, dict):
        return
    answer.text += _text(event)
    answer.likely = answer.likely or _likely(event)
    if isinstance(event.get("id_slot"), int) and event["id_slot"] >= 0:
        answer.slot = event["id_slot"]
    message = event.get("message")
    usage = event.get("usage") or (message.get("usage") if isinstance(message, dict) else None)
    _read_usage(usage or {}, answer)
    progress = event.get("prompt_progress")
    if progress and progress.get("processed"):
        answer.prompt = answer.total = progress["total"]
        answer.cached = progress["cache"]
    timings = event.get("timings") or {}
    if timings.get("predicted_n") and "cache_n" in timings:
        answer.cached, answer.processed = timings["cache_n"], timings["prompt_n"]
        answer.prompt_ms = timings.get("prompt_ms")
        answer.prompt = timings["cache_n"] + timings["prompt_n"]


def _read_usage(usage: Mapping[str, Any], answer: Answer) -> None:
    if "prompt_tokens" in usage:
        answer.prompt = usage["prompt_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        answer.cached = details.get("cached_tokens", answer.cached)
    if "cache_read_input_tokens" in usage:
        answer.cached = usage["cache_read_input_tokens"]
        answer.prompt = usage["input_tokens"] + answer.cached


def _text(event: Mapping[str, Any]) -> str:
    """The reply in it: of llama-server, of OpenAI's completions and chats, of Anthropic's."""
    if isinstance(event.get("content"), str):
        return str(event["content"])
    if isinstance(event.get("content"), list):
        return "".join(str(each.get("text", "")) for each in event["content"])
    if isinstance(event.get("delta"), dict):
        return str(event["delta"].get("text", ""))
    for choice in event.get("choices") or ():
        said = choice.get("delta") or choice.get("message") or choice
        return str(said.get("content") or said.get("text") or "")
    return ""


def _likely(event: Mapping[str, Any]) -> tuple[Mapping[str, float], ...]:
    """The likeliest tokens at each place of a whole reply, the chosen one first."""
    choices = event.get("choices") or [{}]
    places = event.get("completion_probabilities")
    places = places or (choices[0].get("logprobs") or {}).get("content") or ()
    return tuple(
        {each["token"]: each["logprob"] for each in (place, *place["top_logprobs"])}
        for place in places
    )
