"""Logs of other servers: mlx-lm's own, at INFO and at DEBUG, and ik_llama.cpp's lines.

mlx-lm serves from its wheel. Of ik_llama.cpp there is no package, so its lines are written here
from the events of the port, in the two forms that its releases print; its replies are the truth.
"""

import gzip
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from cachesim.engines.base import Engine, Request
from cachesim.engines.events import Event
from cachesim.engines.ik_llama.vocabulary import PrefixMatched, SequenceTrimmed, SlotReleased
from cachesim.engines.mlx_lm.family import FAMILY as MLX
from cachesim.model.presets import preset
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.mlx_lm.process import environment_for
from cachesim.units import as_tokens
from conformance import http_worker
from conformance.end_to_end.bench import Bench, Case, Result, Settings, Task, bench
from conformance.end_to_end.client import Answer, Call, post
from conformance.end_to_end.laws import broken_by_truth
from conformance.end_to_end.lives import paired
from conformance.end_to_end.program import Ran
from conformance.end_to_end.talk import WORD, Talker

LOG: Final = "server.log"
DAMAGED: Final = frozenset({0, 2})
IK_LOGS: Final = 24
MLX_LIVES: Final = 6
"""Per release and level; half as many where the run is not a whole one."""

LEVELS: Final = ("INFO", "DEBUG")
IK_PROFILES: Final = ("ik_llama.cpp@8337e4cd3", "ik_llama.cpp@d2da6da05")
IK_MODELS: Final = ("dense", "swa", "hybrid", "hybrid-delta")
SECONDS: Final = 60


