"""llama.cpp's own server, driven from outside: the same workloads, the real answers.

The wheel `xllamacpp` carries the whole server; it runs in a process of its own (see
`llamacpp_worker`), so that a server that aborts is an outcome and not the end of us.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, Final, TypeAlias

from cachesim.errors import CachesimError, OptionError, ProfileError
from cachesim.real.environment import Environment
from cachesim.real.workload import CRASH, Outcome, Release, Step, Workload
from cachesim.units import Token, as_tokens

Json: TypeAlias = dict[str, Any]
Value: TypeAlias = Any

WHEELS: Final[Mapping[Release, str]] = {
    "b9093": "2026.5.9093",
    "b9538": "2026.6.9538",
    "b11549": "2026.10.11549",
}
"""Release -> version of the wheel that is that build."""

PARAMETERS: Final[Mapping[str, str]] = {
    "parallel": "n_parallel",
    "ctx_size": "n_ctx",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "kv_unified": "kv_unified",
    "kv_unified_per_slot": "kv_unified_per_slot",
    "ctx_checkpoints": "n_ctx_checkpoints",
    "checkpoint_min_step": "checkpoint_min_step",
    "checkpoint_every_nt": "checkpoint_every_nt",
    "cache_ram": "cache_ram_mib",
    "cache_reuse": "n_cache_reuse",
    "cache_idle_slots": "cache_idle_slots",
    "cache_prompt": "cache_prompt",
    "context_shift": "ctx_shift",
    "slot_prompt_similarity": "slot_prompt_similarity",
    "swa_full": "swa_full",
    "keep": "n_keep",
    "predict": "n_predict",
    "cache_type_k": "cache_type_k",
    "cache_type_v": "cache_type_v",
    "flash_attn": "flash_attn_type",
    "spec_type": "speculative.types",
    "spec_draft_n_max": "speculative.draft.n_max",
    "spec_draft_n_min": "speculative.draft.n_min",
    "spec_draft_p_min": "speculative.draft.p_min",
    "spec_draft_model": "speculative.draft.mparams.path",
}
"""Flag -> the wheel's parameter."""

SPECULATION: Final[Mapping[str, str]] = {
    "none": "NONE",
    "draft-simple": "DRAFT_SIMPLE",
    "draft-mtp": "DRAFT_MTP",
}

SURROUNDINGS: Final[Mapping[str, Any]] = {
    "n_ctx": 4096,
    "n_batch": 2048,
    "n_ubatch": 512,
    "warmup": False,
    "fit_params": False,
    "n_gpu_layers": 0,
    "n_threads_http": 2,
    "cpuparams.n_threads": 1,
    "cpuparams_batch.n_threads": 1,
}
"""What a workload does not speak of: no warm-up, nothing fitted, one thread."""

GREEDY: Final[Mapping[str, Any]] = {
    "temperature": 0,
    "ignore_eos": True,
    "return_tokens": True,
    "response_fields": [
        "tokens",
        "timings",
        "id_slot",
        "truncated",
        "completion_probabilities",
    ],
}

SILENT, TALKATIVE = -1, 5
SERVERS_PER_PROCESS: Final = 400
SECONDS_FOR_ONE_CALL: Final = 60


class RealServerError(CachesimError):
    """The real server could not be started, or it answered what we do not understand."""


def as_release(name: str) -> Release:
    """Read the name of a release that there is a wheel of."""
    for release in WHEELS:
        if name == release:
            return release
    msg = f"there is no wheel of llama.cpp {name!r}; there are {', '.join(WHEELS)}"
    raise ProfileError(msg)


def environment_for(release: Release) -> Environment:
    """The environment that holds a release's wheel."""
    version = WHEELS[release]
    return Environment(name=f"xllamacpp-{version}", requirements=(f"xllamacpp=={version}",))


class RealServer(AbstractContextManager["RealServer"]):
    """Plays workloads on one release's real server, a fresh server for each.

    Servers of one process share a C++ static: the distances from a prompt's end at which a batch
    is cut are computed once, from the ubatch size of the first server that gets there. So every
    ubatch size has a process of its own, as servers started from a shell have.
    """

    def __init__(self, release: Release, *, log: Path | None = None) -> None:
        self.release = release
        self._python = environment_for(release).ready()
        self._log = log
        self._workers: dict[int, _Worker] = {}

    @contextmanager
    def started(
        self, options: Mapping[str, Any], model: Path, *, probabilities: int = 0
    ) -> "Iterator[Played]":
        """A fresh server with these flags."""
        values = parameters(options) | {
            "model.path": str(model),
            "verbosity": TALKATIVE if self._log else SILENT,
        }
        ubatch = effective_ubatch(values)
        worker = self._ready_worker(ubatch)
        try:
            worker.start(values)
            yield Played(worker, probabilities)
            if worker.order({"stop": True}) is None:
                worker.lost = True
        except BaseException:
            worker.lost = True
            raise
        finally:
            if worker.lost:
                self._end(ubatch)

    def play(
        self, workload: Workload, model: Path, *, probabilities: int = 0
    ) -> tuple[Outcome, ...]:
        """The outcome of every step, in order, up to where the server was lost."""
        outcomes: list[Outcome] = []
        with self.started(workload.options, model, probabilities=probabilities) as server:
            for group in grouped(workload.steps):
                outcomes += server.ask(group)
                if server.lost:
                    break
        return tuple(outcomes)

    def close(self) -> None:
        """End the worker processes; the next workload starts another."""
        for ubatch in tuple(self._workers):
            self._end(ubatch)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready_worker(self, ubatch: int) -> "_Worker":
        worker = self._workers.get(ubatch)
        if worker is not None and worker.jobs >= SERVERS_PER_PROCESS:
            self._end(ubatch)
            worker = None
        if worker is None:
            worker = self._workers[ubatch] = _Worker(self._python, self._log)
        return worker

    def _end(self, ubatch: int) -> None:
        self._workers.pop(ubatch).end()


