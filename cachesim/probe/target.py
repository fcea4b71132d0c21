"""A server: requests, answers that are proven uncached, resets and restarts."""

import http.client
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from cachesim.engines.family import family_of
from cachesim.errors import InputError
from cachesim.printable import printable
from cachesim.probe.answers import Answer, Query
from cachesim.probe.connection import (
    LAST_SECONDS,
    BudgetError,
    Connection,
    Meter,
    answer_on,
)
from cachesim.probe.dialects import Dialect, dialect_of

APART: Final = 0.002
"""Seconds between requests that are sent together, so that they arrive in their order."""

PAUSE: Final = 2.0
"""Seconds between requests to a server that does not answer."""

HISTORY: Final = 512
"""Groups of requests that are remembered: one of them may have a part in a fault."""

NO_COLD: Final = (
    "{name} has no request that leaves its cache out; name a second, fresh server with --cold URL, "
    'or have servers started with --start "COMMAND ... --port {{port}}"'
)
UNKNOWN: Final = (
    "{url} reports no cached tokens, so that nothing shows that it answers cold; add --may-erase, "
    "and its model is unloaded before each answer"
)
NOT_COLD: Final = (
    "{url} reports {cached} cached tokens for a request that is to be cold ({how}): there is no "
    "uncached answer to compare with{hint}"
)


