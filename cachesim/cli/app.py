"""The commands: module, summary line and former names of each.

A command is a plain function in a module of its own, imported when the command is called.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnusedCliTokensError,
)

from cachesim.cli import version
from cachesim.report.consoles import results

INTRODUCTION: Final = """\
cachesim simulates the prefix caches of LLM servers: what they reuse, why not
more, and whether the answers are right.

  cachesim run llama.cpp-two-codes            tokens reused; right answers?
  cachesim run llama.cpp-two-codes --explain  the same, step by step
  cachesim why server.log                     why was a prompt reprocessed?
  cachesim list                               the shipped scenarios
  cachesim --help                             every command"""

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "run": ("run:run_command", "Run scenarios: tokens reused, why not more, wrong answers."),
    "why": ("why:why_command", "Explain each miss in a server's log; --tune tries its flags."),
    "check": ("check:check_command", "Search random workloads for wrong answers; --prove them."),
    "compare": (
        "compare:compare_command",
        "Compare engines, releases or flags on a scenario or trace.",
    ),
    "sweep": ("sweep:sweep_command", "Replay traces on a grid of servers and flags."),
    "bisect": (
        "bisect:bisect_command",
        "Find the release that broke or fixed a scenario or a log.",
    ),
    "record": (
        "record:record_command",
        "Record a client's requests to a server; explain each miss.",
    ),
    "export": (
        "export:export_command",
        "Write a scenario as the engine's own test, or as a report to its project.",
    ),
    "probe": ("probe:probe_command", "Search a live server, over HTTP, for wrong cached answers."),
    "conform": (
        "conform:conform_command",
        "Hold a real server against the laws of a cache, and print a table.",
    ),
    "real": ("", "Run the same requests on the real engines."),
    "learn": ("learn:learn_command", "Take a lesson: predict a result, then run its code."),
    "list": ("listing:list_command", "List scenarios, engines, releases; show one, or a schema."),
    "new": ("new:new_command", "Print a scenario, or an engine's package, to start from."),
}
"""Commands by name: module and function, and the first line of the function's docstring."""

FORMER: Final[Mapping[str, tuple[str, ...]]] = {
    "explain": ("run", "--explain"),
    "tune": ("why", "--tune"),
    "hunt": ("check", "--prove"),
    "replay": ("compare",),
    "show": ("list",),
    "schema": ("list", "schema"),
}
"""Former names of commands with their current words."""

FORMER_OPTIONS: Final = {"--models": "--model"}
"""Former names of options, and the present one of each."""


NUMBERS: Final = {int: "a whole number", float: "a number"}


def _usage(error: CycloptsError) -> str:
    """The parser's message; a missing argument is shown with the example of the command's help.

    A missing positional argument is named as in the help: the parser would name an option for it.
    """
    if isinstance(error, UnusedCliTokensError):
        command = " ".join(("cachesim", *(error.command_chain or ())))
        unused = " ".join(map(repr, error.unused_tokens or ()))
        return f"cachesim: {unused}: no such argument; `{command} --help` lists the options"
    if isinstance(error, CoercionError) and error.target_type in NUMBERS and error.token:
        name = error.token.keyword or (error.argument.name.upper() if error.argument else "value")
        what = f"{name.removeprefix('--') if name.isupper() else name} is {error.token.value!r}"
        return f"cachesim: {what}; write {NUMBERS[error.target_type]}"
    found = re.search(r"^ *Example: (.+)", error.target.__doc__ or "", re.MULTILINE)
    if found is None or not isinstance(error, MissingArgumentError):
        return f"cachesim: {error}"
    text = str(error).removesuffix(".")
    missing = error.argument
    if missing is not None and missing.index is not None and error.keyword is None:
        command = " ".join(error.command_chain or ())
        text = f"{command}: {missing.name.removeprefix('--').upper()} is missing"
    return f"cachesim: {text}, as in: {found[1]}"


