"""`python -m conformance.real_recorder`: the recorder between the openai package and real servers.

    client ──> recorder ──> tap ──> llama-server b11549, mlx_lm.server 0.32.2
    client ───────────────────────> the same, for comparison

The tap is a plain pipe of bytes that keeps what the servers really sent. What cannot be installed
is skipped, loudly; one difference is a failure.
"""

import http.client
import importlib
import io
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rich.console import Console

from cachesim.model.presets import preset
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.llama_cpp.gguf import write_model
from cachesim.prove.llama_cpp.server import RealServer
from cachesim.prove.mlx_lm.process import environment_for as mlx_environment_for
from conformance import http_worker

OUT: Final = Console(highlight=False, soft_wrap=True)
CLIENTS: Final = 8
SECONDS: Final = 60
CHAT: Final = "/v1/chat/completions"
HOLDS: Final = "leaving"
"""The user whose answers the tap holds back."""
PIECES: Final = 3
"""So many pieces of them are passed on."""
LONG_REPLY: Final = 5000
AGREEING: Final = 0.9
"""The share of requests whose replay reuses exactly what the server did."""
SYSTEM: Final = "w11 w12 w13 w14 w15 w16 " * 12
Json = dict[str, Any]


@dataclass
class Pipe:
    """One connection through the tap."""

    asked: bytearray = field(default_factory=bytearray)
    answered: bytearray = field(default_factory=bytearray)
    server_done: bool = False  # the end of the answer was passed on, or was held back in vain
    client_left: bool = False  # while the answer was unfinished
    holds: bool = False  # after some pieces nothing is passed on until the client is gone
    gone: threading.Event = field(default_factory=threading.Event)

    @property
    def body(self) -> bytes:
        return body_of(bytes(self.answered))

    @property
    def sent(self) -> bytes:
        return bytes(self.asked).split(b"\r\n\r\n", 1)[-1]


class Tap:
    """A pipe of bytes to a server.

    An answer whose request says `holds` is held back in the middle until whoever asked is gone.
    Without that, a small model would be through with its reply before a slow client can leave.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._to = (parts.hostname or "", parts.port or 80)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.pipes: list[Pipe] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                server = socket.create_connection(self._to)
                pipe = Pipe()
                self.pipes.append(pipe)
                for take in (self._up, self._down):
                    threading.Thread(target=take, args=(client, server, pipe), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, pipe: Pipe) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                pipe.asked += data
                if HOLDS.encode() in pipe.asked:
                    pipe.holds = True
                server.sendall(data)
        pipe.client_left = not pipe.server_done
        pipe.gone.set()
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _down(self, client: socket.socket, server: socket.socket, pipe: Pipe) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                pipe.answered += data
                client.sendall(data)
                if pipe.holds and pipe.answered.count(b"data:") >= PIECES:
                    pipe.server_done = not pipe.gone.wait(SECONDS)
        pipe.server_done = True
        with suppress(OSError):
            client.shutdown(socket.SHUT_WR)

    def answers(self, needle: bytes) -> list[Pipe]:
        """The connections whose request holds something."""
        return [pipe for pipe in self.pipes if needle in pipe.asked]


class Bytes(socket.socket):
    """The received answer, as parsed by `http.client`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: Any, **__: Any) -> Any:
        return io.BytesIO(self._data)


def body_of(data: bytes) -> bytes:
    answer = http.client.HTTPResponse(Bytes(data))
    answer.begin()
    return answer.read()


def whole(data: bytes) -> bool:
    """True if an answer's bytes are complete."""
    try:
        body_of(data)
    except (http.client.HTTPException, OSError, ValueError):
        return False
    return True


