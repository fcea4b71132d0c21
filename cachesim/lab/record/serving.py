"""The proxy's life: it listens, and stops cleanly on Ctrl-C or SIGTERM."""

import asyncio
import logging
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from aiohttp import web

from cachesim.errors import InputError
from cachesim.lab.record.exchange import Exchange
from cachesim.lab.record.plan import Plan
from cachesim.lab.record.proxy import LONGEST_HEADER, Proxy
from cachesim.lab.record.session import Session

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
        self.counts: Counter[str] = Counter()
        for name in ("aiohttp", "asyncio"):
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Count an error by its class; ignore other records."""
        kind = record.exc_info[0] if record.exc_info else None
        if kind is not None:
            self.counts[kind.__name__] += 1


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
        yield _address_of(runner)
    finally:
        await runner.cleanup()
        for session in sessions:
            await asyncio.to_thread(session.close)
        await proxy.close()


def _address_of(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in str(host) else f"http://{host}:{port}"
