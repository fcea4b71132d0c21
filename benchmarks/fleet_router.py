"""SGLang's router on loopback, with workers that answer on command."""

import json
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from cachesim.prove.environment import EnvironmentUnavailableError

LAUNCH: Final = """
import json, sys
from sglang_router.sglang_router_rs import PolicyType, Router
Router(policy=PolicyType.CacheAware, host="127.0.0.1", prometheus_host="127.0.0.1",
       log_level="error", disable_retries=True, disable_circuit_breaker=True,
       **json.loads(sys.argv[1])).start()
"""
PATIENCE: Final = 30
SETTLES: Final = 0.004
"""Seconds after which the router has counted a request out."""


class Quiet(ThreadingHTTPServer):
    """A server that writes nothing when the router closes a connection."""

    def handle_error(self, *_: object) -> None:
        """Nothing is written."""


class Loopback:
    """A router and its workers."""

    def __init__(self, python: Path, replicas: int, rules: Mapping[str, float]) -> None:
        self._arrived: dict[int, Future[int]] = {}
        self._released: dict[int, threading.Event] = {}
        self._answers: dict[int, Future[None]] = {}
        self._pool = ThreadPoolExecutor(1000)  # all requests may be in flight
        self._servers = [self._worker() for _ in range(replicas)]
        self._port = _free_port()
        urls = [f"http://127.0.0.1:{server.server_port}" for server in self._servers]
        told = {"worker_urls": urls, "port": self._port, "prometheus_port": _free_port(), **rules}
        self._process = subprocess.Popen(
            [str(python), "-c", LAUNCH, json.dumps(told)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self._process.poll() is None:
            try:
                workers = self._get("/workers").get("workers", ())
                if len(workers) == len(self._servers):
                    time.sleep(1)  # the last of them is still being registered with the policy
                    ports = [int(worker["url"].rpartition(":")[2]) for worker in workers]
                    self._at = {port: at for at, port in enumerate(ports)}  # the router's order
                    return self
            except OSError:
                pass
            time.sleep(0.2)
        self.__exit__()
        raise EnvironmentUnavailableError(f"sglang-router is not ready after {PATIENCE} seconds")

    def __exit__(self, *_: object) -> None:
        for event in self._released.values():
            event.set()
        self._process.kill()
        self._process.wait()
        for server in self._servers:
            server.shutdown()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def send(self, number: int, text: str) -> int:
        """Send a request; return the worker that receives it."""
        self._arrived[number], self._released[number] = Future(), threading.Event()
        self._answers[number] = self._pool.submit(self._post, number, text)
        return self._at[self._arrived[number].result(PATIENCE)]

    def release(self, number: int) -> None:
        """Answer a request, and wait until the router has passed the answer on."""
        self._released.pop(number).set()
        self._answers.pop(number).result(PATIENCE)
        del self._arrived[number]
        time.sleep(SETTLES)

    def _post(self, number: int, text: str) -> None:
        body = {"text": text, "rid": str(number), "sampling_params": {"max_new_tokens": 1}}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/generate",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310 - http always
            answer.read()

    def _get(self, path: str) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self._port}{path}"
        with urllib.request.urlopen(address, timeout=2) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def _worker(self) -> ThreadingHTTPServer:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Write nothing."""

            def answer(self, value: object) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.answer({"status": "ok"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                request = int(body["rid"])
                released = outer._released[request]
                outer._arrived[request].set_result(self.connection.getsockname()[1])
                released.wait()
                self.answer({"text": "x", "meta_info": {"id": body["rid"]}})

        server = Quiet(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