class Target:
    """The server under test, and the source of uncached answers."""

    def __init__(
        self,
        meter: Meter,
        url: str,
        *,
        cold_url: str = "",
        start: str = "",
        may_erase: bool = False,
        words: Sequence[str] = (),
        chat: bool = False,
        key: str = "",
    ) -> None:
        self.record: Callable[[Query, Answer], None] = lambda *_: None
        self.process = ServerProcess(start, ends=meter.ends) if start else None
        self._cold_process: ServerProcess | None = None
        self._cold: Dialect | None = None
        self.emptied = False  # instead of the last restart
        self.faults: Counter[str] = Counter()  # sentences of exchanges without an answer
        self.sent: deque[list[Query]] = deque(maxlen=HISTORY)  # to the server under test
        self._connections: list[Connection] = []
        self._pool = ThreadPoolExecutor(meter.limits.in_flight)
        self._meter, self._words, self._chat, self._key = meter, tuple(words), chat, key
        try:
            if self.process is not None:
                self.process.start()
                url = url or self.process.url
            self.dialect = self._found(url)
            self.may_erase = may_erase or self.process is not None
            if cold_url:
                self._cold = self._found(cold_url)
            elif not self.dialect.cold_by:
                self._start_cold(start)
            self.page = self.dialect.facts.options.get("block_size", 0) or page_of(
                self.dialect.paged, start
            )
        except BaseException:
            self.close()
            raise

    def _found(self, url: str) -> Dialect:
        connection = Connection(url, self._meter, self._key)
        self._connections.append(connection)
        return dialect_of(connection, self._words, chat=self._chat)

    def _start_cold(self, start: str) -> None:
        """A second process, which keeps no cache where a flag allows that."""
        if self.process is None or PORT not in start:
            raise InputError(NO_COLD.format(name=self.dialect.name))
        self._cold_process = ServerProcess(start, self.dialect.cold_flags, self._meter.ends)
        self._cold_process.start()
        self._cold = self._found(self._cold_process.url)

    @property
    def url(self) -> str:
        """The address of the server under test."""
        return self.dialect.connection.url

    @property
    def how_cold(self) -> str:
        """The way to an uncached answer, in words."""
        if self._cold is not None:
            return f"asked of {self._cold.connection.url}"
        return self.dialect.cold_by

    def together(self, queries: Sequence[Query]) -> list[Answer]:
        """Answers from the cache to requests that are sent at once."""
        answers = self._sent([(self.dialect, query, False) for query in queries])
        for query, answer in zip(queries, answers, strict=True):
            self.record(query, answer)
        return answers

    def cold(self, query: Query, beside: Sequence[Query] = ()) -> Answer:
        """An uncached answer, with unrelated uncached requests running concurrently."""
        dialect = self._cold or self.dialect
        leaves = bool(dialect.cold_by)
        unknown = dialect.cold_keeps and not leaves and not dialect.facts.counts
        if unknown and dialect.unloads:
            if self._cold_process is None and not self.may_erase:
                raise InputError(UNKNOWN.format(url=dialect.connection.url))
            dialect.erase()
        elif unknown and self._cold_process is not None:
            if dialect.one_sequence:
                words = [word for word in dialect.facts.words[:2] if word != query.prompt[0]]
                dialect.answer(Query(prompt=tuple(words[:1]), reply=query.reply[:1]))
            else:
                self._cold_process.start()  # nothing else shows that it is cold
        answer = self._sent([(dialect, sent, leaves) for sent in (query, *beside)])[0]
        if answer.cached and self._cold_process is not None:
            self._cold_process.start()
            answer = self._sent([(dialect, query, leaves)])[0]
        if answer.cached:
            flags = dialect.cold_flags
            hint = f"; start the one of --cold with {flags}" if self._cold and flags else ""
            raise InputError(
                NOT_COLD.format(
                    url=dialect.connection.url, cached=answer.cached, how=self.how_cold, hint=hint
                )
            )
        return answer

    def _sent(self, requests: Sequence[tuple[Dialect, Query, bool]]) -> list[Answer]:
        jobs: list[Future[Answer]] = []
        if requests[0][0] is self.dialect and (self.dialect.declines or not requests[0][2]):
            self.sent.append(
                [  # a cold one is sent to any slot
                    replace(query, cache_prompt=False, slot=-1) if cold else query
                    for _, query, cold in requests
                ]
            )
        for dialect, query, cold in requests:
            if jobs:
                time.sleep(APART)
            jobs.append(self._pool.submit(dialect.answer, query, cold=cold))
        answers = [job.result() for job in jobs]
        self.faults.update(answer.error for answer in answers if answer.fatal)
        return answers

    def wait(self, seconds: float) -> None:
        """Let the server alone for a time, at most until the run ends."""
        self._meter.wait(seconds)

    def erase(self) -> None:
        """Empty the cache as far as HTTP can, where that is allowed."""
        if self.may_erase:
            self.dialect.erase()

    def restart(self) -> bool:
        """Have the server empty its cache, or start it again; False where neither is allowed."""
        alive = self.process is None or self.process.ended is None
        self.emptied = self.may_erase and alive and self.dialect.emptied()
        if self.process is None and not self.emptied:
            self.erase()
            return False
        if self.process is not None and not self.emptied:
            self.process.start()
        self.sent.clear()
        self.dialect.connection.sent = []
        return True

    def answers(self) -> bool:
        """True if one of two short requests is answered."""
        return any(not answer.error for answer in self._short_answers())

    def _short_answers(self) -> Iterator[Answer]:
        words = self.dialect.facts.words
        for at in (0, 1):
            yield self.dialect.answer(Query(prompt=(words[at], words[-1 - at]), reply=words[:1]))

    def returns(self, since: float) -> bool:
        """True if a server that is not ours answers again within the patience, as after a restart.

        Time counts from `since`, so that one that hung for as long is not waited for again.
        """
        patience = self._meter.limits.patience
        with suppress(BudgetError):
            while self.process is None and time.monotonic() < since + patience:
                self.wait(min(PAUSE, patience / 4))
                found = list(self._short_answers())
                if not all(answer.error for answer in found):
                    self.sent.clear()
                    return True
                if not any(answer.fatal for answer in found):
                    return False  # it is there, and refuses
        return False

    def close(self) -> None:
        """Close connections, erase filled slots, and end the started processes."""
        for connection in self._connections:
            connection.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for process in (self.process, self._cold_process):
            if process is not None:
                process.close()
        if self.process is None and self._connections and hasattr(self, "dialect"):
            self.dialect.connection.last = time.monotonic() + LAST_SECONDS
            self.erase()


def page_of(engine: str, command: str) -> int:
    """Tokens of a page of the cache, by the flags of a server or their default; 0: not known."""
    if not engine:
        return 0
    option = next(option for option in family_of(engine).table() if option.name == "page_size")
    found = re.search(rf"{option.flag}[ =](\d{{1,9}})\b", command)
    return int(found[1]) if found else int(option.default)


# -- the process of a server -----------------------------------------------------------------------

PORT: Final = "{port}"
READY_SECONDS: Final = 600.0
"""A model may take minutes to load."""

PATIENCE: Final = 10.0
"""Seconds between SIGTERM and SIGKILL; fewer where the run is over."""

