"""What the recorder costs: the time to the first byte with and without it, and memory.

    client ──────────────────> server       without
    client ──> recorder ─────> server       with; the two take turns, request by request

The server is one that answers at once, so that nothing hides the delay, and the real llama-server
with a toy model where it can be set up. Memory is looked at while 1 GB streams through.
"""

import asyncio
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

REQUESTS: Final = 1_000
TEXT: Final = 20_000
"""Characters of a chat's system prompt: some 5,000 tokens."""

STREAMED: Final = 1 << 30
PIECE: Final = 32_000
CHAT: Final = "/v1/chat/completions"
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def run(out: Console) -> None:
    """Print the table of delays, and what 1 GB does to memory."""
    table = Table(title=f"time to the first byte over {REQUESTS:,} requests each, ms")
    for name in ("server", "without: median", "p99", "with: median", "p99", "added: median", "p99"):
        table.add_column(name, justify="left" if name == "server" else "right")
    with at_once() as url, recorder(url) as (port, process):
        table.add_row("answers at once", *delays(url, port))
        before, highest, seconds = stream(port, process.pid)
    real = real_server()
    if real is not None:
        with real as url, recorder(url) as (port, _):
            table.add_row("llama-server b11549, toy", *delays(url, port))
    out.print(table)
    out.print(
        f"1 GB streamed through in {seconds:.0f} s: memory {before >> 20} MB before it, "
        f"{highest >> 20} MB at most while it went through"
    )


def delays(url: str, port: int) -> list[str]:
    """Median and 99th percentile without and with the recorder, and what it adds."""
    direct = urlsplit(url).port or 80
    without: list[float] = []
    through: list[float] = []
    for number in range(REQUESTS + 20):
        body = chat(number)
        for where, into in ((direct, without), (port, through)):
            taken = first_byte(where, body)
            if number >= 20:  # the first ones load what is loaded late
                into.append(taken * 1000)
    cells = []
    for values in (without, through):
        cells += [statistics.median(values), statistics.quantiles(values, n=100)[98]]
    cells += [cells[2] - cells[0], cells[3] - cells[1]]
    return [f"{each:.2f}" for each in cells]


def chat(number: int) -> bytes:
    """A request as an agent sends it: a long prompt, something new at its end."""
    messages = [
        {"role": "system", "content": "w1 w2 w3 " * (TEXT // 9)},
        {"role": "user", "content": f"w{number}"},
    ]
    body = {"messages": messages, "stream": True, "max_tokens": 2, "temperature": 0}
    return json.dumps(body).encode()


def first_byte(port: int, body: bytes) -> float:
    """Seconds from the call to the first byte of the answer's body."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head.encode() + body)
        data = b""
        while not data.partition(b"\r\n\r\n")[2]:
            piece = client.recv(1 << 16)
            if not piece:
                msg = f"no answer came: {data[:100]!r}"
                raise RuntimeError(msg)
            data += piece
        taken = time.perf_counter() - begun
        while client.recv(1 << 16):
            pass
    return taken


def stream(port: int, pid: int) -> tuple[int, int, float]:
    """Have 1 GB of a reply stream through: memory before, at most, and the seconds it took."""
    body = json.dumps({"messages": [{"role": "user", "content": "much"}], "stream": True}).encode()
    head = f"POST {CHAT}?much HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    before = highest = memory_of(pid)
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(head.encode() + body)
        seen = looked = 0
        while seen < STREAMED:
            data = client.recv(1 << 18)
            if not data:
                msg = f"the stream ended after {seen:,} bytes"
                raise RuntimeError(msg)
            seen += len(data)
            if seen - looked > 1 << 24:
                looked = seen
                highest = max(highest, memory_of(pid))
    return before, highest, time.perf_counter() - begun


def memory_of(pid: int) -> int:
    """Bytes that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found.group(1)) << 10 if found else 0


@contextmanager
def recorder(url: str) -> Iterator[tuple[int, Any]]:
    """The recorder before a server: its port and its process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cachesim", "record", "--upstream", url, "--quiet"]
        command += ["--listen", "127.0.0.1:0", "-o", f"{folder}/recorded.jsonl"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = process.stderr.readline() if process.stderr else ""
        try:
            yield int(line.partition(" passes on")[0].rpartition(":")[2]), process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


@contextmanager
def at_once() -> Iterator[str]:
    """A server in a process of its own that answers at once."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.recorder"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline() if process.stdout else 0)}"
    finally:
        process.kill()
        process.communicate()


def real_server() -> Any | None:  # noqa: ANN401 - a context manager, or none
    """The real llama-server, where it can be installed."""
    from cachesim.real.environment import EnvironmentUnavailableError  # noqa: PLC0415
    from cachesim.real.llama_cpp.server import environment_for  # noqa: PLC0415

    try:
        environment_for("b11549").ready()
    except EnvironmentUnavailableError:
        return None
    return started()


@contextmanager
def started() -> Iterator[str]:
    """The real llama-server with a toy model."""
    from cachesim.model.presets import preset  # noqa: PLC0415 - only where it is installed
    from cachesim.real.llama_cpp.gguf import write_model  # noqa: PLC0415
    from cachesim.real.llama_cpp.server import RealServer  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder, RealServer("b11549") as real:
        model = Path(folder) / "dense.gguf"
        write_model(preset("dense"), model)
        with real.started({"ctx_size": 65_536, "parallel": 1}, model) as server:
            yield server.address


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request with a short reply, or with a very long one."""
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: *(\d+)", head)
    size = int(found.group(1)) if found else 0
    await reader.readexactly(size)
    much = b"?much" in head.split(b"\r\n")[0]
    text = "x" * (PIECE if much else 5)
    event = {"choices": [{"index": 0, "delta": {"content": text}}]}
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    piece = f"{len(data):x}\r\n".encode() + data + b"\r\n"
    try:
        writer.write(HEAD)
        for _ in range(2 * STREAMED // PIECE if much else 3):
            writer.write(piece)
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def serve() -> None:
    """Serve until the process is ended."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
