"""A server: warm requests, cold answers that are proven cold, resets and restarts."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from cachesim.errors import InputError
from cachesim.lab.probe.answers import Answer, Query
from cachesim.lab.probe.connection import Connection, Meter
from cachesim.lab.probe.dialects import Dialect, dialect_of
from cachesim.lab.probe.process import PORT, ServerProcess

APART: Final = 0.002
"""Seconds between requests that are sent together, so that they arrive in their order."""

HISTORY: Final = 512
"""Groups of requests that are remembered: one of them may have a part in a fault."""

NO_COLD: Final = (
    "{name} has no request that leaves its cache out; name a second, fresh server with --cold URL, "
    'or have servers started with --start "COMMAND ... --port {{port}}"'
)
NOT_COLD: Final = (
    "{url} reports {cached} cached tokens for a request that is to be cold ({how}): there is no "
    "cold answer to compare with{hint}"
)


class Target:
    """The server under test, and the source of cold answers."""

    def __init__(
        self,
        meter: Meter,
        url: str,
        *,
        cold_url: str = "",
        start: str = "",
        may_erase: bool = False,
        words: Sequence[str] = (),
    ) -> None:
        self.record: Callable[[Query, Answer], None] = lambda *_: None
        self.process = ServerProcess(start) if start else None
        self._cold_process: ServerProcess | None = None
        self._cold: Dialect | None = None
        self.faults: Counter[str] = Counter()  # sentences of exchanges without an answer
        self.sent: deque[list[Query]] = deque(maxlen=HISTORY)  # to the server under test
        self._connections: list[Connection] = []
        self._pool = ThreadPoolExecutor(meter.limits.in_flight)
        self._meter, self._words = meter, tuple(words)
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
        except BaseException:
            self.close()
            raise

    def _found(self, url: str) -> Dialect:
        connection = Connection(url, self._meter)
        self._connections.append(connection)
        return dialect_of(connection, self._words)

    def _start_cold(self, start: str) -> None:
        """A second process, which keeps no cache where a flag allows that."""
        if self.process is None or PORT not in start:
            raise InputError(NO_COLD.format(name=self.dialect.name))
        self._cold_process = ServerProcess(start, self.dialect.cold_flags)
        self._cold_process.start()
        self._cold = self._found(self._cold_process.url)

    @property
    def url(self) -> str:
        """The address of the server under test."""
        return self.dialect.connection.url

    @property
    def how_cold(self) -> str:
        """The way to a cold answer, in words."""
        if self._cold is not None:
            return f"asked of {self._cold.connection.url}"
        return self.dialect.cold_by

    def together(self, queries: Sequence[Query]) -> list[Answer]:
        """Warm answers to requests that are sent at once."""
        answers = self._sent([(self.dialect, each, False) for each in queries])
        for query, answer in zip(queries, answers, strict=True):
            self.record(query, answer)
        return answers

    def cold(self, query: Query, beside: Sequence[Query] = ()) -> Answer:
        """A cold answer; with unrelated cold requests at work beside it."""
        dialect = self._cold or self.dialect
        leaves = bool(dialect.cold_by)
        if not leaves and not dialect.facts.counts and self._cold_process is not None:
            if dialect.one_sequence:
                words = [each for each in dialect.facts.words[:2] if each != query.prompt[0]]
                dialect.answer(Query(prompt=tuple(words[:1]), reply=query.reply[:1]))
            else:
                self._cold_process.start()  # nothing else shows that it is cold
        answer = self._sent([(dialect, each, leaves) for each in (query, *beside)])[0]
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
                [
                    replace(query, cache_prompt=query.cache_prompt and not cold)
                    for _, query, cold in requests
                ]
            )
        for dialect, query, cold in requests:
            if jobs:
                time.sleep(APART)
            jobs.append(self._pool.submit(dialect.answer, query, cold=cold))
        answers = [job.result() for job in jobs]
        self.faults.update(each.error for each in answers if each.fatal)
        return answers

    def erase(self) -> None:
        """Empty the cache as far as HTTP can, where that is allowed."""
        if self.may_erase:
            self.dialect.erase()

    def restart(self) -> bool:
        """Start the server again; False where that is not in our hands."""
        if self.process is None:
            self.erase()
            return False
        self.process.start()
        self.sent.clear()
        return True

    def answers(self) -> bool:
        """True if one of two short requests is answered."""
        words = self.dialect.facts.words
        queries = (Query(prompt=(words[at], words[-1 - at]), reply=words[:1]) for at in (0, 1))
        return any(not self.dialect.answer(each).error for each in queries)

    def close(self) -> None:
        """Close connections, erase filled slots, and end the started processes."""
        for connection in self._connections:
            connection.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for process in (self.process, self._cold_process):
            if process is not None:
                process.close()
        if self.process is None and self._connections and hasattr(self, "dialect"):
            self.erase()
