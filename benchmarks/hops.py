"""The server and proxy beside a measured recorder, each in a process of its own.

python -m benchmarks.hops server       answers at once; with `?much` it streams 2 GB
python -m benchmarks.hops bare URL     aiohttp that passes on and does nothing else: the floor
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import ClientSession, TCPConnector, web
from yarl import URL

STREAMED: Final = 2 << 30
PIECE: Final = 32_000
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
NOT_THERE: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
LEFT_OUT: Final = ("host", "connection", "transfer-encoding")


@contextmanager
def started(*words: str) -> Iterator[str]:
    """One of them at work; its address."""
    command = [sys.executable, "-m", "benchmarks.hops", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline() if process.stdout else 0)}"
    finally:
        process.kill()
        process.communicate()


async def server() -> None:
    """Serve until the process is ended."""
    listening = await asyncio.start_server(_answers, "127.0.0.1", 0, limit=1 << 24)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


async def _answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection with short replies, or with a very long one."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"(?i)content-length: *(\d+)", head)
            if found is None:
                writer.write(NOT_THERE)
                continue
            await reader.readexactly(int(found.group(1)))
            much = b"?much" in head.split(b"\r\n")[0]
            event = {"choices": [{"index": 0, "delta": {"content": "x" * (PIECE if much else 5)}}]}
            data = b"data: " + json.dumps(event).encode() + b"\n\n"
            piece = f"{len(data):x}\r\n".encode() + data + b"\r\n"
            writer.write(HEAD)
            for _ in range(STREAMED // PIECE + 2 if much else 3):
                writer.write(piece)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()


async def bare(upstream: str) -> None:
    """Pass everything on, each request over a connection of its own, and do nothing else."""
    connector = TCPConnector(limit=0, force_close=True)
    async with ClientSession(connector=connector, auto_decompress=False) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            async with session.request(
                request.method,
                URL(upstream + request.raw_path, encoded=True),
                headers={k: v for k, v in request.headers.items() if k.lower() not in LEFT_OUT},
                data=request.content.iter_any() if request.body_exists else None,
            ) as answer:
                theirs = {k: v for k, v in answer.headers.items() if k.lower() not in LEFT_OUT}
                response = web.StreamResponse(status=answer.status, headers=theirs)
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(server() if sys.argv[1] == "server" else bare(sys.argv[2]))