GUARD: Final = (
    'trap "" HUP INT TERM; read -r _; kill -s TERM -- "-$0"; sleep 2; kill -s KILL -- "-$0"; '
    'for each in $(grep -ls "$1" /proc/[0-9]*/environ); do '
    'each=${each#/proc/}; kill -s KILL "${each%/environ}"; done'
)
"""A shell that ends a group of processes and those marked when its input is closed, as at the end
of the program that holds it, SIGKILL included.
"""

MARK: Final = "CACHESIM_PROBE"
"""A variable of the server's environment; by its value a process that left the group is known."""

KILLED: Final = "the server did not end after SIGTERM, and was killed"
STRAYS: Final = "processes of the server that had left its group were killed"

PORT_FLAG: Final = re.compile(r"(?:^|\s)--port[ =](\d+)\b")
PATHS: Final = ("/health", "/v1/models")


class ServerProcess:
    """A process group, ended as a whole."""

    def __init__(self, command: str, more: str = "", ends: float = math.inf) -> None:
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
        self._began = self._ready = 0.0
        self._ends = ends  # of the run, on the monotonic clock
        self._mark = f"{os.getpid()}-{id(self)}"
        self.told: Counter[str] = Counter()  # sentences of how it ended

    @property
    def url(self) -> str:
        """The address on which it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def ended(self) -> int | None:
        """The exit status of a process that ended by itself."""
        return None if self._process is None else self._process.poll()

    def death(self) -> int | None:
        """The exit status of a process that ends by itself within a second."""
        with suppress(subprocess.TimeoutExpired):
            return None if self._process is None else self._process.wait(1)
        return None

    @property
    def served(self) -> bool:
        """True once it has been up for longer than it took to start."""
        return time.monotonic() - self._ready > self._ready - self._began

    def start(self) -> None:
        """Start it, and wait until it listens and answers."""
        self._began = time.monotonic()
        ends = self._began + (PATIENCE if self._process is not None else 0.0)
        self.end()
        while _listens(self.port) and time.monotonic() < ends:
            time.sleep(0.02)  # a child is killed, and not yet gone
        if _listens(self.port):
            raise InputError(f"--start: port {self.port} is taken; write {PORT} for a free one")
        words = shlex.split(self.command.replace(PORT, str(self.port)))
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
                env=os.environ | {MARK: self._mark},
            )
        except OSError as error:
            msg = f"--start: {words[0] if words else self.command}: {error.strerror or error}"
            raise InputError(msg) from None
        self._guard = subprocess.Popen(  # noqa: S603 - a text of this module
            ["/bin/sh", "-c", GUARD, str(self._process.pid), f"{MARK}={self._mark}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait()

    def _wait(self) -> None:
        ends = min(time.monotonic() + READY_SECONDS, self._ends)
        while time.monotonic() < ends:
            if self.ended is not None:
                msg = f"--start: the server ended with status {self.ended}{self.last_line()}"
                raise InputError(msg)
            if any(_answers(self.port, path) for path in PATHS):
                self._ready = time.monotonic()
                return
            time.sleep(0.02)
        self.end()
        if ends == self._ends:
            msg = f"the time is over, and nothing answers on port {self.port} yet"
            raise BudgetError(msg)
        msg = f"--start: nothing answers on port {self.port} after {READY_SECONDS:g} seconds"
        raise InputError(msg)

    def close(self) -> None:
        """End it for good."""
        self.end()
        self._log.close()

    def last_line(self) -> str:
        """The last line with a word that it wrote, behind a colon: no rule under a traceback."""
        size = os.fstat(self._log.fileno()).st_size
        self._log.seek(max(0, size - 2000))
        text = self._log.read().decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if any(map(str.isalnum, line))]
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
                process.wait(min(PATIENCE, max(LAST_SECONDS, self._ends - time.monotonic())))
            except subprocess.TimeoutExpired:
                self.told[KILLED] += 1
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # its children
            break
        strays = list(_marked(f"{MARK}={self._mark}".encode(), process.pid))
        for pid in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self.told[STRAYS] += bool(strays)
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.kill()
            guard.wait()
            guard.stdin.close()


def _marked(variable: bytes, group: int) -> Iterator[int]:
    """Processes outside a group whose environment has a variable, where the system shows it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            marked = variable in (folder / "environ").read_bytes().split(b"\0")
            if marked and os.getpgid(int(folder.name)) != group:
                yield int(folder.name)


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
    seconds = 2.0
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        link.request("GET", path)
        return answer_on(link, "GET", time.monotonic() + seconds).status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        link.close()
