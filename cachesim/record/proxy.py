"""The proxy: requests go to the server and answers come back unchanged.

A chunk of a body is forwarded before it is parsed; the end of an answer, once its line is on the
disk. A stream is parsed in a thread, 16 KiB of each stream in turn, so that one with many small
events slows nobody but its own client. A slow reader slows the server (`drain`), and a client that
leaves closes the connection to the server. It listens until Ctrl-C or SIGTERM.
"""

import asyncio
import itertools
import json
import logging
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from aiohttp import (
    ClientConnectionError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    web,
)
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from cachesim.errors import InputError
from cachesim.record.exchange import (
    AnswerReader,
    Body,
    Exchange,
    holds_prompt,
    path_kept,
    path_shown,
    slot_action,
)
from cachesim.record.plan import Plan
from cachesim.record.session import Session

HOP_BY_HOP: Final = frozenset(
    (
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
"""Headers of a connection, not of a message (RFC 9110, 7.6.1)."""

OURS: Final = frozenset(("host", "expect"))
"""Headers of a request that name the proxy, or that it handled itself."""

LONGEST_HEADER: Final = 1 << 16
MOST_PATHS, OTHER_PATHS = 50, "other paths"
SECONDS_TO_CONNECT: Final = 30
WAIT_SECONDS: Final = 0.05
POLL_SECONDS: Final = 0.25
MOST_POLLS: Final = 2
"""Polls of a closed connection after which its answer counts as broken."""
NAMES: Final = re.compile(r"[A-Za-z][\w .+-]{0,40}(/[\w.+-]{1,20})?")

Take = Callable[[Exchange], None]


class Proxy:
    """A proxy that calls `take` for each finished request with a prompt."""

    def __init__(self, upstream: str, take: Take, wait: Callable[[], bool]) -> None:
        self._upstream = upstream
        self._take = take
        self._wait = wait
        self._numbers = itertools.count()
        self._session: ClientSession | None = None
        self._theirs: WeakKeyDictionary[web.StreamResponse, Mapping[str, str]] = WeakKeyDictionary()
        self.skipped: Counter[str] = Counter()  # requests that hold no known prompt, by path
        self._parser = ThreadPoolExecutor(1, "parsing")

    def app(self) -> web.Application:
        """Web application of the recorder."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        app.on_response_prepare.append(self._only_theirs)
        return app

    @property
    def session(self) -> ClientSession:
        """The connection to the server.

        Every request has a connection of its own: one that was kept open may be closed by the
        server at the moment in which the next request is sent, and the client would get an error
        that is none of the server's. llama-server b11549 closes after each stream, and does not
        say so before: its answer promises `Keep-Alive: timeout=5, max=100`.
        """
        if self._session is None:
            self._session = ClientSession(
                connector=TCPConnector(limit=0, force_close=True),
                timeout=ClientTimeout(total=None, sock_connect=SECONDS_TO_CONNECT),
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                max_line_size=LONGEST_HEADER,
                max_field_size=LONGEST_HEADER,
            )
        return self._session

    async def close(self) -> None:
        """Close the connection to the server."""
        if self._session is not None:
            await self._session.close()
        self._parser.shutdown(wait=False, cancel_futures=True)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Forward a request and its answer."""
        if request.headers.get("Upgrade", "").lower() == "websocket":
            refused = refusal(501, "websocket_refused", "the recorder passes no WebSockets")
            refused.force_close()  # whether what follows is HTTP again is not for us to guess
            return refused
        exchange = None
        action = slot_action(request.method, request.path, request.query)
        if action is None and not holds_prompt(request.method, request.path):
            name = f"{request.method} {path_shown(request.path)}"
            if name not in self.skipped and len(self.skipped) >= MOST_PATHS:
                name = OTHER_PATHS
            self.skipped[name] += 1
        else:
            exchange = Exchange(
                number=next(self._numbers),
                path=path_kept(request.path),
                client=_client_of(request),
                began=time.time(),
                body=Body(
                    encoding=request.headers.get("Content-Encoding", ""),
                    ended=not request.body_exists,
                ),
                answer=AnswerReader(),
                action=action,
            )
        started = time.perf_counter()
        try:
            response = await self._pass(request, exchange, started)
            await self._written(exchange, started)
        except asyncio.CancelledError:
            if exchange is not None and exchange.seconds is None:
                exchange.cancelled = True
            raise
        finally:
            if exchange is not None and exchange.seconds is None:
                exchange.seconds = time.perf_counter() - started
                self._take(exchange)
        while self._wait():  # the answer is out; the next request on this connection waits
            await asyncio.sleep(WAIT_SECONDS)
        return response

    async def _pass(
        self, request: web.Request, exchange: Exchange | None, started: float
    ) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            async with self.session.request(
                request.method,
                self._target(request),
                headers=_passed_on(request.headers, OURS),
                data=_sent(request, exchange) if request.body_exists else None,
                allow_redirects=False,
            ) as answer:
                response = web.StreamResponse(
                    status=answer.status,
                    reason=answer.reason,
                    headers=_passed_on(answer.headers, frozenset()),
                )
                self._theirs[response] = answer.headers
                if exchange is not None:
                    exchange.status = answer.status
                    exchange.answer.opened(
                        answer.headers.get("Content-Type", ""),
                        answer.headers.get("Content-Encoding", ""),
                    )
                await response.prepare(request)
                with _watched(answer):
                    await self._pass_body(answer, response, exchange, started)
                await self._written(exchange, started)
                await response.write_eof()
                return response
        except (ClientError, ConnectionError) as error:
            if request.transport is None or request.transport.is_closing():
                raise asyncio.CancelledError from error  # the client disconnected
            why = _reason_of(error)
            if exchange is not None:
                exchange.broken = why
            if response is not None and response.prepared:
                if request.transport is not None:
                    request.transport.close()
                return response
            if exchange is not None:
                exchange.status = 502
            return refusal(502, "upstream_unreachable", f"{self._upstream}: {why}")

    async def _pass_body(
        self,
        answer: ClientResponse,
        response: web.StreamResponse,
        exchange: Exchange | None,
        started: float,
    ) -> None:
        """Forward an answer; the byte that its head announces as the last waits for the disk."""
        left = answer.content_length
        async for chunk in answer.content.iter_any():
            left = None if left is None else left - len(chunk)
            full = exchange is not None and exchange.add_chunk(chunk, time.perf_counter() - started)
            if left == 0:
                await self._written(exchange, started)
            await response.write(chunk)
            if full and exchange is not None:
                await self._parsed(exchange)

    async def _parsed(self, exchange: Exchange) -> None:
        """Parse what is held of a stream, after those parts of other streams that wait already."""
        loop = asyncio.get_running_loop()
        parsing = loop.run_in_executor(self._parser, exchange.answer.parse)
        try:
            await asyncio.shield(parsing)
        except asyncio.CancelledError:
            await parsing  # whoever takes the exchange now parses its rest
            raise

    async def _written(self, exchange: Exchange | None, started: float) -> None:
        """Hand a finished exchange over, once, and wait until its line is on the disk."""
        if exchange is None or exchange.seconds is not None:
            return
        loop = asyncio.get_running_loop()
        written = asyncio.Event()
        exchange.on_disk = partial(loop.call_soon_threadsafe, written.set)
        exchange.seconds = time.perf_counter() - started
        self._take(exchange)
        await written.wait()

    async def _only_theirs(self, _: web.Request, response: web.StreamResponse) -> None:
        """Remove headers that our HTTP client adds by itself."""
        theirs = self._theirs.get(response)
        for name in ("Content-Type", "Date", "Server"):
            if theirs is not None and name not in theirs:
                response.headers.popall(name, None)

    def _target(self, request: web.Request) -> URL:
        path = request.raw_path
        if not path.startswith("/"):  # the form that clients use with a proxy, and `*`
            path = request.rel_url.raw_path_qs if "://" in path else "/"
        return URL(f"{self._upstream}{path}", encoded=True)


async def _sent(request: web.Request, exchange: Exchange | None) -> AsyncIterator[bytes]:
    async for chunk in request.content.iter_any():
        yield chunk
        if exchange is not None:
            exchange.body.add(chunk)
    if exchange is not None:
        exchange.body.ended = True


@contextmanager
def _watched(answer: ClientResponse) -> Iterator[None]:
    """Detect an answer without an end: its bytes are not HTTP, and the connection is closed.

    aiohttp closes the connection where a chunk has no size, and does not inform the reader.
    """
    loop = asyncio.get_running_loop()
    polls = 0
    later: asyncio.TimerHandle

    def poll() -> None:
        nonlocal polls, later
        connection = answer.connection
        transport = None if connection is None else connection.transport
        closed = connection is not None and (transport is None or transport.is_closing())
        polls = polls + 1 if closed and not answer.content.is_eof() else 0
        if polls == MOST_POLLS:
            answer.content.set_exception(ClientPayloadError("what came is no HTTP"))
            answer.close()
            return
        later = loop.call_later(POLL_SECONDS, poll)

    later = loop.call_later(POLL_SECONDS, poll)
    try:
        yield
    finally:
        later.cancel()


def _passed_on(headers: CIMultiDictProxy[str], others: frozenset[str]) -> CIMultiDict[str]:
    named = {
        name.strip().lower()
        for value in headers.getall("Connection", ())
        for name in value.split(",")
    }
    kept: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        if name.lower() not in HOP_BY_HOP | others | named:
            kept.add(name, value)
    return kept


def refusal(status: int, kind: str, why: str) -> web.Response:
    """An answer of the proxy itself, in the shape of OpenAI's API."""
    error = {"message": f"cachesim record: {why}", "type": kind, "code": status}
    text = json.dumps({"error": error})
    return web.Response(status=status, text=text, content_type="application/json")


def _reason_of(error: Exception) -> str:
    if isinstance(error, ClientConnectionError):
        inner = getattr(error, "os_error", None)
        return str(getattr(inner, "strerror", None) or error or "the connection was closed")
    return f"the answer is no whole HTTP: {type(error).__name__}"


def _client_of(request: web.Request) -> str:
    """The client's program by its user agent, and its machine if remote."""
    found = NAMES.match(request.headers.get("User-Agent", ""))
    name = found.group() if found else "unknown"
    return name if request.remote in {None, "127.0.0.1", "::1"} else f"{name} at {request.remote}"


GRACE: Final = 0.2
"""Seconds for running answers after a stop."""

TURN: Final = 0.00005
"""Seconds for which the recording thread may hold the interpreter while answers are forwarded.

A request and its answer wake the passage some ten times. With 0.5 ms a recorder whose thread is
never idle added 0.6 ms to what a bare hop costs; with this, 0.1.
"""

Open: TypeAlias = Callable[[Proxy, asyncio.AbstractEventLoop], Session]


class Faults(logging.Handler):
    """Counter of the HTTP libraries' log records, which are not printed: errors quote headers with
    keys.
    """

    def __init__(self) -> None:
        super().__init__()
        self.malformed: Counter[str] = Counter()  # requests
        self.others: Counter[str] = Counter()
        for name in ("aiohttp", "asyncio"):
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Count an error by its class; ignore other records."""
        kind = record.exc_info[0] if record.exc_info else None
        if kind is not None:
            counts = self.malformed if issubclass(kind, HttpProcessingError) else self.others
            counts[kind.__name__] += 1


async def serve(plan: Plan, open_session: Open, listening: Callable[[str], None]) -> Faults:
    """Forward requests until a signal; running ones count as cancelled."""
    faults = Faults()
    sys.setswitchinterval(TURN)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running(plan, open_session) as place:
        listening(place)
        await stop.wait()
    return faults


@asynccontextmanager
async def running(plan: Plan, open_session: Open) -> AsyncIterator[str]:
    """A listening proxy; yields its address for clients."""
    sessions: list[Session] = []

    def take(exchange: Exchange) -> None:
        sessions[0].take(exchange)

    proxy = Proxy(plan.upstream, take, wait=lambda: sessions[0].is_behind)
    runner = web.AppRunner(
        proxy.app(),
        handle_signals=False,
        access_log=None,
        handler_cancellation=True,
        auto_decompress=False,
        max_line_size=LONGEST_HEADER,
        max_field_size=LONGEST_HEADER,
        shutdown_timeout=GRACE,
    )
    await runner.setup()
    site = web.TCPSite(runner, plan.host, plan.port)
    try:
        sessions.append(open_session(proxy, asyncio.get_running_loop()))
        try:
            await site.start()
        except OSError as error:
            msg = f"--listen {plan.host}:{plan.port}: {error.strerror or error}"
            raise InputError(msg) from None
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in str(host) else f"http://{host}:{port}"
    finally:
        await runner.cleanup()
        for session in sessions:
            await asyncio.to_thread(session.close)
        await proxy.close()