def shown_default(value: object) -> str | None:
    """A default as help prints it; flags that are off and empty values have none to print."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or None
    return None if value is None or value is False or value == "" else str(value)


SETTINGS: Final[dict[str, Any]] = {
    "default_parameter": Parameter(negative=(), show_default=shown_default),
    "help": "Simulates prefix caches of LLM servers: reuse, and whether answers are right.",
    "version": version,
    "help_format": "plaintext",
    "error_formatter": _usage,
    "help_epilogue": "Exit status: 0 all as expected, 1 a check failed, such as a wrong answer that"
    " no scenario expects, 2 wrong usage or a wrong file, 3 a bug in cachesim, 4 nothing was tested"
    " that could have failed, 130 interrupted.",
}


def functions() -> Iterator[tuple[str, Callable[..., int]]]:
    """Imported commands by name; `real` has subcommands."""
    yield from ((name, _function(where)) for name, (where, _) in COMMANDS.items() if where)


def _function(where: str) -> Callable[..., int]:
    module, _, name = where.partition(":")
    function: Callable[..., int] = getattr(importlib.import_module(f"cachesim.cli.{module}"), name)
    return function


def reflowed(function: Callable[..., int]) -> Callable[..., int]:
    """The function with paragraphs in one line each, so that help wraps them to its own width."""
    flags = (parameter.annotation for parameter in inspect.signature(function).parameters.values())
    for flag in (function, *filter(is_dataclass, flags)):
        lines = [""]
        for line in inspect.cleandoc(flag.__doc__ or "").split("\n"):
            ruled = not line.strip("- ") or not lines[-1].strip("- ") or line.startswith("Example:")
            if ruled or _indent(line) != _indent(lines[-1]):
                lines.append(line)
            else:
                lines[-1] += f" {line.strip()}"
        flag.__doc__ = "\n".join(lines[1:])
    return function


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def whole_app(
    words: Sequence[str], commands: Mapping[str, Callable[..., int]] | None = None
) -> App:
    """The parser with every command; only the command named in `words` is mounted with all its
    parts.
    """
    whole = App(name="cachesim", suppress_keyboard_interrupt=False, console=results(), **SETTINGS)
    for order, (name, (where, about)) in enumerate(COMMANDS.items()):
        if commands and name in commands:
            whole.command(commands[name], name=name, sort_key=order)
        elif not where:
            whole.command(_real(about, words, order))
        elif words[:1] == [name]:  # its docstring has more lines, and an example
            whole.command(reflowed(_function(where)), name=name, sort_key=order)
        else:
            whole.command(f"cachesim.cli.{where}", name=name, help=about, sort_key=order)
    whole.command("cachesim.cli.completion:completion_command", name="completion", show=False)
    whole.command("cachesim.cli.compare:diff_command", name="diff", show=False)
    return whole


def _real(about: str, words: Sequence[str], order: int) -> App:
    real = App(name="real", help=about, sort_key=order)
    if words[:1] == ["real"]:
        real.command(real_gguf, name="gguf")
        functions = real_functions()
        if words[1:] and not _is_here(words[1], words[2:], functions):
            functions[words[1]] = _elsewhere(words[1], functions)
        for name, function in functions.items():
            real.command(reflowed(function), name=name)
    return real


def _is_here(name: str, words: Sequence[str], functions: Mapping[str, Callable[..., int]]) -> bool:
    """False for a comparison, or an option of one, that the workbench has and a wheel has not."""
    from cachesim.prove import workbench

    if name not in real_names() or workbench.added(workbench.COMMANDS):
        return True
    if name not in functions:
        return False
    parameters = [f"--{parameter}" for parameter in inspect.signature(functions[name]).parameters]
    asked = {word.partition("=")[0] for word in words if word.startswith("--")}
    return parameters != SCENARIO_ALONE or asked <= {"--help", *SCENARIO_ALONE}


SCENARIO_ALONE: Final = ["--scenario", "--release"]
"""Options of a comparison that plays scenarios, and to which the workbench adds its own."""


def _elsewhere(name: str, functions: Mapping[str, Callable[..., int]]) -> Callable[..., int]:
    """A command that says where the comparison is."""
    from cachesim.prove import workbench

    what = f"no `cachesim real {name}`"
    if name in functions:
        what = f"`cachesim real {name}` with {' and '.join(SCENARIO_ALONE)} alone"
    error = workbench.missing(f"the installed package has {what}")

    def say(*_: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]) -> int:
        raise error

    say.__doc__ = f"{str(error)[0].upper()}{str(error)[1:]}."
    return say


def real_names() -> tuple[str, ...]:
    """What `cachesim real` compares in a checkout: recorded results, and every engine."""
    from cachesim.engines import FAMILIES

    return ("vectors", *FAMILIES)


def real_functions() -> dict[str, Callable[..., int]]:
    """The subcommands of `cachesim real`, one for each engine: the workbench's where it is set up,
    else those that play a scenario.
    """
    from cachesim.prove import commands, workbench

    added = workbench.added(workbench.COMMANDS)
    own = {name: "real_" + re.sub(r"\W", "_", name) for name in real_names()}
    return {
        name: added[name].load() if name in added else getattr(commands, function)
        for name, function in own.items()
        if name in added or hasattr(commands, function)
    }


def real_gguf(
    preset: str,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The file to write.")],
    seed: Annotated[int, Parameter(help="The seed of everything drawn at random.")] = 0,
    window: Annotated[
        int, Parameter(help="The model's sliding window; 0: that of the preset.")
    ] = 0,
    adapter: Annotated[str, Parameter(help="Write this adapter of it instead, for --lora.")] = "",
    engine: Annotated[
        str, Parameter(help="The engine whose server is to load it; some need other sizes.")
    ] = "",
) -> int:
    """Write the network of a preset as a GGUF file that the real server loads.

    Example: cachesim real gguf hybrid -o hybrid.gguf
    """
    from cachesim.prove import commands

    return commands.real_gguf(
        preset, output=output, seed=seed, window=window, adapter=adapter, engine=engine
    )


def renamed(words: Sequence[str]) -> list[str]:
    """Arguments with current names; a former name is reported on standard error."""
    present = []
    for word in words:
        name, sign, value = word.partition("=")
        if name in FORMER_OPTIONS:
            sys.stderr.write(f"cachesim: {name} is now {FORMER_OPTIONS[name]}\n")
        present.append(f"{FORMER_OPTIONS.get(name, name)}{sign}{value}")
    if words[0] not in FORMER:
        return present
    now = FORMER[words[0]]
    announce(words[0], " ".join(now))
    return [*now, *present[1:]]


def announce(former: str, now: str) -> None:
    """Print the current name of a command that was called by a former one."""
    sys.stderr.write(f"cachesim: `cachesim {former}` is now `cachesim {now}`\n")


def parse(arguments: list[str] | None, **settings: Any) -> int:
    """Run the command that the arguments name."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        sys.stdout.write(f"{INTRODUCTION}\n")
        return 0
    words = renamed(words)
    whole = whole_app(words)
    if "-" in words:  # the parser takes `-` for an option
        from cachesim.scenario.shipped import STDIN

        words = [STDIN if word == "-" else word for word in words]
    status = whole(words, result_action="return_value", **settings)
    return status if isinstance(status, int) else 0
