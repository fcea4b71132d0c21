"""Run of a probe: settings checked, requests run, files written, servers left clean."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from cyclopts import Parameter

from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.files import free_name
from cachesim.probe.answers import Answer, Query
from cachesim.probe.connection import BudgetError, Limits, Meter
from cachesim.probe.loop import Probe
from cachesim.probe.outcome import Outcome, Plan
from cachesim.probe.result import Result, line_of
from cachesim.probe.shapes import Shapes
from cachesim.probe.target import Target
from cachesim.record.plan import RecordFile, is_loopback, upstream_of

REMOTE_RATE: Final = 5.0
"""Requests a second to another machine."""

FEWEST_WORDS: Final = 8
LARGEST_WORDS: Final = 1 << 20


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Flags of the command."""

    url: Annotated[str, Parameter(parse=False)] = ""
    emit: Annotated[Path | None, Parameter(parse=False)] = None
    start: Annotated[
        str, Parameter(help='The command of a server to start and restart, "... --port {port}".')
    ] = ""
    cold: Annotated[
        str, Parameter(help="A second server of the same model that answers without a cache.")
    ] = ""
    minutes: Annotated[float, Parameter(help="Stop after this many minutes.")] = 5.0
    requests: Annotated[int, Parameter(help="Send at most this many requests.")] = 20_000
    tokens: Annotated[int, Parameter(help="Send and receive at most this many tokens.")] = (
        20_000_000
    )
    rate: Annotated[
        float | None,
        Parameter(help="Requests a second; 5 for another machine, else without a bound."),
    ] = None
    in_flight: Annotated[int, Parameter(help="Send at most this many requests at once.")] = 8
    patience: Annotated[
        float, Parameter(help="Treat a request as hung after this many seconds.")
    ] = 60.0
    alarms: Annotated[
        float, Parameter(help="On a correct server, expect one false alarm per this many runs.")
    ] = 1000.0
    max_failures: Annotated[
        int, Parameter(help="End after this many findings with distinct causes.")
    ] = 1
    longest: Annotated[int, Parameter(help="Draw prompts of at most this many tokens.")] = 0
    no_repeats: Annotated[
        bool,
        Parameter(negative="", help="Never repeat a prompt or prefix: some servers crash on it."),
    ] = False
    like: Annotated[
        Path | None,
        Parameter(help="Send requests shaped like those of this log, trace or scenario."),
    ] = None
    words: Annotated[
        Path | None, Parameter(help="A file of words for prompts, where a server takes texts.")
    ] = None
    chat: Annotated[
        bool, Parameter(negative="", help="Send prompts as messages, where a server takes texts.")
    ] = False
    key: Annotated[str, Parameter(help="The environment variable of the API key.")] = ""
    seed: Annotated[int, Parameter(help="The seed of everything drawn at random.")] = 0
    may_erase: Annotated[
        bool, Parameter(negative="", help="Allow cachesim to clear the server's cache.")
    ] = False
    yes: Annotated[bool, Parameter(negative="", help="Allow a server on another machine.")] = False

    def limits(self) -> Limits:
        """The bounds of the run; InputError with the flag that is wrong."""
        for flag, value, low in (
            ("--minutes", self.minutes, 0.0),
            ("--requests", self.requests, 0),
            ("--tokens", self.tokens, 0),
            ("--in-flight", self.in_flight, 0),
            ("--patience", self.patience, 0.0),
            ("--alarms", self.alarms, 1.0),
            ("--max-failures", self.max_failures, 0),
            ("--rate", 1.0 if self.rate is None else self.rate, 0.0),
        ):
            if not (math.isfinite(value) and value > low):
                raise InputError(f"{flag} is {value}; write a number above {low:g}")
        rate = self.rate or 0.0
        if self.rate is None and not self._loopback(self.url):
            rate = REMOTE_RATE
        return Limits(
            minutes=self.minutes,
            requests=self.requests,
            tokens=self.tokens,
            rate=rate,
            in_flight=self.in_flight,
            patience=self.patience,
        )

    def addresses(self) -> tuple[str, str]:
        """The server and the uncached one, checked."""
        if not self.url and not self.start:
            msg = 'name a server, as in http://127.0.0.1:8080, or one to start with --start "..."'
            raise InputError(msg)
        found = []
        for url in (self.url, self.cold):
            whole = upstream_of(url).replace("--upstream ", "") if url else ""
            if whole and not self.yes and not self._loopback(whole):
                raise InputError(
                    f"{whole} is on another machine, and thousands of requests would be sent to "
                    "it; add --yes if it is yours to test"
                )
            found.append(whole)
        return found[0], found[1]

    def checked_key(self) -> str:
        """The variable of --key, which has to be set to a value that a header may have."""
        value = os.environ.get(self.key, "") if self.key else "-"
        if not value or not value.isascii() or not value.isprintable():
            raise InputError(f"--key {self.key}: the environment has no key of this name")
        return self.key

    @staticmethod
    def _loopback(url: str) -> bool:
        return not url or is_loopback(urlsplit(url if "://" in url else f"//{url}").hostname or "")

    def listed_words(self) -> tuple[str, ...]:
        """The words of --words."""
        if self.words is None:
            return ()
        try:
            text = self.words.read_text(encoding="utf-8")[:LARGEST_WORDS]
        except (OSError, UnicodeDecodeError) as error:
            msg = f"--words {self.words}: cannot be read: {getattr(error, 'strerror', error)}"
            raise InputError(msg) from None
        found = tuple(dict.fromkeys(text.split()))
        if len(found) < FEWEST_WORDS:
            msg = f"--words {self.words}: holds {len(found)} words; write {FEWEST_WORDS} or more"
            raise InputError(msg)
        return found


