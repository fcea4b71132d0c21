"""Releases and patches of each engine."""

from collections.abc import Sequence
from typing import Any

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family
from pages.tables import code, linked, plain, table

INTRODUCTION = """\
# Releases and patches

A profile names an engine at one release, and patches laid over it in order:
`llama.cpp@b11549+24143`.
"""


def page() -> str:
    """Releases, then patches, engine by engine."""
    blocks = [INTRODUCTION]
    for name, family in FAMILIES.items():
        blocks += [f"## {name}", _releases(family), f"### Patches of {name}", _patches(family)]
    return "\n\n".join(blocks) + "\n"


def _releases(family: Family[Any, Any]) -> str:
    rows = [
        (
            code(f"{family.name}@{each.name}"),
            each.date,
            plain(each.about),
            ", ".join(map(code, each.aliases)),
            "" if each.package is None else code(f"{each.package.name}=={each.package.version}"),
        )
        for each in family.releases
    ]
    titles = ("profile", "date", "what it is", "other names", "played for real by")
    return table(titles, rows)


def _patches(family: Family[Any, Any]) -> str:
    rows = [
        (
            code(each.name),
            plain(each.about),
            linked(f"#{each.pull}", family.name) if each.pull else "our own",
            _span(each.fits) or f"in every release: {code(f'-{each.name}')} only",
        )
        for each in family.patches
    ]
    return table(("patch", "what it does", "upstream", "fits"), rows)


def _span(names: Sequence[str]) -> str:
    """The first and the last release of a patch."""
    ends = dict.fromkeys((*names[:1], *names[-1:]))
    return " to ".join(map(code, ends))
