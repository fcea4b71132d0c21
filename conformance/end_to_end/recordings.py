"""Recordings through `cachesim record` in front of real servers and of every other dialect.

Each recording is then read by `why` and `tune`, in every format, and compared with the servers'
counts.
"""

import gzip
import http.client
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.llama_cpp.fitting import Abilities
from cachesim.prove.llama_cpp.flags import draw_preset
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import RealServer, environment_for
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Model
from conformance.end_to_end.bench import Bench, Case, Result, Settings, Task, bench
from conformance.end_to_end.client import Answer, Call
from conformance.end_to_end.fakes import DIALECTS, Dialect, fake
from conformance.end_to_end.laws import broken_by_truth, schema
from conformance.end_to_end.life import Client, draw_options, releases
from conformance.end_to_end.lives import paired
from conformance.end_to_end.program import Ran, Started, started
from conformance.end_to_end.talk import Talker
from tests.scenario.json_schema import errors

FILE: Final = "recorded.jsonl"
SECRET: Final = "sk-this-stays-with-the-client"
DAMAGED: Final = frozenset({0, 2})
PLAYED: Final = frozenset({0, 1})
REAL_SHARE: Final = 5
"""One recording of so many is made in front of a real server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorder's file, and the server's counts."""

    name: str
    kind: str
    lines: bytes
    answers: tuple[Answer, ...]