@dataclass
class Setup:
    """A real server, with the recorder before it."""

    name: str
    real: str
    url: str
    tap: Tap
    path: Path

    def entries(self) -> list[Json]:
        """The requests, with what a busy recorder adds to them in lines of their own."""
        entries: list[Json] = []
        whole, _, _ = self.path.read_text().rpartition("\n")  # the last line may be on its way
        for line in map(json.loads, whole.splitlines()):
            if "adds" in line:
                next(entry for entry in entries if entry["number"] == line["number"]).update(
                    line["adds"]
                )
            else:
                entries.append(line)
        return entries

    def written(self, count: int) -> list[Json]:
        """The requests, when there are so many."""
        ends = time.monotonic() + SECONDS
        while len(self.entries()) < count and time.monotonic() < ends:
            time.sleep(0.02)
        return self.entries()

    def settle(self) -> None:
        """Wait until everything that has passed is written."""
        size = -1
        while size != self.path.stat().st_size:
            size = self.path.stat().st_size
            time.sleep(1.0)

    def client(self) -> Any:
        openai: Any = importlib.import_module("openai")
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="sk-secret", max_retries=0)


@contextmanager
def recorded(name: str, real: str, *more: str) -> Iterator[Setup]:
    tap = Tap(real)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recorded.jsonl"
        command = [sys.executable, "-m", "cachesim", "record", "--upstream", tap.url]
        command += ["--listen", "127.0.0.1:0", "--quiet", "-o", str(path), *more]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        line = process.stderr.readline()
        try:
            yield Setup(name, real, line.partition(" passes on")[0], tap, path)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=SECONDS)
            tap.close()


