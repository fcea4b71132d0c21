"""The flags of each server, from the tables that read them."""

from collections.abc import Iterator
from typing import Any

from cachesim.cli.flags import Flag, fields_of, flags_of
from cachesim.engines import FAMILIES
from cachesim.engines.family import Family
from pages.tables import code, plain, shape, table

INTRODUCTION = """\
# Server flags

What you can write under `[engine.options]` of a scenario, and under `options` of a step.
`cachesim list ENGINE --flags` explains every option of an engine, with its values and its default.
`cachesim list ENGINE@RELEASE --flags` does so for one release. llama.cpp's are here in full, the
others by name.

Ranges are of whole numbers. If no release is named, all have the option. Of two names the second is
the real server's flag. A single name is both: for example, `swa_full` is `--swa-full`.

If you write another field of the real server's configuration, it's refused with the reason: it has
no influence on what is cached, or it isn't simulated.
"""

IN_FULL = "llama.cpp"
"""The engine whose flags are explained here; the command explains all."""


def page() -> str:
    """Engine by engine."""
    return "\n\n".join([INTRODUCTION, *_engines()]) + "\n"


def _engines() -> Iterator[str]:
    shown: list[Family[Any, Any]] = []
    for name, family in FAMILIES.items():
        yield f"## {name}"
        alike = [
            other.name
            for other in shown
            if (other.options, other.fields) == (family.options, family.fields)
        ]
        if alike:
            yield f"Those of {alike[0]}."
            continue
        shown.append(family)
        write = _tables if name == IN_FULL else _names
        yield from write(family)


def _names(family: Family[Any, Any]) -> Iterator[str]:
    yield " ".join(code(flag.name) for flag in flags_of(family))
    fields = " ".join(code(flag.name) for flag in fields_of(family))
    if fields:
        yield f"Fields of a request: {fields}"


def _tables(family: Family[Any, Any]) -> Iterator[str]:
    titles = ("meaning", "value", "default", "releases")
    yield table(("option, and its flag", *titles), map(_row, flags_of(family)))
    yield f"### Fields of a request to {family.name}"
    yield table(("field", *titles), map(_row, fields_of(family)))


def _row(flag: Flag) -> tuple[str, ...]:
    alike = flag.upstream == f"--{flag.name.replace('_', '-')}"
    return (
        code(flag.name) if alike else f"{code(flag.name)} {code(flag.upstream)}",
        plain(flag.about),
        plain(shape(flag.value)),
        plain(flag.default),
        flag.releases,
    )
