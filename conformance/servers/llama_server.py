"""Runs in a wheel's environment: `llama-server`, its flags read by the wheel's own parser.

    python llama_server.py -m model.gguf -np 1 -c 4096 --port 8081

The module exports llama.cpp's `common_params_parse`. It is handed the words of a command line as
the program's `main` hands them over; then the module's server starts with what was made of them,
and serves until the process ends. With `--parse-only` alone nothing is started: command lines come
as JSON on standard input, a list of words each, and the answer says of each if it is accepted.
"""

import ctypes
import importlib
import json
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

Wheel: TypeAlias = Any  # the module and what it makes: known only when it runs

PARSE: Final = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
FIRST: Final = ("n_predict", "n_ctx", "n_batch", "n_ubatch")
"""The first members of `common_params`, in order."""

MARKS: Final = (0x1234567, 0x2345678, 0x3456789, 0x456789A)
PROGRAMS: Final = 40
"""Fewer programs than this share the parser; the server alone has `--slot-save-path`."""


def place_of(parameters: Wheel) -> int:
    """Offset of the C++ value in its Python object."""
    before = [getattr(parameters, name) for name in FIRST]
    for name, mark in zip(FIRST, MARKS, strict=True):
        setattr(parameters, name, mark)
    held = ctypes.string_at(id(parameters), sys.getsizeof(parameters))
    for name, value in zip(FIRST, before, strict=True):
        setattr(parameters, name, value)
    return id(parameters) + held.index(struct.pack("<4i", *MARKS))


def parser_of(wheel: Wheel) -> Callable[[list[str]], Wheel]:
    """A parser of words into a server's parameters, or None; errors are written to standard
    error."""
    (library,) = Path(wheel.__file__).parent.glob("*.so")
    parse = getattr(ctypes.CDLL(str(library)), PARSE)
    parse.restype = ctypes.c_bool
    parse.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]

    def read(arguments: list[str], program: int) -> Wheel:
        parameters = wheel.CommonParams()
        texts = (ctypes.c_char_p * (len(arguments) + 1))(
            *(argument.encode() for argument in arguments)
        )
        done = parse(len(arguments), texts, place_of(parameters), program, None)
        return parameters if done else None

    probe = ["llama-server", "--slot-save-path", "./"]
    server = next(number for number in range(PROGRAMS) if read(probe, number) is not None)
    return lambda words: read(["llama-server", *words], server)


def main() -> int:
    words = sys.argv[1:]
    wheel = importlib.import_module("xllamacpp")
    parsed = parser_of(wheel)
    if words == ["--parse-only"]:
        sys.stdout.write(json.dumps([parsed(each) is not None for each in json.load(sys.stdin)]))
        return 0
    parameters = parsed(words)
    if parameters is None:
        return 1
    server = wheel.Server(parameters)
    sys.stderr.write(f"{server.listening_address}\n")
    sys.stderr.flush()
    signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
