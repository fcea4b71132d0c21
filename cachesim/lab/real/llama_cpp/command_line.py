"""Inside a real release's environment: arguments parsed by its own command line.

`common_params_parse` of the wheel's library fills the `CommonParams` that its Python object holds,
as `llama-server` does before it starts. Standard input has the arguments and the values that a
comparison sets; standard output both configurations, field by field.
"""

import ctypes
import importlib
import json
import sys
from pathlib import Path
from typing import Any

Wheel = Any  # the module and what it makes: known only when it runs

PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
"""`common_params_parse(int, char **, common_params &, llama_example, void (*)(int, char **))`."""

OF_A_SERVER = "--slot-prompt-similarity"
"""A flag that no other program of the release has."""

MOST_PROGRAMS = 32
HEAD = object.__basicsize__
"""Bytes of a Python object before what it holds."""


def parsed(wheel: Wheel, arguments: list[str]) -> Wheel:
    """The parameters of `llama-server` started with these arguments."""
    [library] = Path(wheel.__file__).parent.glob("*.so")
    parse = ctypes.CDLL(str(library))[PARSE]
    parse.restype = ctypes.c_bool
    usage = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(lambda *_: None)

    def with_program(program: int, given: list[str]) -> Wheel:
        made = wheel.CommonParams()
        words = [each.encode() for each in ("llama-server", *given)]
        array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        place = ctypes.c_void_p(id(made) + HEAD)
        return made if parse(len(words), array, place, program, usage) else None

    for program in range(MOST_PROGRAMS):
        if with_program(program, [*arguments, OF_A_SERVER, "0.5"]) is not None:
            return with_program(program, arguments)
    raise LookupError(OF_A_SERVER)


def fields_of(value: Wheel, name: str = "") -> dict[str, str]:
    """Every field, nested ones included, with its value as text."""
    if type(value).__module__.partition(".")[0] != "xllamacpp" or hasattr(value, "value"):
        return {name: f"{value:g}" if isinstance(value, float) else str(value)}
    found: dict[str, str] = {}
    for each in dir(value):
        try:
            held = None if each.startswith("_") else getattr(value, each)
        except RuntimeError:  # older wheels cannot read a list that the parser has closed
            continue
        if held is not None and not callable(held):
            found |= fields_of(held, f"{name}.{each}" if name else each)
    return found


def main() -> None:
    """Write down both configurations."""
    worker: Any = importlib.import_module("worker")
    answers = worker.keep_stdout_for_answers()
    wheel = importlib.import_module("xllamacpp")
    wanted = json.load(sys.stdin)
    started = fields_of(parsed(wheel, wanted["arguments"]))
    used = fields_of(worker.parameters_of(wheel, wanted["values"]))
    answers.write(json.dumps({"started": started, "used": used}))


if __name__ == "__main__":
    main()
