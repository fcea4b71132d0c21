"""The program as it is started: signals, sudden ends, a full disk, a missing extra."""

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from cachesim.why.read.dump import DumpReader
from tests.record.kit import CHAT, chat, counted

SECONDS = 30


class Handler(BaseHTTPRequestHandler):
    """Answers every request with the same numbers."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = counted(100, 50)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as fake:
        thread = threading.Thread(target=fake.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{fake.server_port}"
        finally:
            fake.shutdown()
            thread.join()


@contextmanager
def program(url: str, folder: Path, **settings: Any) -> Iterator[tuple[Any, int]]:
    """The recorder in a process of its own, and its port."""
    command = [sys.executable, "-m", "cachesim", "record", "--upstream", url, "--listen"]
    command += ["127.0.0.1:0", "--no-ask", "--output", str(folder / "recorded.jsonl")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        yield process, int(line.split(" passes on")[0].rpartition(":")[2])
    finally:
        process.kill()
        process.communicate()


def ask(port: int, text: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        with_text = json.dumps(chat(text)).encode()
        connection.request("POST", CHAT, with_text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_with_what_it_has(number: int, tmp_path: Path) -> None:
    with server() as url, program(url, tmp_path) as (process, port):
        assert [200, 200] == [ask(port, "one"), ask(port, "two")]
        process.send_signal(number)
        out, notes = process.communicate(timeout=SECONDS)

    assert 0 == process.returncode
    assert 2 == len((tmp_path / "recorded.jsonl").read_bytes().splitlines())
    assert "2 recorded requests" in " ".join(out.split())
    assert "2 requests in" in notes


@pytest.mark.thorough
def test_killed_at_any_moment_the_file_has_whole_lines_before_one_that_may_be_cut(
    tmp_path: Path,
) -> None:
    """A kill ends a write between two pages: Linux writes a line of several ones in parts."""
    recorded = tmp_path / "recorded.jsonl"
    finished = 0

    def held() -> int:
        """Lines on the disk, which a kill cannot take back."""
        return recorded.read_bytes().count(b"\n") if recorded.exists() else 0

    def keep_asking(port: int) -> None:
        nonlocal finished
        with suppress(OSError, http.client.HTTPException):
            while True:
                ask(port, "x" * 20_000)
                finished += 1

    with server() as url, program(url, tmp_path) as (process, port):
        asking = threading.Thread(target=keep_asking, args=(port,))
        asking.start()
        late = time.monotonic() + SECONDS
        while held() < 5 and time.monotonic() < late:
            time.sleep(0.01)
        time.sleep(os.getpid() % 100 / 500)
        before = held()
        process.kill()
        asking.join()

    content = recorded.read_bytes()
    *lines, cut = content.split(b"\n")
    requests = [entry["number"] for entry in map(json.loads, lines) if "adds" not in entry]
    assert list(range(len(requests))) == requests
    assert 5 <= before <= len(lines)
    assert finished <= len(requests) <= finished + 1  # each line before the end of its answer
    assert (len(requests), bool(cut)) == read(content.removesuffix(b"}"))  # its end is missing
    before_last = len(requests) - ("adds" not in json.loads(lines[-1]))
    assert (before_last, True) == read(content[: -len(cut) - len(lines[-1]) // 2])


def read(content: bytes) -> tuple[int, bool]:
    """How many requests are read of a file, and if its last line is left out."""
    reader = DumpReader()
    reader.read("recorded.jsonl", BytesIO(content))
    return len(reader.requests), bool(reader.cut)


@pytest.mark.thorough
def test_a_full_disk_stops_the_recording_loudly_and_nothing_else(tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, 4_000))

    with server() as url, program(url, tmp_path, preexec_fn=small_files) as (process, port):
        assert [200] * 8 == [ask(port, "x" * 2_000) for _ in range(8)]
        process.send_signal(signal.SIGINT)
        _, notes = process.communicate(timeout=SECONDS)

    lines = (tmp_path / "recorded.jsonl").read_bytes().split(b"\n")
    assert b"" == lines.pop()
    assert 0 < len(lines) < 8
    assert list(range(len(lines))) == [json.loads(line)["number"] for line in lines]
    assert 1 == process.returncode
    said = " ".join(notes.split())
    assert "RECORDING STOPPED: " in said
    assert "Requests still pass through" in said


@pytest.mark.thorough
def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ImportError('not here')")

    found = subprocess.run(
        [sys.executable, "-m", "cachesim", "record", "--upstream", "http://127.0.0.1:1"],
        env=os.environ
        | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert 2 == found.returncode
    assert "pip install 'cachesim[record]'" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.thorough
def test_a_place_that_is_taken_is_said(tmp_path: Path) -> None:
    with server() as url, program(url, tmp_path) as (_, port):
        found = subprocess.run(
            [sys.executable, "-m", "cachesim", "record", "--upstream", url, "--listen", str(port),
             "--output", str(tmp_path / "other.jsonl")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert 2 == found.returncode
    assert f"--listen 127.0.0.1:{port}: " in found.stderr
    assert not (tmp_path / "other.jsonl").exists()


MALFORMED = [
    b"Authorization: Bearer sk-SECRET\x00",
    b"Authorization Bearer sk-SECRET",
    b"Authorization: Bearer sk-SECRET\r\nBad Header: 1",
    b"Authorization: Bearer sk-SECRET" + b"x" * 70_000,
    b"Authorization: Bearer sk-SECRET\r\nContent-Length: -5",
    b"Authorization: Bearer sk-SECRET\r\nTransfer-Encoding: chunked\r\n\r\nZZ",
]


@pytest.mark.thorough
def test_no_secret_of_a_malformed_request_is_printed(tmp_path: Path) -> None:
    with server() as url, program(url, tmp_path) as (process, port):
        for head in MALFORMED:
            with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
                client.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n" % (CHAT.encode(), head))
                assert b" 400 " in client.recv(100)
        process.send_signal(signal.SIGINT)
        out, notes = process.communicate(timeout=SECONDS)

    assert 0 == process.returncode
    assert "SECRET" not in out + notes
    assert "Traceback" not in notes
    assert "malformed requests, refused with status 400: " in " ".join(notes.split())


@pytest.mark.thorough
def test_what_passes_without_a_record_is_named_with_its_count(tmp_path: Path) -> None:
    with server() as url, program(url, tmp_path) as (process, port):
        for path in ("/v1/embeddings", "/v1/embeddings", f"/keys/{'k3' * 20}?token=secret"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            connection.request("POST", path, b"{}", {"Content-Type": "application/json"})
            connection.getresponse().read()
            connection.close()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        connection.request("POST", CHAT, b"{}", {"Content-Type": "application/json"})
        connection.getresponse().read()
        connection.close()
        process.send_signal(signal.SIGINT)
        out, notes = process.communicate(timeout=SECONDS)

    assert not out  # nothing is said of no request
    said = " ".join(notes.split())
    assert "POST /v1/embeddings (2), POST /keys/* (1)" in said
    assert "recorded without a prompt: has no messages and no prompt" in said
    assert "secret" not in said
