"""HTTP with one server, bounded in requests, tokens, time and rate; each fault is one sentence."""

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Lock
from typing import Final
from urllib.parse import urlsplit

from cachesim.errors import CachesimError
from cachesim.printable import printable
from cachesim.typed import Json, JsonObject, mapping

LONGEST_ANSWER: Final = 64 << 20
"""Bytes of an answer that is read."""


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

    def take(self, tokens: int) -> None:
        """Count a request before it is sent, and wait for the rate limit."""
        with self._lock:
            limits = self.limits
            if self.seconds > 60 * limits.minutes:
                raise BudgetError(f"the {limits.minutes:g} minutes are over")
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
        time.sleep(pause)


class Connection:
    """Requests to one address, each on a connection of its own."""

    def __init__(self, url: str, meter: Meter, key: str = "") -> None:
        self.url = url
        self.key = key  # the environment variable that holds it
        self.denied = ""  # how a request was denied
        self.meter = meter
        self._parts = urlsplit(url)
        self._places = BoundedSemaphore(meter.limits.in_flight)
        self._open: set[http.client.HTTPConnection] = set()

    def query(self, method: str, path: str, body: Json = None, *, seconds: float = 0) -> Json:
        """The JSON of an answer with status 200; None for any other status, or none at all."""
        with suppress(FaultError):
            status, answer = self.exchange(method, path, body, seconds=seconds or 10)
            return answer if status == 200 else None
        return None

    def post(self, path: str, body: JsonObject, tokens: int) -> tuple[int, Json]:
        """Send a counted request; its status and its JSON."""
        self.meter.take(tokens)
        return self.exchange("POST", path, body)

    def exchange(
        self, method: str, path: str, body: Json = None, *, seconds: float = 0
    ) -> tuple[int, Json]:
        """A request and its whole answer."""
        with self._sent(method, path, body, seconds) as link:
            response = link.getresponse()
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
        with self._sent("POST", path, body):
            time.sleep(seconds)

    def close(self) -> None:
        """Close all open connections."""
        for link in tuple(self._open):
            if link.sock is not None:
                with suppress(OSError):
                    link.sock.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _sent(
        self, method: str, path: str, body: Json, seconds: float = 0
    ) -> Iterator[http.client.HTTPConnection]:
        """A connection on which a request was sent; what goes wrong on it is a fault."""
        seconds = seconds or self.meter.limits.patience
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self.key:
            headers["Authorization"] = f"Bearer {os.environ[self.key]}"
        with self._places:
            link = kind(self._parts.hostname or "", self._parts.port, timeout=seconds)
            self._open.add(link)
            try:
                link.request(method, f"{self._parts.path}{path}", content, headers)
                yield link
            except (OSError, http.client.HTTPException) as error:
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
        return json.loads(data or b"null")
    except ValueError:
        if status != 200:
            return None
        message = printable(data.decode("utf-8", "replace"))[:60]
        raise FaultError(f"{url} answered no JSON: {message}") from None
