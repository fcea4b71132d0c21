"""HTTP with one server, bounded in requests, tokens, time and rate; each fault is one sentence."""

import http.client
import io
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cachesim.errors import CachesimError
from cachesim.printable import printable
from cachesim.typed import Json, JsonObject, mapping

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LONGEST_ANSWER: Final = 16 << 20
"""Bytes of an answer that is read."""

DEEPEST: Final = 64
"""Nested lists and objects of an answer: those of the known servers have less than ten."""

LAST_SECONDS: Final = 2.0
"""Seconds after the end of a run for what it leaves behind, such as the conversations in slots."""


class FaultError(CachesimError):
    """An exchange without a usable answer."""


class StatusError(FaultError):
    """An answer with status 500 or above."""


class BudgetError(CachesimError):
    """The requests, tokens or minutes of the run are used up, or the server allows no more."""


DENIALS: Final = (401, 403, 429)
"""Statuses of a key that is missing or wrong, and of a rate limit: no fault of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a run."""

    minutes: float = 5.0
    requests: int = 20_000
    tokens: int = 20_000_000
    rate: float = 0.0  # requests a second; 0: as fast as they are answered
    in_flight: int = 8
    patience: float = 60.0  # seconds without an answer after which a request counts as hanging


@dataclass(slots=True)
class Meter:
    """Requests and tokens sent so far, to all servers of a run."""

    limits: Limits
    requests: int = 0
    tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    _lock: Lock = field(default_factory=Lock)
    _next: float = 0.0

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> int:
        """Requests that may still be sent."""
        return self.limits.requests - self.requests

    @property
    def ends(self) -> float:
        """The end of the run, on the monotonic clock."""
        return self.started + 60 * self.limits.minutes

    def over(self) -> BudgetError:
        """The error of a run whose minutes are over."""
        return BudgetError(f"the {self.limits.minutes:g} minutes are over")

    def check_time(self) -> None:
        """Raise BudgetError once the minutes are over."""
        if time.monotonic() > self.ends:
            raise self.over()

    def wait(self, seconds: float) -> None:
        """Sleep, at most until the minutes are over."""
        time.sleep(max(0.0, min(seconds, self.ends - time.monotonic() + 0.001)))
        self.check_time()

    def take(self, tokens: int) -> None:
        """Count a request before it is sent, and wait for the rate limit."""
        with self._lock:
            limits = self.limits
            self.check_time()
            if self.requests >= limits.requests:
                raise BudgetError(f"the {limits.requests} requests are used up")
            if self.tokens + tokens > limits.tokens:
                raise BudgetError(f"the {limits.tokens} tokens are used up")
            self.requests += 1
            self.tokens += tokens
            now = time.monotonic()
            pause = max(0.0, self._next - now)
            if limits.rate:
                self._next = max(now, self._next) + 1 / limits.rate
        self.wait(pause)


class _Timed(io.RawIOBase):
    """What a socket receives until a moment, however often and however little a server sends.

    http.client's own timeout starts anew with each byte, so that one byte every half second, or
    `100 Continue` without an end, would hold a request for ever.
    """

    def __init__(self, inner: socket.socket, ends: float) -> None:
        self._socket, self._ends = inner, ends

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        self._socket.settimeout(left_until(self._ends))
        return self._socket.recv_into(buffer)


def left_until(ends: float) -> float:
    """Seconds until a moment; TimeoutError after it."""
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def answer_on(
    link: http.client.HTTPConnection, method: str, ends: float
) -> http.client.HTTPResponse:
    """The head of the answer to a request that was sent; its body may take until then, too."""
    response = link.response_class(link.sock, method=method)
    response.fp.close()
    response.fp = io.BufferedReader(_Timed(link.sock, ends))
    response.begin()
    return response


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that may have changed the server's cache."""

    path: str
    content: str
    beside: bool  # sent while the one before was being answered
    leaves: float = 0.0  # seconds after which the client disconnected; 0: it stayed


