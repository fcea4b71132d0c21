"""LMCache's Redis connector behind the protocol; starts a server on the loopback, and ends it."""

import asyncio
import contextlib
import logging
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from lmcache.v1.storage_backend.connector.redis_connector import RedisConnector

from cachesim.testing import Server
from examples.findings import check
from examples.lmcache.cache import CHUNK, Tagged

PLACES: list[Path] = []
PORT: list[int] = []


@contextlib.contextmanager
def server() -> Iterator[None]:
    """A Redis server without files."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("SKIPPED: there is no redis-server here; install it, as with: apt install redis")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        PORT.append(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        given = ["--port", str(PORT[0]), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = subprocess.Popen([program, *given], stdout=subprocess.DEVNULL)
        try:
            for _ in range(100):
                with contextlib.suppress(redis.ConnectionError):
                    redis.Redis(port=PORT[0]).ping()
                    break
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(10)


class Waiting:
    """A connector whose calls are waited for, as `RemoteBackend` waits for them."""

    def __init__(self, cache: Tagged) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.connector: Any = self.waited(self.made(cache))

    async def made(self, cache: Tagged) -> RedisConnector:
        return RedisConnector(f"redis://127.0.0.1:{PORT[0]}", self.loop, cache.memory)

    async def ended(self) -> None:
        """`close` as it is meant: that of 0.5.6 blocks the loop which it waits for, for ever."""
        await self.connector.pq_executor.shutdown_async(wait=False)
        await self.connector.connection.aclose()

    def waited(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(20)

    def contains(self, key: Any, *, pin: bool = False) -> bool:
        return bool(self.waited(self.connector.exists(key)))

    def submit_put_task(self, key: Any, held: Any) -> None:
        held.ref_count_up()
        self.waited(self.connector.put(key, held))
        held.ref_count_down()

    def get_blocking(self, key: Any) -> Any:
        return self.waited(self.connector.get(key))

    def unpin(self, key: Any) -> None:
        """Do nothing: a remote store cannot be pinned."""


class Redis(Tagged):
    """Chunks in Redis; a client that is opened for the same folder finds them again."""

    def __init__(self, server: Server, place: Path) -> None:
        super().__init__(server, place)
        if place not in PLACES:
            redis.Redis(port=PORT[0]).flushdb()
            PLACES[:] = [place]
        self.backend = Waiting(self)

    @property
    def evict(self) -> Any:  # the connector has none
        raise AttributeError

    def close(self) -> None:
        self.backend.waited(self.backend.ended())
        self.backend.loop.call_soon_threadsafe(self.backend.loop.stop)
        self.backend.thread.join()
        super().close()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    with server():
        for name, told in {
            "requests": {"varied": ("adapter", "image", "salt")},
            "servers": {"varied": ("model", "dtype")},
            "two clients": {"varied": (), "shared": True},
        }.items():
            check(f"LMCache {sys.argv[1]}, Redis, {name}", Redis, unit=CHUNK, examples=40, **told)
