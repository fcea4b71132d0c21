"""The recorder's cost: the time to the first byte with and without it, and memory.

    client ─────────────────────> server     direct
    client ──> bare hop ────────> server     the same HTTP library, and nothing but passing on
    client ──> recorder ────────> server     all take turns, request by request, in a drawn order

The first server answers at once, so that nothing hides the delay; the second is the real
llama-server with a toy model, where it can be set up. Each request has a connection of its own,
because llama-server ends one after each stream. Memory is looked at while 2 GB stream through.
"""

import json
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final
from urllib.parse import urlsplit

from rich.console import Console

from benchmarks.hops import STREAMED, started

REQUESTS: Final = 1_000
REAL: Final = 300
WARM: Final = 20
"""Requests that are not counted: the first ones load what is loaded late."""

TEXT: Final = 20_000
REAL_TEXT: Final = 250
"""Characters of a chat's system prompt; the toy model has a token for every few of them."""

PAUSE: Final = 0.04
"""Seconds between requests to the real server: the recorder asks it for the tokens of each."""

LOOK: Final = 1 << 24
CHAT: Final = "/v1/chat/completions"
ROW: Final = "{:<28}{:>9}{:>16}{:>9}   {}"


def run(out: Console) -> None:
    """Print a row as soon as it is measured, and the memory after 2 GB."""

    def row(*cells: str) -> None:
        out.print(ROW.format(*cells, *[""] * (5 - len(cells))).rstrip(), soft_wrap=True)
        out.file.flush()

    row("time to the first byte, ms", "median", "quartiles", "p99", "by pairs, median [95 %]")
    with started("server") as url, started("bare", url) as hop, recorder(url) as (ours, pid):
        row(f"answers at once, {REQUESTS:,} each:")
        for cells in compared(url, hop, ours, REQUESTS, TEXT, pause=0):
            row(*cells)
        for said in stream(ours, pid):
            row(said)
    with real_server() as url:
        if url is None:
            row("the real llama-server cannot be set up here")
            return
        with started("bare", url) as hop, recorder(url) as (ours, _):
            row(f"llama-server b11549, {REAL} each:")
            for cells in compared(url, hop, ours, REAL, REAL_TEXT, pause=PAUSE):
                row(*cells)


def compared(
    url: str, hop: str, ours: str, count: int, size: int, *, pause: float
) -> Iterator[tuple[str, ...]]:
    """The rows of one server."""
    places = {"direct": url, "bare aiohttp hop": hop, "recorder": ours}
    taken = times(places, count, size, pause=pause)
    for name in places:
        yield f"  {name}", *figures(taken[name]), difference(taken, name, "direct")
    yield "  recorder", "", "", "", difference(taken, "recorder", "bare aiohttp hop")


def figures(values: Sequence[float]) -> tuple[str, str, str]:
    """Median, quartiles and 99th percentile."""
    low, _, high = quantiles(values, n=4)
    return (
        f"{median(values):.2f}",
        f"{low:.2f} .. {high:.2f}",
        f"{quantiles(values, n=100)[98]:.2f}",
    )


def difference(taken: Mapping[str, Sequence[float]], one: str, other: str) -> str:
    """The median of the differences request by request, and its 95 % interval.

    The interval is that between two ranks of the sorted differences, without any assumption on
    how they are distributed.
    """
    if one == other:
        return ""
    apart = sorted(a - b for a, b in zip(taken[one], taken[other], strict=True))
    reach = round(1.96 * len(apart) ** 0.5 / 2)
    low, high = (apart[len(apart) // 2 + side * reach] for side in (-1, 1))
    return f"to {other}: {median(apart):+.2f} [{low:+.2f}, {high:+.2f}]"


def times(
    places: Mapping[str, str], count: int, size: int, *, pause: float
) -> dict[str, list[float]]:
    """Milliseconds to the first byte of each answer, all places by turns."""
    order = random.Random(0)
    clients = {name: HTTPConnection(urlsplit(url).netloc) for name, url in places.items()}
    taken: dict[str, list[float]] = {name: [] for name in places}
    for number in range(count + WARM):
        for name in order.sample(list(places), len(places)):
            time.sleep(pause)
            seconds = first_byte(clients[name], chat(f"{name} {number}", size))
            if number >= WARM:
                taken[name].append(seconds * 1000)
    return taken


def chat(first: str, size: int) -> bytes:
    """A request of a long prompt, of which nothing can be reused."""
    messages = [
        {"role": "system", "content": first + " w1 w2 w3" * (size // 9)},
        {"role": "user", "content": "w4"},
    ]
    body = {"messages": messages, "stream": True, "max_tokens": 2, "temperature": 0}
    return json.dumps(body).encode()


def first_byte(client: HTTPConnection, body: bytes) -> float:
    """Seconds from the call to the first byte of the answer's body."""
    begun = time.perf_counter()
    client.request("POST", CHAT, body, {"Content-Type": "application/json"})
    answer = client.getresponse()
    first = answer.read1(1)
    taken = time.perf_counter() - begun
    if answer.status != 200 or not first:
        raise RuntimeError(f"no answer came: {answer.status} {answer.read()[:100]!r}")
    answer.read()
    client.close()  # the next request opens another
    return taken


def stream(url: str, pid: int) -> Iterator[str]:
    """Have 2 GB of a reply stream through: the most memory before it, and in each half GB."""
    body = json.dumps({"messages": [{"role": "user", "content": "much"}], "stream": True}).encode()
    head = f"POST {CHAT}?much HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    yield f"memory before {STREAMED >> 30} GB stream through: {memory_of(pid) >> 20} MB"
    begun = time.perf_counter()
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 80)) as client:
        client.sendall(head.encode() + body)
        seen = looked = highest = 0
        while seen < STREAMED:
            data = client.recv(1 << 18)
            if not data:
                raise RuntimeError(f"the stream ended after {seen:,} bytes")
            half, seen = seen >> 29, seen + len(data)
            if seen - looked > LOOK:
                looked = seen
                highest = max(highest, memory_of(pid))
            if seen >> 29 > half:
                passed, seconds = (seen >> 29) / 2, time.perf_counter() - begun
                yield f"  up to {passed:g} GB, after {seconds:.0f} s: {highest >> 20} MB at most"
                highest = 0


def memory_of(pid: int) -> int:
    """Bytes that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found.group(1)) << 10 if found else 0


@contextmanager
def recorder(url: str) -> Iterator[tuple[str, int]]:
    """The recorder before a server: its address and its process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cachesim", "record", "--upstream", url, "--quiet"]
        command += ["--listen", "127.0.0.1:0", "-o", f"{folder}/recorded.jsonl"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = process.stderr.readline() if process.stderr else ""
        try:
            yield line.partition(" passes on")[0], process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


@contextmanager
def real_server() -> Iterator[str | None]:
    """The real llama-server with a toy model; None where it cannot be installed."""
    from cachesim.model.presets import preset
    from cachesim.prove.environment import EnvironmentUnavailableError
    from cachesim.prove.llama_cpp.gguf import write_model
    from cachesim.prove.llama_cpp.server import RealServer, environment_for

    try:
        environment_for("b11549").ready()
    except EnvironmentUnavailableError:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, RealServer("b11549") as real:
        model = Path(folder) / "dense.gguf"
        write_model(preset("dense"), model)
        options: dict[str, Any] = {"ctx_size": 65_536, "parallel": 1}
        with real.started(options, model) as server:
            yield server.address