def tasks(settings: Settings) -> Iterator[Task]:
    """The recordings of each dialect, and of some releases of llama.cpp."""
    real = settings.recordings // REAL_SHARE
    each = -(-(settings.recordings - real) // len(DIALECTS))
    for dialect in DIALECTS:
        yield Task(name=f"recordings of {dialect.name}", do=of_dialect,
                   given=(dialect.name, each, settings.seed))  # fmt: skip
    for at, release in enumerate(releases()):
        count = real * (at + 1) // len(releases()) - real * at // len(releases())
        yield Task(name=f"recordings of {release}", do=of_release,
                   given=(release, count, settings.seed))  # fmt: skip


def of_dialect(name: str, count: int, seed: int) -> Result:
    """Record a fake server, and read the recordings."""
    result = Result()
    (dialect,) = (each for each in DIALECTS if each.name == name)
    for number in range(count):
        rng = Random(f"recording {name} {seed} {number}")
        with bench(f"recording {name}", result) as place:
            result.inputs["recordings"] += 1
            _read(place, _recorded_fake(place, dialect, rng), number)
    return result


def of_release(release: str, count: int, seed: int) -> Result:
    """Record a real llama-server, and read the recordings."""
    result = Result()
    try:
        environment_for(release).ready()
    except EnvironmentUnavailableError as error:
        result.skipped.append(f"recordings of {release}: {error}")
        return result
    with TemporaryDirectory() as name, RealServer(release) as real:
        for number in range(count):
            rng = Random(f"recording {release} {seed} {number}")
            with bench(f"recording llama.cpp {release}", result) as place:
                result.inputs["recordings"] += 1
                models = Path(name)
                able = Abilities(release)
                preset, window = draw_preset(rng, abilities=able)
                options = draw_options(rng, able, preset)
                model = models / f"{preset}-{window}.gguf"
                if not model.exists():
                    write_model(spec_of(Model(preset=preset, window=window or None)), model)
                with (
                    real.started(options, model) as server,
                    recorder(place, server.address) as proxy,
                ):
                    client = Client(rng, Through(proxy), options)
                    client.live()
                _read(place, tuple(client.answers), number)
    return result


class Through:
    """A running server as its clients see it: at the recorder's address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.lost = False

    def send(self, _group: Sequence[Any]) -> tuple[Any, ...]:
        """Actions on the server itself do not go through the recorder."""
        return ()


def _recorded_fake(place: Bench, dialect: Dialect, rng: Random) -> tuple[Answer, ...]:
    """Three to eight requests; now and then one that is refused, malformed or for no model."""
    talker = Talker(rng, 300)
    streams = (dialect.name != "koboldcpp" and rng.random() < 0.5) or "stream" in dialect.name
    with fake(dialect) as server, recorder(place, server.address) as proxy:
        for _ in range(rng.randint(3, 8)):
            talk = talker.next()
            body = dialect.ask(talk.all_messages(), streams)
            if rng.random() < 0.05:
                _send(proxy, Call(path=dialect.path, body=body | {"refuse": True}))
            if rng.random() < 0.05:
                _send_malformed(proxy, dialect.path)
            _send(proxy, Call(path=dialect.path, body=body))
            talker.answered(talk, "[301][302][303][304]")
    return tuple(server.answers)


def _send(address: str, call: Call) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}"}
    with suppress(OSError, http.client.HTTPException):
        connection.request("POST", call.path, json.dumps(call.body).encode(), headers)
        connection.getresponse().read()
    connection.close()


def _send_malformed(address: str, path: str) -> None:
    """A request whose header no parser takes."""
    place = urlsplit(address)
    with (
        suppress(OSError),
        socket.create_connection((place.hostname or "", place.port or 80), timeout=30) as wire,
    ):
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {SECRET}\r\n"
        wire.sendall(head.encode() + b"bad\x01header\r\nContent-Length: 0\r\n\r\n")
        wire.recv(1 << 16)


@contextmanager
def recorder(place: Bench, upstream: str) -> Iterator[str]:
    """`cachesim record` in front of a server; its output must keep the laws."""
    words = ["record", "--upstream", upstream, "--listen", "127.0.0.1:0", "-o", FILE]
    running: Started = started(words, place.folder)
    line = running.first_line(b" passes on")
    try:
        yield line.partition(" passes on")[0]
    finally:
        ran = running.interrupted()
        case = Case(words=words, extra=_keeps_the_secret)
        place.took(case, ran)


def _keeps_the_secret(ran: Ran) -> Iterator[str]:
    if SECRET in ran.out + ran.err:
        yield "the client's key is printed"


def _read(place: Bench, answers: tuple[Answer, ...], number: int) -> None:
    """Run the command lines whose turn it is on one recording."""
    path = place.folder / FILE
    if not path.exists():
        if any(answer.status == 200 for answer in answers):
            place.fail("record", "requests were answered, and no file was written")
        return
    lines = path.read_bytes()
    if SECRET.encode() in lines:
        place.fail("record", "the client's key is in the file")
    for line in lines.splitlines():
        for problem in errors(json.loads(line), schema("requests"))[:1]:
            place.fail("record", f"not as docs/schema/requests-1.json says: {problem}")
    law = partial(_true, answers)
    place.try_(Case(words=["why", FILE, "--format", "json"], form="json", extra=law))
    for turn in (TURNS[number % len(TURNS)], TURNS[(number + 5) % len(TURNS)]):
        turn(place)


def _true(answers: tuple[Answer, ...], ran: Ran) -> Iterator[str]:
    found = json.loads(ran.out)
    yield from broken_by_truth(found, paired(answers, found["requests"]))


def _text(place: Bench) -> None:
    place.try_(Case(words=["why", FILE]))
    place.try_(Case(words=["why", FILE, "--worst", "9"]))


def _page(place: Bench) -> None:
    words = ["why", FILE, "--report", "why.html"]
    place.try_(Case(words=words, form="--report", writes=("why.html",)))


def _trace(place: Bench) -> None:
    words = ["why", FILE, "--trace", "t.jsonl"]
    ran = place.try_(Case(words=words, form="--trace", writes=("t.jsonl",), statuses=DAMAGED))
    if ran.status == 0:
        replay = ["compare", "t.jsonl", "-p", "vllm@0.33.0", "--model", "dense"]
        place.try_(Case(words=replay, statuses=PLAYED))
        place.try_(Case(words=[*replay, "--format", "json"], form="json", statuses=PLAYED))


def _scenario(place: Bench) -> None:
    words = ["why", FILE, "--scenario", "s.toml"]
    ran = place.try_(Case(words=words, form="--scenario", writes=("s.toml",), statuses=DAMAGED))
    if ran.status == 0:
        quick = ["run", "s.toml", "--arithmetic", "ring", "--format", "json"]
        place.try_(Case(words=quick, form="json", statuses=PLAYED))


def _one_request(place: Bench) -> None:
    place.try_(Case(words=["why", FILE, "--request", "0"], form="--request", statuses=DAMAGED))
    place.try_(Case(words=["why", FILE, "--what-if", "b9538"], form="--what-if", statuses=DAMAGED))


def _stdin(place: Bench) -> None:
    lines = (place.folder / FILE).read_bytes()
    place.try_(Case(words=["why", "-", "--format", "json"], form="json", stdin=lines))
    place.put("r.jsonl.gz", gzip.compress(lines))
    place.try_(Case(words=["why", "r.jsonl.gz"]))


def _tune(place: Bench) -> None:
    place.try_(Case(words=["why", "--tune", FILE], statuses=DAMAGED))


def _tune_json(place: Bench) -> None:
    place.try_(
        Case(words=["why", "--tune", FILE, "--format", "json"], form="json", statuses=DAMAGED)
    )


def _tune_page(place: Bench) -> None:
    words = ["why", "--tune", FILE, "--report", "tune.html"]
    place.try_(Case(words=words, form="--report", writes=("tune.html",), statuses=DAMAGED))


def _damaged(place: Bench) -> None:
    lines = (place.folder / FILE).read_bytes()
    rng = Random(lines)
    at = rng.randrange(len(lines))
    changed = lines[:at] + rng.choice((b"", b"\x00", b'"', b"{", b"9" * 30)) + lines[at + 1 :]
    place.put("damaged.jsonl", changed)
    place.put("cut.jsonl", lines[:at])
    for name in ("damaged.jsonl", "cut.jsonl"):
        place.try_(Case(words=["why", name], statuses=DAMAGED))
        words = ["why", name, "--format", "json"]
        place.try_(Case(words=words, form="json", statuses=DAMAGED))


TURNS: Final[tuple[Callable[[Bench], None], ...]] = (
    _text, _page, _trace, _one_request, _tune, _stdin, _scenario, _damaged, _tune_json,
    _tune_page,
)  # fmt: skip
