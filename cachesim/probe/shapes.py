"""Shapes of the user's own requests, for `--like`: lengths and equal prefixes, none of the text.

log, trace    prompt [[0, 0, 6758], [1, 0, 90]]     runs of texts, equal where prompts are
sent          265 273 ... of the drawn words        one token for each `scale` of a text
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

from cachesim.engines.tokens import Run
from cachesim.errors import InputError
from cachesim.scenario import load
from cachesim.scenario.format import Step
from cachesim.testing.workloads import FIRST_WORD, LAST_WORD
from cachesim.traces.forms import is_call, opened
from cachesim.traces.reading import is_batch, open_trace
from cachesim.typed import Json
from cachesim.why.explain.live import Live
from cachesim.why.explain.whole import UserSettings, open_log, read_files, replays_of
from cachesim.why.infer.settings import Settings
from cachesim.why.read.dump import DumpReader, is_dump
from cachesim.why.read.mlx_debug import as_dump, has_bodies
from cachesim.why.rebuild.from_recording import request_of
from cachesim.why.replay.other import workload_of

HEAD: Final = 1 << 16
MOST: Final = 5_000
"""Requests of a file that are taken."""

TOGETHER: Final = 8
"""Successive requests of a log or trace that are one workload."""

LONGEST_REPLY: Final = 4


Requests: TypeAlias = tuple[tuple[tuple[Run, ...], tuple[Run, ...]], ...]
"""Prompt and reply of each request."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """A scenario's steps, or prompts and replies as runs of texts."""

    steps: tuple[Step, ...] = ()
    requests: Requests = ()
    server: Settings | None = None  # of a log

    @classmethod
    def read(cls, path: Path, model: str | None = None) -> "Shapes":
        """Those of a scenario, a log, recorded requests or a trace; InputError if there is none.

        `model` is that of a log's server, if it is known.
        """
        is_scenario = path.suffix == ".toml"
        found = cls(_steps_of(path)) if is_scenario else cls((), *_requests_of(path, model))
        if not found.steps and not found.requests:
            msg = f"--like {path}: has no prompt of known tokens; `cachesim record` writes some"
            raise InputError(msg)
        return found

    def workloads(self, longest: int) -> Iterator[tuple[Step, ...]]:
        """The scenario's steps; successive requests, scaled to prompts of `longest` tokens."""
        if self.steps:
            yield self.steps
        for at in range(
            0, max(bool(self.requests), len(self.requests) - TOGETHER // 2), TOGETHER // 2
        ):
            part = self.requests[at : at + TOGETHER]
            most = max(sum(last - first for _, first, last in prompt) for prompt, _ in part)
            runs = max(len(prompt) for prompt, _ in part)  # each may be rounded up by a token
            scale = -(-most // max(1, longest - runs))
            yield tuple(
                Step(
                    name=f"r{number}",
                    prompt=_tokens(prompt, scale)[:longest],
                    reply=_tokens(reply, scale)[:LONGEST_REPLY] or (FIRST_WORD,),
                )
                for number, (prompt, reply) in enumerate(part)
            )


def _tokens(runs: Sequence[Run], scale: int) -> tuple[int, ...]:
    size = LAST_WORD - FIRST_WORD + 1
    return tuple(
        FIRST_WORD + hash((text, place)) % size
        for text, first, last in runs
        for place in range(first // scale, -(-last // scale))
    )


def _steps_of(path: Path) -> tuple[Step, ...]:
    """Steps whose tokens are numbered anew."""
    size = LAST_WORD - FIRST_WORD + 1

    def renumbered(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(FIRST_WORD + token % size for token in tokens)

    return tuple(
        replace(
            step,
            prompt=renumbered(step.prompt),
            reply=renumbered(step.reply if isinstance(step.reply, tuple) else (FIRST_WORD,)),
            options={},
        )
        for step in load(path).step
        if step.do == "complete" and isinstance(step.prompt, tuple)
    )


def _requests_of(path: Path, model: str | None) -> tuple[Requests, Settings | None]:
    _, file = open_log(str(path))
    with file:
        head = file.read(HEAD)
        file.seek(0)
        first = _first_of(head)
        recorded = has_bodies(head) or (is_dump(head) and not _is_chat(first))
        trace = open_trace(path) if _is_trace(first) else None
        if trace is None and not recorded:
            trace = opened(path, str(path))
        if trace is not None:
            unit, requests = trace
            known = (
                (request.runs or tuple((block, 0, unit) for block in request.blocks), request.reply)
                for request in islice(requests, MOST)
            )
            return tuple(known), None
        server = None
        if recorded:
            reader, live = DumpReader(), Live(UserSettings())
            reader.read(str(path), as_dump(file) if has_bodies(head) else file)
            live.add_all(reader.requests[:MOST])
            pairs = [(prompt.rope, request_of(prompt).reply) for prompt in live.prompts]
        else:
            replays = replays_of(read_files([(str(path), file)]), UserSettings(model=model))
            server = replays[0].settings if replays else None
            pairs = [
                (request.prompt, request.reply)
                for replay in replays
                for request in workload_of(replay).submitted.values()
            ]
    found = ((tuple(prompt.runs), tuple(reply.runs)) for prompt, reply in pairs if prompt.runs)
    return tuple(found), server


def _first_of(head: bytes) -> Json:
    """The first line, if it is JSON and no longer than the head."""
    try:
        return json.loads(head.lstrip().partition(b"\n")[0])
    except ValueError:
        return None


def _is_chat(first: Json) -> bool:
    """True for a chat with its replies, or a call with its body; `record` keeps neither."""
    if not isinstance(first, dict) or first.keys() & {"request", "segments", "action"}:
        return False
    return ("messages" not in first and "prompt" not in first) or not is_call(first)


def _is_trace(first: Json) -> bool:
    if isinstance(first, dict) and "prompt" in first:
        prompt = first["prompt"]
        return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], list)
    return is_batch(first) or (isinstance(first, dict) and "hash_ids" in first)
