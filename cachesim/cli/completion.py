"""`cachesim completion`: completion scripts for shells, with scenarios and profiles."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin

from cyclopts import Parameter

from cachesim.cli import AS_EXPECTED
from cachesim.cli.app import functions, whole_app
from cachesim.cli.listing import LISTS, SCHEMA
from cachesim.engines import FAMILIES
from cachesim.report.consoles import writable
from cachesim.scenario.shipped import shipped_files

Command: TypeAlias = Callable[..., int]

Hint: TypeAlias = Any
"""An annotation."""

SCENARIOS: Final = {
    "run": "names",
    "compare": "workload",
    "bisect": "name",
    "export": "scenario",
    "list": "what",
    "new": "source",
}
"""Commands with the parameter that takes the name of a shipped scenario."""

FALLS_BACK: Final = ("complete -F ", "complete -o default -F ")
"""Option of bash that completes file names if nothing else matches."""

WHOLE_WORDS: Final = "COMP_WORDBREAKS=${COMP_WORDBREAKS//@}\n"
"""Makes a profile such as vllm@0.33.0 one word for bash, which by default ends one at '@'."""


def completion_command(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a script that lets a shell complete commands and options.

    Example: cachesim completion bash > ~/.local/share/bash-completion/completions/cachesim
    """
    named = {name: naming_choices(name, command) for name, command in functions()}
    script = whole_app(["real"], named).generate_completion(shell=shell).rstrip("\n")
    if shell == "bash":
        script = WHOLE_WORDS + script.replace(*FALLS_BACK)
    sys.stdout.write(writable(f"{script}\n", sys.stdout.encoding))
    return AS_EXPECTED


def naming_choices(name: str, command: Command) -> Command:
    """The command with scenarios and profiles as choices of the parameters that take them."""
    names = tuple(file.stem for file in shipped_files())
    if name == "list":
        names = (*LISTS, SCHEMA, *FAMILIES, *names)
    profiles = tuple(
        f"{family.name}@{release}" for family in FAMILIES.values() for release in family.names()
    )

    def named(*given: Any, **more: Any) -> int:
        return command(*given, **more)

    signature = inspect.signature(command)
    parameters = []
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if parameter.name == SCENARIOS.get(name):
            kind = _chosen(kind, names)
        elif parameter.name == "profiles" or _is_profile(kind):
            kind = _chosen(kind, profiles)
        elif is_dataclass(kind):
            kind = _naming_profiles(kind, profiles)
        parameters.append(parameter.replace(annotation=kind))
    named.__doc__, named.__name__ = command.__doc__, command.__name__
    named.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    named.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return named


def _is_profile(annotation: Hint) -> bool:
    extras = [arg for arg in get_args(annotation) if isinstance(arg, Parameter)]
    return any("--profile" in (extra.name or ()) for extra in extras)


def _naming_profiles(flags: Hint, profiles: tuple[str, ...]) -> Hint:
    held = [
        (
            flag.name,
            _chosen(flag.type, profiles) if _is_profile(flag.type) else flag.type,
            field(default=flag.default),
        )
        for flag in fields(flags)
    ]
    place = {"__module__": flags.__module__}
    return Parameter(name="*")(make_dataclass(flags.__name__, held, namespace=place))


def _chosen(annotation: Hint, names: tuple[str, ...]) -> Hint:
    """The annotation with the names as type: of the items of a list; None if optional."""
    kind, *extras = get_args(annotation) or (annotation,)
    choice: Any = Literal[names]
    if any(get_origin(arg) is list for arg in (kind, *get_args(kind))):
        choice = list[choice]
    if type(None) in get_args(kind):
        choice = choice | None
    return Annotated[choice, *extras] if extras else choice