def tasks(settings: Settings) -> Iterator[Task]:
    """ik_llama.cpp's logs, and two releases of mlx-lm at each level."""
    ik_logs = IK_LOGS if settings.whole else IK_LOGS // 2
    yield Task(name="logs of ik_llama.cpp", do=of_ik, given=(settings.seed, ik_logs))
    releases = MLX.real()
    for release in (releases[0], releases[len(releases) // 2], releases[-1]):
        for at, level in enumerate(LEVELS):
            name = f"logs of mlx-lm {release} at {level}"
            numbers = range(MLX_LIVES) if settings.whole else range(at, MLX_LIVES, len(LEVELS))
            yield Task(name=name, do=of_mlx, given=(release, level, settings.seed, numbers))


def of_ik(seed: int, count: int) -> Result:
    """Play requests on the port and read the lines."""
    result = Result()
    for number in range(count):
        log, answers = ik_life(Random(f"ik {seed} {number}"), as_json=number % 2 == 1)
        with bench("ik_llama.cpp", result) as place:
            result.inputs["logs of ik_llama.cpp"] += 1
            read(place, log, answers, number)
    return result


def ik_life(rng: Random, *, as_json: bool) -> tuple[bytes, tuple[Answer, ...]]:
    """A server's lines, and its answers."""
    slots = rng.choice((1, 1, 2, 3))
    options = {"parallel": slots, "ctx_size": 2048 * slots}
    engine = Engine.create(
        rng.choice(IK_PROFILES),
        model=preset(rng.choice(IK_MODELS)),
        options=options,
        arithmetic="counts",
    )
    talker = Talker(rng, 500)
    lines: list[str] = []
    answers = []
    for task in range(rng.randint(3, 12)):
        talk = talker.next()
        prompt = as_tokens([int(each[1:-1]) for each in WORD.findall(talk.text)] or [300])
        seen = len(engine.events)
        reply_tokens = as_tokens([rng.randrange(270, 512) for _ in range(rng.randint(1, 20))])
        ticket = engine.submit(
            Request(prompt=prompt, predict=len(reply_tokens), reply=reply_tokens)
        )
        engine.run()
        reply = engine.reply(ticket)
        if reply is None or reply.error is not None or reply.slot is None:
            continue
        talker.answered(talk, "".join(f"[{each}]" for each in reply.generated))
        lines += _ik_lines(task, reply.slot, engine.events[seen:], reply.processed or 0,
                           len(reply.generated), as_json=as_json)  # fmt: skip
        answers.append(
            Answer(
                path="/completion",
                group=task,
                status=200,
                prompt=len(prompt),
                cached=reply.cached,
                processed=reply.processed,
                slot=reply.slot,
            )
        )
    return "".join(lines).encode(), tuple(answers)


def _ik_lines(
    task: int, slot: int, events: Sequence[Event], read: int, said: int, *, as_json: bool
) -> Iterator[str]:
    line = partial(_as_json if as_json else _keyed, slot=slot, task=task)
    yield line("slot is processing task")
    held = 0
    for event in events:
        if isinstance(event, PrefixMatched):
            found = f"n_past =  {event.n_past}, n_past_prompt = {event.n_past_prompt}"
            yield f"======== Cache: cache_size = {max(held, event.n_past)}, {found}\n"
        elif isinstance(event, SequenceTrimmed):
            yield line("kv cache rm [p0, end)", p0=event.p0)
        elif isinstance(event, SlotReleased):
            held = event.n_tokens
            yield f"slot print_timing: id  {slot} | task {task} | \n"
            yield f"prompt eval time =      40.00 ms / {read:5d} tokens (    1.00 ms per token)\n"
            yield f"       eval time =      10.00 ms / {said:5d} tokens (   20.00 ms per token)\n"
            keys = {"n_ctx": 2048, "n_past": held, "n_system_tokens": 0, "n_cache_tokens": held}
            yield line("slot released", **keys, truncated=event.truncated)


def _keyed(message: str, *, slot: int, task: int, **keys: Any) -> str:
    numbers = "".join(f" {name}={json.dumps(value)}" for name, value in keys.items())
    return (
        f'INFO [  some_function] {message} | tid="140" timestamp=1786800002 id_slot={slot} '
        f"id_task={task}{numbers}\n"
    )


def _as_json(message: str, *, slot: int, task: int, **keys: Any) -> str:
    head = {"tid": "140", "level": "INFO", "function": "some_function", "msg": message}
    return json.dumps({**head, "id_slot": slot, "id_task": task, **keys}) + "\n"


def of_mlx(release: str, level: str, seed: int, numbers: range) -> Result:
    """Play requests on the real server and read its log."""
    result = Result()
    try:
        python = environment_for(release).ready()
    except EnvironmentUnavailableError as error:
        result.skipped.append(f"logs of mlx-lm {release}: {error}")
        return result
    for number in numbers:
        rng = Random(f"mlx {release} {level} {seed} {number}")
        log, answers = mlx_life(python, level, rng)
        with bench(f"mlx-lm {release} {level}", result) as place:
            result.inputs["logs of mlx-lm"] += 1
            read(place, log, answers if level == "DEBUG" else (), number)
    return result


@contextmanager
def mlx_server(python: Path, level: str, folder: Path) -> Iterator[str]:
    """mlx_lm.server with a toy model, its log in a file."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(python), "-I", http_worker.__file__, str(folder), str(port), level]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _wait(port: int) -> None:
    ends = time.monotonic() + 2 * SECONDS
    while time.monotonic() < ends:
        connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):
            time.sleep(0.1)
        finally:
            connection.close()


def mlx_life(python: Path, level: str, rng: Random) -> tuple[bytes, tuple[Answer, ...]]:
    """A server's log, and its answers."""
    talker = Talker(rng, 300)
    answers: list[Answer] = []
    with TemporaryDirectory() as name:
        with mlx_server(python, level, Path(name)) as address:
            for group in range(rng.randint(3, 9)):
                calls = [_mlx_call(rng, talker) for _ in range(2 if rng.random() < 0.2 else 1)]
                with ThreadPoolExecutor(len(calls)) as pool:
                    told = [pool.submit(post, address, call, group) for call in calls]
                    answers += [each.result() for each in told]
        return (Path(name) / LOG).read_bytes(), tuple(answers)


def _mlx_call(rng: Random, talker: Talker) -> Call:
    talk = talker.next()
    messages = [
        message
        | {"content": re.sub(r"\[(\d+)\]", lambda m: f"w{int(m[1]) % 400} ", message["content"])}
        for message in talk.all_messages()
    ]
    body: dict[str, Any] = {"messages": messages, "max_tokens": rng.choice((1, 4, 12))}
    leaves = None
    if rng.random() < 0.3:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        leaves = rng.choice((None, None, 2))
    return Call(path="/v1/chat/completions", body=body, leave_after=leaves)


def read(place: Bench, log: bytes, answers: tuple[Answer, ...], number: int) -> None:
    place.put(LOG, log)
    law = partial(_true, answers)
    words = ["why", LOG, "--format", "json"]
    place.try_(Case(words=words, form="json", extra=law))
    place.try_(Case(words=["why", LOG]))
    match number % 6:
        case 0:
            page = ["why", LOG, "--report", "why.html"]
            place.try_(Case(words=page, form="--report", writes=("why.html",)))
        case 1:
            place.try_(Case(words=["why", "--tune", LOG], statuses=DAMAGED))
        case 2:
            trace = ["why", LOG, "--trace", "t.jsonl"]
            place.try_(Case(words=trace, form="--trace", writes=("t.jsonl",), statuses=DAMAGED))
            scenario = ["why", LOG, "--scenario", "s.toml"]
            place.try_(
                Case(words=scenario, form="--scenario", writes=("s.toml",), statuses=DAMAGED)
            )
        case 3:
            place.put(f"{LOG}.gz", gzip.compress(log))
            place.try_(Case(words=["why", f"{LOG}.gz"]))
            place.try_(Case(words=["why", "-"], form="stdin", stdin=log))
        case 4:
            rng = Random(log)
            at = rng.randrange(len(log))
            place.put("damaged.log", log[:at] + b"\xff\n" + log[at + rng.choice((1, 50, 900)) :])
            place.put("cut.log", log[:at])
            for name in ("damaged.log", "cut.log"):
                place.try_(Case(words=["why", name], statuses=DAMAGED))
                asked = ["why", name, "--format", "json"]
                place.try_(Case(words=asked, form="json", statuses=DAMAGED))
        case _:
            asked = ["why", LOG, "--what-if", "b9538"]
            place.try_(Case(words=asked, form="--what-if", statuses=DAMAGED))
            place.try_(Case(words=["bisect", LOG], statuses=frozenset({0, 1, 2})))


def _true(answers: tuple[Answer, ...], ran: Ran) -> Iterator[str]:
    found = json.loads(ran.out)
    if answers:
        yield from broken_by_truth(found, paired(answers, found["requests"]))
