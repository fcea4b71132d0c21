"""A server's own process: started with a command, restarted as often as needed, ended for good."""

import http.client
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Final

from cachesim.errors import InputError
from cachesim.printable import printable

PORT: Final = "{port}"
READY_SECONDS: Final = 300.0
"""A model may take minutes to load."""

PATIENCE: Final = 10.0
"""Seconds between SIGTERM and SIGKILL."""

GUARD: Final = (
    'trap "" HUP INT TERM; read -r _; kill -s TERM -- "-$0"; sleep 2; kill -s KILL -- "-$0"'
)
"""A shell that ends a group of processes when its input is closed, as at the end of the program
that holds it, SIGKILL included.
"""

PORT_FLAG: Final = re.compile(r"(?:^|\s)--port[ =](\d+)\b")
PATHS: Final = ("/health", "/v1/models")


class ServerProcess:
    """A process group, ended as a whole."""

    def __init__(self, command: str, more: str = "") -> None:
        self.command = f"{command} {more}".strip()
        found = PORT_FLAG.search(self.command)
        if PORT not in self.command and found is None:
            msg = f'--start: write the port, as in --start "llama-server -m m.gguf --port {PORT}"'
            raise InputError(msg)
        if PORT in self.command:
            self.port = _free_port()
        elif found is not None:
            self.port = int(found[1])
        self._log = TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address on which it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def ended(self) -> int | None:
        """The exit status of a process that ended by itself."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it, and wait until it listens and answers."""
        self.end()
        if _listens(self.port):
            msg = f"--start: port {self.port} is taken; write {PORT} for a free one"
            raise InputError(msg)
        words = shlex.split(self.command.replace(PORT, str(self.port)))
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            msg = f"--start: {words[0] if words else self.command}: {error.strerror or error}"
            raise InputError(msg) from None
        self._guard = subprocess.Popen(  # noqa: S603 - a text of this module
            ["/bin/sh", "-c", GUARD, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait()

    def _wait(self) -> None:
        ends = time.monotonic() + READY_SECONDS
        while time.monotonic() < ends:
            if self.ended is not None:
                msg = f"--start: the server ended with status {self.ended}{self.last_line()}"
                raise InputError(msg)
            if any(_answers(self.port, path) for path in PATHS):
                return
            time.sleep(0.02)
        self.end()
        msg = f"--start: nothing answers on port {self.port} after {READY_SECONDS:g} seconds"
        raise InputError(msg)

    def close(self) -> None:
        """End it for good."""
        self.end()
        self._log.close()

    def last_line(self) -> str:
        """The last line that it wrote, behind a colon."""
        size = os.fstat(self._log.fileno()).st_size
        self._log.seek(max(0, size - 2000))
        lines = [each for each in self._log.read().decode("utf-8", "replace").splitlines() if each]
        self._log.seek(0, os.SEEK_END)
        return f": {printable(lines[-1].strip())[:160]}" if lines else ""

    def end(self) -> None:
        """End it with all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, sign)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # its children
            break
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.kill()
            guard.wait()
            guard.stdin.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(port: int, path: str) -> bool:
    """True for a server whose model is loaded: until then it refuses, or answers with 503."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        link.request("GET", path)
        return link.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()
