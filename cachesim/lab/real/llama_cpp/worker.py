"""Inside a real release's environment: servers are started, and HTTP calls run on them.

One line of JSON in, one line out: `{"start": PARAMETERS}` starts a fresh server, `{"calls":
[[SECONDS, CALL], ...]}` runs HTTP calls on it, each so long after the one before it has begun, and
`{"stop": true}` ends it. Nothing of cachesim is imported here, and
nothing but the standard library and the wheel. A server that aborts takes this process with it:
the other end sees the silence.
"""

import gc
import http.client
import importlib
import json
import os
import shutil
import struct
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO, TypeAlias
from urllib.parse import urlsplit

Json: TypeAlias = dict[str, Any]
Wheel: TypeAlias = Any  # the module and what it makes: known only when it runs

CALL_MARK = "@@ call "

NO_TOKEN = -1


def main() -> None:
    """Serve until the input ends."""
    answers = keep_stdout_for_answers()
    wheel = importlib.import_module("xllamacpp")
    folder = tempfile.mkdtemp(prefix="slots-")
    server: Wheel = None
    try:
        for line in sys.stdin:
            order = json.loads(line)
            answer: Json | list[Json]
            if "calls" in order:
                answer = play_calls(server.listening_address, order["calls"])
                if "held" in order:
                    slot = order["held"]
                    file = Path(folder) / "held"
                    _call(
                        server.listening_address,
                        {"path": f"/slots/{slot}?action=save", "body": {"filename": file.name}},
                    )
                    data = file.read_bytes() if file.exists() else bytes(12)
                    file.unlink(missing_ok=True)
                    answer.append({"held": tokens_of(data)})
            elif "wait" in order:
                time.sleep(order["wait"])
                answer = {"waited": order["wait"]}
            elif "restart" in order:
                server = None
                gc.collect()
                server, answer = _started(wheel, order["restart"], folder, anew=False)
            else:
                server = None  # the wheel stops a server when nobody holds it
                gc.collect()
                server, answer = _started(wheel, order.get("start"), folder)
            answers.write(json.dumps(answer) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep_stdout_for_answers() -> TextIO:
    """Hand descriptor 1 to the wheel's chatter (it joins stderr) and return the real stdout."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def tokens_of(data: bytes) -> list[int]:
    """The tokens of a slot's file, behind three numbers.

    The newest releases write a list of their own there: no token, a version, how many, the tokens.
    """
    _, _, count = struct.unpack_from("<III", data)
    held = list(struct.unpack_from(f"<{count}i", data, 12))
    return held[3 : 3 + held[2]] if held[:1] == [NO_TOKEN] else held


def _started(
    wheel: Wheel, parameters: Json | None, folder: str, *, anew: bool = True
) -> tuple[Wheel, Json]:
    """A new server, with an empty slot folder if `anew`; without parameters none."""
    if parameters is None:
        return None, {"stopped": True}
    for saved in Path(folder).iterdir() if anew else ():
        saved.unlink()
    try:
        server = wheel.Server(parameters_of(wheel, {**parameters, "slot_save_path": f"{folder}/"}))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        return None, {"failed": f"{type(error).__name__}: {error}"}
    return server, {"started": server.listening_address}


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
        had = [each for each in last.split("|") if hasattr(owner, each)]
        if not had:
            raise AttributeError(name)
        setattr(owner, had[0], _resolved(wheel, value))
    return parameters


def _resolved(wheel: Wheel, value: Wheel) -> Wheel:
    if isinstance(value, list):
        return [_resolved(wheel, each) for each in value]
    if isinstance(value, dict):
        return wheel.CommonAdapterLoraInfo(value["adapter"], 1.0)
    if isinstance(value, str) and value.startswith("enum:"):
        kind, _, member = value.removeprefix("enum:").partition(".")
        return getattr(getattr(wheel, kind), member)
    return value


def _mark(path: str) -> None:
    """Show in the log where a call begins; the log is written behind our back, so let it catch up.

    Without a log descriptor 2 is the null device and nobody waits.
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
        return [each.result() for each in playing]


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


if __name__ == "__main__":
    main()
