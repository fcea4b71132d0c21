"""`cachesim completion`: completion scripts for shells."""

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from cachesim.cli import AS_EXPECTED
from cachesim.cli.app import functions, whole_app
from cachesim.cli.listing import LISTS, SCHEMA
from cachesim.engines import FAMILIES
from cachesim.report.consoles import writable
from cachesim.scenario.shipped import shipped_files

Command: TypeAlias = Callable[..., int]

SCENARIOS: Final = {
    "run": "names",
    "compare": "workload",
    "bisect": "name",
    "list": "what",
    "new": "source",
}
"""Commands with the parameter that takes the name of a shipped scenario."""

FALLS_BACK: Final = ("complete -F ", "complete -o default -F ")
"""Option of bash that completes file names if nothing else matches."""


def completion_command(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a script that lets a shell complete commands and options.

    Example: cachesim completion bash > ~/.local/share/bash-completion/completions/cachesim
    """
    named = {name: naming_scenarios(name, command) for name, command in functions()}
    script = whole_app(["real"], named).generate_completion(shell=shell).rstrip("\n")
    if shell == "bash":
        script = script.replace(*FALLS_BACK)
    sys.stdout.write(writable(f"{script}\n", sys.stdout.encoding))
    return AS_EXPECTED


def naming_scenarios(name: str, command: Command) -> Command:
    """The command with the shipped scenarios as choices of its parameter."""
    if name not in SCENARIOS:
        return command
    names = tuple(file.stem for file in shipped_files())
    if name == "list":
        names = (*LISTS, SCHEMA, *FAMILIES, *names)

    def named(*given: Any, **more: Any) -> int:
        return command(*given, **more)

    signature = inspect.signature(command)
    parameters = {
        each.name: _chosen(each, names) if each.name == SCENARIOS[name] else each
        for each in signature.parameters.values()
    }
    named.__doc__, named.__name__ = command.__doc__, command.__name__
    named.__signature__ = signature.replace(parameters=list(parameters.values()))  # type: ignore[attr-defined]
    named.__annotations__ = {each.name: each.annotation for each in parameters.values()}
    return named


def _chosen(parameter: inspect.Parameter, names: tuple[str, ...]) -> inspect.Parameter:
    """The parameter with the names as its type, and None where it is optional."""
    kind, *extras = get_args(parameter.annotation) or (parameter.annotation,)
    choice: Any = Literal[names]
    if type(None) in get_args(kind):
        choice = choice | None
    return parameter.replace(annotation=Annotated[choice, *extras] if extras else choice)