class Connection:
    """Requests to one address, each on a connection of its own."""

    def __init__(self, url: str, meter: Meter, key: str = "") -> None:
        self.url = url
        self.key = key  # the environment variable that holds it
        self.denied = ""  # how a request was denied
        self.last = 0.0  # the moment until which what the run leaves behind is removed
        self.meter = meter
        self.sent: list[Sent] = []  # since the server was started, or the run began
        self._parts = urlsplit(url)
        self._places = BoundedSemaphore(meter.limits.in_flight)
        self._open: set[http.client.HTTPConnection] = set()

    def query(self, method: str, path: str, body: Json = None, *, seconds: float = 0) -> Json:
        """The JSON of an answer with status 200; None for any other status, or none at all."""
        with suppress(FaultError):
            status, answer = self.exchange(method, path, body, seconds=seconds or 10)
            return answer if status == 200 else None
        return None

    def text(self, path: str) -> str:
        """An answer that is no JSON, as that of `/metrics`; nothing for a status other than 200."""
        with suppress(FaultError), self._sent("GET", path, None, 10) as (link, ends):
            response = answer_on(link, "GET", ends)
            data = response.read(LONGEST_ANSWER)
            return data.decode("utf-8", "replace") if response.status == 200 else ""
        return ""

    def post(self, path: str, body: JsonObject, tokens: int) -> tuple[int, Json]:
        """Send a counted request; its status and its JSON."""
        self.meter.take(tokens)
        return self.exchange("POST", path, body)

    def exchange(
        self, method: str, path: str, body: Json = None, *, seconds: float = 0
    ) -> tuple[int, Json]:
        """A request and its whole answer."""
        with self._sent(method, path, body, seconds) as (link, ends):
            response = answer_on(link, method, ends)
            data = response.read(LONGEST_ANSWER)
            if response.length:
                raise http.client.IncompleteRead(data, response.length)
        found = _read(response.status, data, self.url)
        if response.status in DENIALS:
            self.denied = refusal(response.status, found)
        return response.status, found

    def abandon(self, path: str, body: JsonObject, tokens: int, seconds: float) -> None:
        """Send a request, and disconnect before it is answered."""
        self.meter.take(tokens)
        with self._sent("POST", path, body, leaves=seconds):
            self.meter.wait(seconds)

    def close(self) -> None:
        """Close all open connections."""
        for link in tuple(self._open):
            if link.sock is not None:
                with suppress(OSError):
                    link.sock.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _sent(
        self, method: str, path: str, body: Json, seconds: float = 0, *, leaves: float = 0.0
    ) -> Iterator[tuple[http.client.HTTPConnection, float]]:
        """A connection on which a request was sent, and the moment until which it may take.

        What goes wrong on it is a fault; at the end of the run it is the end of the run.
        """
        seconds = seconds or self.meter.limits.patience
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self.key:
            headers["Authorization"] = f"Bearer {os.environ[self.key]}"
        with self._places:
            if not self.last:
                self.meter.check_time()
            ends = min(time.monotonic() + seconds, self.last or self.meter.ends)
            link = kind(self._parts.hostname or "", self._parts.port, timeout=seconds)
            if method == "POST":
                self.sent.append(Sent(path, content or "", bool(self._open), leaves))
            self._open.add(link)
            try:
                link.timeout = left_until(ends)
                link.connect()
                link.sock.settimeout(left_until(ends))
                link.request(method, f"{self._parts.path}{path}", content, headers)
                yield link, ends
            except (OSError, http.client.HTTPException) as error:
                if ends == self.meter.ends and isinstance(error, TimeoutError):
                    raise self.meter.over() from None
                raise fault_of(error, self.url, seconds) from None
            finally:
                link.close()
                self._open.discard(link)


def refusal(status: int, found: Json) -> str:
    """The sentence of an answer that is an error."""
    error = mapping(found).get("error", mapping(found).get("message", found))
    message = mapping(error).get("message", error)
    return f"refused with status {status}: {printable(str(message))[:160]}"


def fault_of(error: Exception, url: str, seconds: float) -> FaultError:
    """The fault of an exception of the connection."""
    if isinstance(error, TimeoutError):
        return FaultError(f"{url} gave no answer within {seconds:g} seconds")
    if isinstance(error, ConnectionRefusedError | socket.gaierror):
        return FaultError(f"{url} does not accept connections")
    if isinstance(error, http.client.IncompleteRead | http.client.BadStatusLine | ConnectionError):
        return FaultError(f"{url} closed the connection before its answer was whole")
    return FaultError(f"{url} cannot be reached: {printable(str(error))[:120]}")


def _read(status: int, data: bytes, url: str) -> Json:
    if status >= 500:
        message = printable(data.decode("utf-8", "replace"))[:120]
        raise StatusError(f"{url} answered with status {status}: {message}")
    try:
        found = json.loads(data or b"null")
        if not _is_deep(found):
            return found
    except (ValueError, RecursionError):
        pass
    if status != 200:
        return None
    message = printable(data.decode("utf-8", "replace"))[:60]
    raise FaultError(f"{url} answered no JSON: {message}")


def _is_deep(value: Json) -> bool:
    """True for more nested lists and objects than any known server writes."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for value in level
            if isinstance(value, list | dict)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True
