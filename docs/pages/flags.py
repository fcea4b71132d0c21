"""The flags of each server, from the tables that read them."""

from collections.abc import Iterator
from typing import Any

from cachesim.cli.flags import Flag, fields_of, flags_of
from cachesim.engines import FAMILIES
from cachesim.engines.family import Family
from pages.tables import code, plain, shape, table

INTRODUCTION = """\
# Server flags

What a scenario may write under `[engine.options]`, and a step under `options`, with the real
server's flag. `cachesim list ENGINE --flags` prints the same, `cachesim list ENGINE@RELEASE
--flags` what one release has. Ranges are of whole numbers. Where no release is named, all have the
option. Of two names the second is the flag; a single name is both, with `--` and dashes as a flag.

A field of the real server's own configuration that is no option here is refused, with the reason:
it has no influence on what is cached, or it is not simulated. `cachesim list ENGINE --flags` names
every one of them.
"""


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
        yield _table(family)
        rows = [_row(flag) for flag in fields_of(family)]
        if rows:
            yield f"### Fields of a request to {name}"
            yield table(("field", "meaning", "value", "default", "releases"), rows)


def _table(family: Family[Any, Any]) -> str:
    titles = ("option, and its flag", "meaning", "value", "default", "releases")
    return table(titles, map(_row, flags_of(family)))


def _row(flag: Flag) -> tuple[str, ...]:
    alike = flag.upstream == f"--{flag.name.replace('_', '-')}"
    return (
        code(flag.name) if alike else f"{code(flag.name)} {code(flag.upstream)}",
        plain(flag.about),
        plain(shape(flag.value)),
        plain(flag.default),
        flag.releases,
    )