class Played:
    """A running server that answers groups of steps."""

    def __init__(self, worker: "_Worker", probabilities: int) -> None:
        self._worker = worker
        self._probabilities = probabilities

    @property
    def lost(self) -> bool:
        """True when nothing sound can be asked of it any more.

        The process ended, or it refused one request of a group: what it does with the others of
        such a group is a race.
        """
        return self._worker.lost

    def ask(self, group: Sequence[Step]) -> tuple[Outcome, ...]:
        """Send steps that go out together; one outcome each."""
        answer = self._worker.order({"call": call_for(group, probabilities=self._probabilities)})
        if answer is None:
            self._worker.lost = True
            return tuple(Outcome(error=CRASH) for _ in group)
        outcomes = outcomes_of(group, answer)
        if len(group) > 1 and any(outcome.error for outcome in outcomes):
            self._worker.lost = True
        return outcomes


class _Worker:
    """One process that runs servers of one release."""

    def __init__(self, python: Path, log: Path | None) -> None:
        script = Path(__file__).with_name("llamacpp_worker.py")
        self.jobs = 0
        self.lost = False
        self._log: BinaryIO | None = log.open("ab") if log else None
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            [str(python), "-u", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log or subprocess.DEVNULL,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # an abort need not call a debugger
        )
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, values: Json) -> None:
        """Start a fresh server; raises where it refuses its parameters."""
        self.jobs += 1
        answer = self.order({"start": values})
        if answer is None or "failed" in answer:
            why = answer["failed"] if answer else "the process ended"
            msg = f"the real server does not start with {values}: {why}"
            raise RealServerError(msg)

    def order(self, what: Json) -> Json | None:
        """Send one order and wait; None when the process ended or fell silent."""
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 - it was asked for
        try:
            stdin.write(json.dumps(what).encode() + b"\n")
            stdin.flush()
            line = self._lines.get(timeout=SECONDS_FOR_ONE_CALL + 10)
        except (BrokenPipeError, Empty):
            return None
        answer: Json | None = json.loads(line) if line else None
        return answer

    def end(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101
        for line in stdout:
            self._lines.put(line)
        self._lines.put(b"")


def parameters(options: Mapping[str, Any]) -> Json:
    """The wheel's parameters for a server's flags."""
    values: Json = dict(SURROUNDINGS)
    for flag, value in options.items():
        if flag not in PARAMETERS:
            msg = f"the real server is not driven with {flag!r}; there are {', '.join(PARAMETERS)}"
            raise OptionError(msg)
        values[PARAMETERS[flag]] = _as_parameter(flag, value)
    return values


def _as_parameter(flag: str, value: Value) -> Value:
    if flag == "spec_type":
        name = f"COMMON_SPECULATIVE_TYPE_{SPECULATION[value]}"
        return [f"enum:common_speculative_type.{name}"]
    if flag in {"cache_type_k", "cache_type_v"}:
        return f"enum:ggml_type.GGML_TYPE_{value.upper()}"
    if flag == "flash_attn":
        return f"enum:llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_{'EN' if value else 'DIS'}ABLED"
    return value


def effective_ubatch(values: Mapping[str, Any]) -> int:
    """The ubatch size that a server started with these parameters works with."""
    return min(int(values[each]) for each in ("n_ctx", "n_batch", "n_ubatch"))


def grouped(steps: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """Steps that go out together, in order."""
    group: list[Step] = []
    for step in steps:
        if group and not step.with_previous:
            yield tuple(group)
            group = []
        group.append(step)
    if group:
        yield tuple(group)


def call_for(group: Sequence[Step], *, probabilities: int = 0) -> Json:
    """The HTTP call that plays a group of steps."""
    first = group[0]
    if first.do != "complete":
        action = first.do.removeprefix("slot-")
        named = {"filename": first.file} if first.file else {}
        return {"path": f"/slots/{first.slot}?action={action}", "body": named}
    prompts = [list(step.prompt) for step in group]
    body: Json = {
        **GREEDY,
        "prompt": prompts if len(prompts) > 1 else prompts[0],
        "n_predict": first.predict,
        "cache_prompt": first.cache_prompt,
        "n_probs": probabilities,
        **first.options,
    }
    if first.slot >= 0:
        body["id_slot"] = first.slot
    return {"path": "/completion", "body": body, "timeout": SECONDS_FOR_ONE_CALL}


def outcomes_of(group: Sequence[Step], answer: Json) -> tuple[Outcome, ...]:
    """What an answer says about each step of its group."""
    body = answer["body"]
    if answer["status"] != 200:
        return tuple(Outcome(error=str(body["error"]["type"])) for _ in group)
    if group[0].do != "complete":
        return (Outcome(slot=group[0].slot),)
    replies = body if isinstance(body, list) else [body]
    if len(replies) != len(group):
        msg = f"the real server answered {len(replies)} of {len(group)} prompts"
        raise RealServerError(msg)
    return tuple(_outcome(reply) for reply in replies)


def _outcome(reply: Json) -> Outcome:
    timings = reply["timings"]
    return Outcome(
        cached=timings["cache_n"],
        processed=timings["prompt_n"],
        reply=as_tokens(reply["tokens"]),
        slot=reply["id_slot"],
        truncated=reply["truncated"],
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
        top=tuple(
            {Token(each["id"]): each["logprob"] for each in token["top_logprobs"]}
            for token in reply.get("completion_probabilities", ())
        ),
    )