@contextmanager
def llama(kind: str, slots: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"{kind}.gguf"
        write_model(preset(kind), model)
        options = {"ctx_size": 8192 * slots, "parallel": slots}
        with RealServer("b11549") as real, real.started(options, model) as server:
            yield server.address


@contextmanager
def mlx() -> Iterator[str]:
    python = mlx_environment_for("0.32.2").ready()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-I", http_worker.__file__, folder, str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        url = f"http://127.0.0.1:{port}"
        try:
            ends = time.monotonic() + 2 * SECONDS
            while time.monotonic() < ends and call(url, "GET", "/health")[0] != 200:
                time.sleep(0.2)
            yield url
        finally:
            process.kill()
            process.wait()


def call(url: str, method: str, path: str, body: Json | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=SECONDS)
    data = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def chat(*texts: str, system: str = SYSTEM, **fields: Any) -> Json:
    """A chat: a system prompt, then user and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {
        "model": "default_model",
        "messages": messages,
        "max_tokens": 6,
        "temperature": 0,
    } | fields


Found = tuple[bool, str]


def same_bytes(setup: Setup) -> Found:
    """A client gets the bytes that the server sent; where these never vary, as without us."""
    wrong: list[str] = []
    requests = [
        chat("w1 w2"),
        chat("w1 w2", stream=True, stream_options={"include_usage": True}),
        {"prompt": "w5 w6 w7", "max_tokens": 4, "temperature": 0},
        {"prompt": "w5 w6 w7", "max_tokens": 4, "temperature": 0, "stream": True},
    ]
    for index, request in enumerate(requests):
        path = CHAT if "messages" in request else "/v1/completions"
        mark = f"mark-{index}"
        got = call(setup.url, "POST", path, {**request, "user": mark})
        sent = setup.tap.answers(mark.encode())[0].body
        if got != (200, sent):
            wrong.append(f"{path} {index}")
    never: list[tuple[str, str, Any]] = [
        ("GET", "/v1/models", None), ("GET", "/health", None), ("GET", "/nothing", None),
        ("POST", CHAT, {"messages": "nonsense"}), ("POST", CHAT, {}),
    ]  # fmt: skip
    if setup.name == "llama.cpp":
        never += [
            ("GET", "/props", None),
            ("POST", "/tokenize", {"content": "w1 w2", "with_pieces": True}),
            ("POST", "/apply-template", {"messages": chat("w1")["messages"]}),
        ]
    for method, path, body in never:
        with_, without = call(setup.url, method, path, body), call(setup.real, method, path, body)
        if with_ != without:
            created = (b'"created"',)
            if not any(word in with_[1] for word in created):
                wrong.append(f"{method} {path}: {with_} is not {without}")
    return not wrong, "; ".join(wrong) or f"{len(requests) + len(never)} calls"


def streams_in_order(setup: Setup) -> Found:
    """The openai package sees the same pieces in the same order as without the recorder."""
    openai: Any = importlib.import_module("openai")
    seen = []
    for url in (setup.real, setup.url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-secret", max_retries=0)
        request = chat("w3 w4 w5", max_tokens=40, stream=True)
        pieces = [
            (each.choices[0].delta.content, each.choices[0].finish_reason)
            for each in client.chat.completions.create(**request)
            if each.choices
        ]
        seen.append(pieces)
    return seen[0] == seen[1] and len(seen[1]) > 10, f"{len(seen[1])} pieces"


def cancels_arrive(setup: Setup) -> Found:
    """A client that stops reading is gone for the server too, which is free for the next one.

    Only this request is written as cancelled: those that read to the end were answered.
    """
    setup.settle()
    client = setup.client()
    request = chat("w9", max_tokens=LONG_REPLY, stream=True, user=HOLDS)
    request["extra_body"] = {"ignore_eos": True}  # of llama-server
    request["logit_bias"] = {str(http_worker.MARKS.index("<|im_end|>")): -100}
    stream = client.chat.completions.create(**request)
    for _, _piece in zip(range(PIECES), stream, strict=False):
        pass
    stream.close()
    client.close()
    (pipe,) = setup.tap.answers(HOLDS.encode())
    pipe.gone.wait(SECONDS)
    status, _ = call(setup.url, "POST", CHAT, chat("w9 w9"))
    setup.settle()
    written = [
        entry["sampling"].get("max_tokens") for entry in setup.entries() if entry["cancelled"]
    ]
    return pipe.client_left and written == [LONG_REPLY] and status == 200, (
        f"left {pipe.client_left}, then {status}, cancelled are those of {written} tokens"
    )


def many_clients(setup: Setup) -> Found:
    """Eight clients at once, three turns each: everybody gets what the server sent for them."""
    setup.settle()
    before = len(setup.entries())

    def talk(number: int) -> bool:
        texts = [f"w{number} w{number + 20}"]
        fine = True
        for turn in range(3):
            mark = f"client-{number}-{turn}"
            status, body = call(setup.url, "POST", CHAT, chat(*texts, user=mark))
            fine = fine and status == 200 and body == setup.tap.answers(mark.encode())[0].body
            texts += [json.loads(body)["choices"][0]["message"]["content"], f"w{turn + 60}"]
        return fine

    with ThreadPoolExecutor(CLIENTS) as pool:
        fine = list(pool.map(talk, range(CLIENTS)))
    written = len(setup.written(before + 3 * CLIENTS)) - before
    return all(
        fine
    ) and written == 3 * CLIENTS, f"{sum(fine)} of {CLIENTS} clients, {written} lines"


def cached_is_the_servers(setup: Setup) -> Found:
    """Recorded reuse equals the server's, in every answer."""
    compared = wrong = 0
    reported: dict[str, list[Any]] = {}
    for pipe in setup.tap.pipes:
        if b"chat/completions" not in pipe.asked or not whole(bytes(pipe.answered)):
            continue
        with suppress(ValueError):
            body = json.loads(pipe.body)
            if "usage" in body:
                key = str(len(pipe.body))
                details = body["usage"]["prompt_tokens_details"]["cached_tokens"]
                reported.setdefault(key, []).append((body["usage"]["prompt_tokens"], details))
    for entry in setup.entries():
        key = str(entry["bytes"]["answer"])
        usage = entry["usage"]
        if (
            entry["path"] != CHAT
            or entry["stream"]
            or key not in reported
            or "prompt_tokens" not in usage
        ):
            continue
        compared += 1
        said = (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])
        wrong += said not in reported[key]
    return compared > 20 and not wrong, f"{compared - wrong} of {compared} requests"


# -- planted rewrites ------------------------------------------------------------------------

