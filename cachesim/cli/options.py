"""Options of several commands, each with one name and one meaning."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter

from cachesim.cli import Format
from cachesim.errors import InputError
from cachesim.model import ArithmeticName


def refuse_beside(flag: str, others: Mapping[str, object]) -> None:
    """Raise InputError for an option that is given and has no meaning beside `flag`."""
    for other in (o for o, value in others.items() if value or type(value) in {int, float}):
        raise InputError(f"{other} cannot be used with {flag}; leave one of the two out")


Profiles: TypeAlias = Annotated[
    list[str] | None,
    Parameter(
        name=["--profile", "-p"],
        help="A release with its patches, such as b9538+24143 or vllm@0.33.0; may be repeated.",
    ),
]
Profile: TypeAlias = Annotated[
    str | None,
    Parameter(
        name=["--profile", "-p"],
        help="A release with its patches, such as b9538+24143 or vllm@0.33.0; read or assumed if "
        "left out.",
    ),
]
Preset: TypeAlias = Annotated[
    str | None,
    Parameter(
        name="--model", help="A preset of `cachesim list presets`; read or assumed if left out."
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    Parameter(
        name=["--set", "-s"],
        help="A flag of the server, such as ctx_checkpoints=0; may be repeated.",
    ),
]
Arithmetic: TypeAlias = Annotated[
    ArithmeticName,
    Parameter(
        help="float: a real network; ring: exact 64-bit integers (no rounding); "
        "counts: no answers, not judged."
    ),
]
JudgingArithmetic: TypeAlias = Annotated[
    Literal["ring", "float"],
    Parameter(help="float: a real network; ring: exact 64-bit integers (no rounding)."),
]
Seed: TypeAlias = Annotated[
    int | None, Parameter(help="The seed of everything drawn at random; by default the scenario's.")
]
Tests: TypeAlias = Annotated[
    Path | None,
    Parameter(help="Write findings to this folder, as tests of the engine's own suite."),
]

Jobs: TypeAlias = Annotated[
    int | None, Parameter(help="Number of processes; all processors by default.")
]
Dask: TypeAlias = Annotated[
    str | None, Parameter(help="A Dask scheduler's address, or a number of workers here.")
]
StatesAt: TypeAlias = Annotated[
    Path | None,
    Parameter(name="--states", help="Keep unfinished replays in this folder, and resume them."),
]
Slice: TypeAlias = Annotated[
    int | None, Parameter(help="Write a state after this many requests. [default: 100000]")
]
Gguf: TypeAlias = Annotated[
    Path | None, Parameter(help="The model's file, for the bytes of its memory.")
]
ModelSizes: TypeAlias = Annotated[
    str | None,
    Parameter(
        help="The model whose memory limits in bytes count: its config.json, or a name of "
        "`cachesim list models`."
    ),
]
AnyFormat: TypeAlias = Annotated[Format, Parameter(name="--format", help="How to print.")]
TextOrJson: TypeAlias = Annotated[
    Literal["text", "json"], Parameter(name="--format", help="How to print.")
]
TestFormat: TypeAlias = Annotated[
    Literal["text", "json", "junit", "sarif"], Parameter(name="--format", help="How to print.")
]
Page: TypeAlias = Annotated[
    Path | None, Parameter(name="--report", help="Write the report as one HTML page.")
]