@dataclass(frozen=True, slots=True)
class Finished:
    """The result, and the files that were written."""

    result: Result
    files: tuple[Path, ...]


def plan_of(settings: Settings) -> Plan:
    """The settings of a server's search."""
    return Plan(
        seed=settings.seed,
        alarms=settings.alarms,
        longest=settings.longest,
        repeats=not settings.no_repeats,
        like=None if settings.like is None else Shapes.read(settings.like),
        failures=settings.max_failures,
    )


def target_of(settings: Settings, meter: Meter) -> Target:
    """The server of some settings, started if they say how."""
    url, cold = settings.addresses()
    words, key = settings.listed_words(), settings.checked_key()
    try:
        return Target(
            meter,
            url,
            cold_url=cold,
            start=settings.start,
            may_erase=settings.may_erase,
            words=words,
            chat=settings.chat,
            key=key,
        )
    except BudgetError as error:
        raise InputError(f"{error} before it was known how the server answers") from None


def run(settings: Settings, progress: Callable[[str], None] = lambda _: None) -> Finished:
    """Probe a server; every started process is ended, even after an error."""
    meter = Meter(settings.limits())
    plan = plan_of(settings)
    target = target_of(settings, meter)
    try:
        with _recording(settings.emit, target) as recorded:
            probe = Probe(target, meter, plan, lambda out: progress(status_line(out, meter)))
            outcome = probe.run()
        result = Result.of(target, outcome, probe.judge, settings.alarms)
        files = () if settings.emit is None else tuple(result.write(settings.emit, target))
        if result.right and recorded is not None:
            recorded.unlink(missing_ok=True)
        elif recorded is not None:
            files += (recorded,)
        return Finished(result, files)
    finally:
        target.close()


def status_line(outcome: Outcome, meter: Meter) -> str:
    """The run so far in one line."""
    left = len(outcome.fingerprint.left)
    named = (
        f", {left} of {outcome.fingerprint.first} profiles left"
        if outcome.fingerprint.first
        else ""
    )
    compared = f"{outcome.reused} answers from cache"
    if outcome.reused is None:
        compared = f"{outcome.compared} answers"
    found = "".join(f"; WRONG: {finding.sentence}" for finding in outcome.findings)
    return (
        f"{meter.seconds:.0f} s, {meter.requests} requests, {outcome.workloads} workloads, "
        f"{compared} compared, "
        f"{counted(outcome.suspicions, 'suspicion')}{named}{found}"
    )


@contextmanager
def _recording(folder: Path | None, target: Target) -> Iterator[Path | None]:
    """A file of all requests, as `cachesim record` writes them."""
    if folder is None:
        yield None
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--emit {folder}: {error.strerror or error}") from None
    file = RecordFile(free_name(folder / "requests.jsonl"))

    def record(query: Query, answer: Answer) -> None:
        file.write(line_of(file.lines, time.time(), query, answer))

    target.record = record
    try:
        yield file.path
    except BaseException:
        file.close()
        file.path.unlink(missing_ok=True)
        raise
    finally:
        file.close()