SCHEMA: Final = {"type": "object", "properties": {"path": {"type": "string"}}}
BLOCKS: Final[list[Json]] = [
    {"role": "user", "content": "w51"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "w52 w53", "signature": "s"},
        {"type": "text", "text": "w54"},
        {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a b"}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "w55"}]},
        {"type": "text", "text": "w56"}]},
]  # fmt: skip
ITEMS: Final[list[Json]] = [
    {"role": "user", "content": "w51"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "w54"}]},
    {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path": "a b"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "w55"},
    {"role": "user", "content": [{"type": "input_text", "text": "w56"}]},
]
MIXED: Final[tuple[tuple[str, Json], ...]] = (
    (CHAT, chat("w50", system=f"mixed {SYSTEM}")),
    ("/v1/messages", {
        "max_tokens": 4, "system": f"mixed {SYSTEM}", "messages": BLOCKS[:1]}),
    ("/v1/responses", {
        "max_output_tokens": 4, "instructions": f"mixed {SYSTEM}", "input": "w50"}),
    ("/v1/messages", {
        "max_tokens": 4, "messages": BLOCKS, "system": [{"type": "text", "text": SYSTEM}],
        "tools": [{"name": "read", "description": "read it", "input_schema": SCHEMA}]}),
    ("/v1/responses", {
        "max_output_tokens": 4, "input": ITEMS,
        "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}]}),
)  # fmt: skip
"""A conversation that changes its API."""

TOOLS: Final = [
    {
        "type": "function",
        "function": {"name": name, "description": f"{name} it", "parameters": {"type": "object"}},
    }
    for name in ("read", "write", "run")
]
REMINDER: Final = "<system-reminder>w99 w98</system-reminder>"
LONG: Final = "w40 w41 w42 w43 w44 w45 " * 8


def image(data: str) -> Json:
    url = {"url": f"data:image/png;base64,{data}"}
    parts = [{"type": "text", "text": "w1"}, {"type": "image_url", "image_url": url}]
    return {"role": "user", "content": parts}


def tool_turn(arguments: str, number: str = "call_0a1b2c3d4e5f6a7b") -> list[Json]:
    function = {"name": "read", "arguments": arguments}
    return [
        {"role": "user", "content": "w1"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": number, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": number, "content": LONG},
        {"role": "user", "content": "w2"},
    ]  # fmt: skip


def with_messages(*messages: Json, system: str = SYSTEM) -> Json:
    request = chat(system=system)
    request["messages"] += messages
    return request


def said(role: str, content: str, **fields: Any) -> Json:
    return {"role": role, "content": content, **fields}


PLANTED: Final[tuple[tuple[str, Json, Json], ...]] = (
    ("clock", chat("w1", system=f"w0 10:31 {SYSTEM}"), chat("w1", system=f"w0 10:32 {SYSTEM}")),
    ("clock", chat("w1", system=f"{SYSTEM} 2026-11-20"), chat("w1", system=f"{SYSTEM} 2026-11-21")),
    ("counter", chat("w1", system=f"{SYSTEM} turn 4 w1"), chat("w1", system=f"{SYSTEM} turn 5 w1")),
    ("identifier", chat("w1", system=f"cch=4defa; {SYSTEM}"),
     chat("w1", system=f"cch=1c8b4; {SYSTEM}")),
    ("whitespace", chat(f"{LONG} w1", "w2", "w3"), chat(f"{LONG}  w1", "w2", "w3")),
    ("tools-reordered", chat("w1", tools=TOOLS), chat("w1", tools=TOOLS[::-1])),
    ("tools-removed", chat("w1", tools=TOOLS), chat("w1", tools=TOOLS[:2])),
    ("keys-reordered", chat("w1", tools=TOOLS),
     chat("w1", tools=[dict([*tool.items()][::-1]) for tool in TOOLS])),
    ("reasoning-dropped",
     with_messages(said("user", "w1"), said("assistant", "w2", reasoning_content=LONG),
                   said("user", "w3")),
     chat("w1", "w2", "w3")),
    ("history-truncated", chat("w1", "w2", f"w3 {LONG}", "w4", "w5"),
     chat(f"w3 {LONG}", "w4", "w5")),
    ("message-removed", with_messages(said("user", "w1"), said("user", LONG), said("user", "w3")),
     with_messages(said("user", LONG), said("user", "w3"))),
    ("message-inserted", with_messages(said("user", LONG), said("user", "w3")),
     with_messages(said("user", "w1"), said("user", LONG), said("user", "w3"))),
    ("reminder-added", chat(LONG, "w2", "w3"), chat(f"{LONG}{REMINDER}", "w2", "w3")),
    ("reminder-moved", chat(f"{LONG}{REMINDER}", "w2", "w3"), chat(LONG, "w2", f"w3{REMINDER}")),
    ("attachment-changed", with_messages(image("AAAA")), with_messages(image("BBBB"))),
    ("attachment-dropped", with_messages(image("AAAA"), said("assistant", "w2")),
     chat("w1", "w2", "w3")),
    ("attachment-moved", with_messages(image("AAAA"), said("assistant", "w2")),
     with_messages(said("user", "w1"), said("assistant", "w2"), image("AAAA"))),
    ("system-changed", chat(LONG, "w2", "w3"),
     chat(LONG, "w2", "w3", "w4", "w5", system=f"w50 w51 {LONG}")),
    ("same-template", chat(f"w1 {LONG}"), chat(f"w9 {LONG}")),
    ("side-task", chat(LONG, "w2", "w3"), chat(LONG, system="Write a short title for this.")),
    ("truncated", chat(f"{LONG} w1", "w2", "w3"), chat(LONG[:150], "w2", "w3")),
    ("cleared", chat(f"{LONG} w1", "w2", "w3"), chat("[old result cleared]", "w2", "w3")),
    ("reserialised", with_messages(*tool_turn('{"path": "a", "n": 1}')),
     with_messages(*tool_turn('{"path":"a","n":1}'))),
    ("edited", chat(f"w1 {LONG}", "w2", "w3"), chat(f"w9 {LONG}", "w2", "w3")),
    ("role", with_messages(said("user", LONG), said("user", "w3")),
     with_messages(said("assistant", LONG), said("user", "w3"))),
    ("messages-joined", with_messages(said("user", LONG), said("user", "w3"), said("user", "w4")),
     with_messages(said("user", f"{LONG} w3"), said("user", "w4"))),
    ("compacted", chat("w1", f"w2 {LONG}", "w3", "w4", "w5"),
     chat("This is a summary of the previous conversation: w300 w301.")),
)  # fmt: skip
"""A planted rewrite: its name, a request, and the client's version of it."""


def rewrites_are_named(setup: Setup) -> Found:
    """Each planted rewrite is named; every pair is told apart by a word at its beginning."""
    missed = []
    setup.settle()
    for number, (kind, first, second) in enumerate(PLANTED):
        before = len(setup.entries())
        for request in (first, second):
            call(setup.url, "POST", CHAT, apart(request, f"{chr(ord('a') + number) * 8} "))
        found = setup.written(before + 2)[-1].get("parting", {}).get("kind", "nothing")
        if found != kind:
            missed.append(f"{kind} is taken for {found}")
    kinds = {kind for kind, _, _ in PLANTED}
    return not missed, "; ".join(missed) or f"{len(PLANTED)} pairs, {len(kinds)} kinds"


def apart(request: Json, mark: str) -> Json:
    """The request as one of a conversation of its own."""
    changed = deepcopy(request)
    changed["messages"][0]["content"] = mark + changed["messages"][0]["content"]
    return changed


def why_agrees(setup: Setup) -> Found:
    """`cachesim why` reads the file, and its replay reuses as many tokens as the server did.

    Where the server tells no tokens, lengths are estimates, and what the template writes before the
    first text is learned from the first request that shares nothing else.
    """
    command = [sys.executable, "-m", "cachesim", "why", str(setup.path), "--format", "json"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        return False, found.stderr[-200:]
    told = json.loads(found.stdout)
    agreement = told["agreement"]
    line = f"{told['server']['profile']}: {agreement['agreeing']} of {agreement['comparable']}"
    return agreement["agreeing"] >= AGREEING * agreement["comparable"] > 0, line


def slots_are_followed(setup: Setup) -> Found:
    """Slots that are saved, erased and restored between the turns of a conversation."""
    if call(setup.url, "POST", "/slots/0?action=erase", {})[0] != 200:
        return True, "the server has no slots"
    setup.settle()
    texts: list[str] = ["w70 w71"]
    marks = [("save", "kept"), ("erase", ""), None, ("restore", "kept"), ("restore", "none"), None]
    before, statuses = len(setup.entries()), []
    for number, action in enumerate(marks):
        asked = chat(*texts, id_slot=0, system=f"slots {SYSTEM}")
        _, body = call(setup.url, "POST", CHAT, asked)
        texts += [json.loads(body)["choices"][0]["message"]["content"], f"w{number + 72}"]
        if action is not None:
            path = f"/slots/0?action={action[0]}"
            statuses.append(call(setup.url, "POST", path, {"filename": action[1]})[0])
    setup.written(before + len(marks) + len(statuses))
    command = [sys.executable, "-m", "cachesim", "why", str(setup.path), "--format", "json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    told = [
        request for request in json.loads(found.stdout)["requests"] if request["number"] >= before
    ]
    agree = [each["agrees"] for each in told]
    taken = [each["slot_taken"] for each in told if each["slot_taken"]]
    well = all(agree) and statuses == [200, 200, 200, 400] and len(taken) == 3
    return well, f"{sum(agree)} of {len(told)} requests; {'; '.join(taken)}"


def other_apis_are_exact(setup: Setup) -> Found:
    """Anthropic's messages and OpenAI's responses have exact tokens, also beside chats."""
    if setup.name != "llama.cpp":
        return True, "the server shows no tokens"
    setup.settle()
    before = len(setup.entries())
    statuses = [call(setup.url, "POST", path, body)[0] for path, body in MIXED]
    entries = setup.written(before + len(MIXED))[before:]
    setup.settle()
    exact = sum("tokens" in entry for entry in setup.entries()[before:])
    well = exact == len(entries) == len(MIXED) and set(statuses) == {200}
    return well, f"{exact} of {len(MIXED)} requests"


def no_secrets(setup: Setup) -> Found:
    """No key of the client, and no word of its texts, is in the file."""
    text = setup.path.read_text()
    found = [word for word in ("sk-secret", "w11 w12", "summary") if word in text]
    return not found, ", ".join(found) or f"{len(text):,} bytes looked at"


CHECKS: Final[tuple[Callable[[Setup], Found], ...]] = (
    same_bytes, streams_in_order, cancels_arrive, many_clients, rewrites_are_named,
    cached_is_the_servers, other_apis_are_exact, no_secrets, why_agrees, slots_are_followed,
)  # fmt: skip


def main() -> int:
    """All checks on both servers; 1 where one does not hold."""
    try:
        importlib.import_module("openai")
        importlib.import_module("aiohttp")
    except ImportError as error:
        OUT.print(f"SKIPPED  the recorder's checks: {error}")
        return 0
    failed = 0
    servers: list[tuple[str, Callable[[], Any], list[str]]] = [
        ("llama.cpp", lambda: llama("dense", 1), ["--profile", "b11549"]),
        ("llama.cpp", lambda: llama("hybrid", 2), ["--profile", "b11549"]),
        ("mlx-lm", mlx, []),
    ]
    for name, start, more in servers:
        try:
            with start() as real, recorded(name, real, *more) as setup:
                for check in CHECKS:
                    well, line = check(setup)
                    failed += not well
                    word = "ok" if well else "FAILED"
                    OUT.print(f"{word:8} {name:10} {check.__name__}: {line}")
        except EnvironmentUnavailableError as error:
            OUT.print(f"SKIPPED  {name}: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
