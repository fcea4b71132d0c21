"""A stand-in of the helpers of llama.cpp's server tests: what their documentation promises.

A `ServerProcess` starts the binary that LLAMA_SERVER_BIN_PATH names with the flags of its
attributes, waits until it is healthy, and answers with status and body.
"""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["ServerProcess", "ServerResponse", "subprocess"]

Json: TypeAlias = Any

VALUES = {
    "model_file": "--model",
    "model_hf_repo": "--hf-repo",
    "model_hf_file": "--hf-file",
    "n_slots": "--parallel",
    "n_ctx": "--ctx-size",
    "n_batch": "--batch-size",
    "n_ubatch": "--ubatch-size",
    "n_predict": "--n-predict",
    "ctk": "--cache-type-k",
    "ctv": "--cache-type-v",
    "slot_save_path": "--slot-save-path",
    "pooling": "--pooling",
}
"""Attribute -> the flag that takes its value; nothing is said of one that is unset or zero."""

GIVEN = {
    "fa": "--flash-attn",
    "cache_ram": "--cache-ram",
    "sleep_idle_seconds": "--sleep-idle-seconds",
}
"""The same, and zero is a value."""

SWITCHES = {
    "kv_unified": "--kv-unified",
    "swa_full": "--swa-full",
    "enable_ctx_shift": "--context-shift",
    "server_embeddings": "--embedding",
}
"""Attribute -> the flag that it switches on."""


@dataclass
class ServerResponse:
    """An answer: its body is the JSON that was sent."""

    status_code: int
    body: Json


class ServerProcess:
    """A server of the suite; its attributes are flags."""

    server_host = "127.0.0.1"
    temperature = 0.8
    seed = 42
    model_hf_repo: str | None = "ggml-org/models"
    model_hf_file: str | None = "tinyllamas/stories260K.gguf"

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind((self.server_host, 0))
            self.server_port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def arguments(self) -> list[str]:
        """The flags of the attributes that are set."""
        place = {"--host": self.server_host, "--port": self.server_port}
        said = {**place, "--temp": self.temperature, "--seed": self.seed}
        said |= {flag: value for n, flag in VALUES.items() if (value := getattr(self, n, None))}
        said |= {f: v for n, f in GIVEN.items() if (v := getattr(self, n, None)) is not None}
        words = [str(word) for pair in said.items() for word in pair]
        return [*words, *(flag for n, flag in SWITCHES.items() if getattr(self, n, False))]

    def start(self, timeout_seconds: int = 60) -> None:
        """Start the server, and wait until it is healthy."""
        command = [os.environ["LLAMA_SERVER_BIN_PATH"], *self.arguments()]
        self.process = subprocess.Popen(command)
        until = time.monotonic() + timeout_seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self.process.returncode}")
            try:
                if self.make_request("GET", "/health").status_code == 200:
                    return
            except OSError:
                time.sleep(0.05)
        raise TimeoutError(f"the server was not healthy within {timeout_seconds} seconds")

    def stop(self) -> None:
        """End the server."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def make_request(
        self, method: str, path: str, data: Json = None, timeout: float = 60
    ) -> ServerResponse:
        """Send a request; an error's status is returned, a lost connection is raised."""
        request = urllib.request.Request(
            f"http://{self.server_host}:{self.server_port}{path}",
            data=None if data is None else json.dumps(data).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return ServerResponse(response.status, json.load(response))
        except urllib.error.HTTPError as error:
            return ServerResponse(error.code, json.loads(error.read() or b"null"))

    def __del__(self) -> None:
        self.stop()
