"""Releases and patches of each engine."""

import re
from collections.abc import Sequence
from typing import Any

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family, Release
from pages.tables import code, linked, plain, table

INTRODUCTION = """\
# Releases and patches

A profile names an engine at one release, with patches in order: `llama.cpp@b11549+24143`. A patch
without a link is our own. What is in every release can only be removed: `-5420`. The package that
`cachesim real` runs is named where its version is not the release's.
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
            code(each.name),
            each.date,
            re.sub(r"^wheel of [\d-]+(; )?", "", plain(each.about)),
            ", ".join(map(code, each.aliases)),
            _package(each),
        )
        for each in family.releases
    ]
    titles = ("release", "date", "what it is", "other names", "package")
    return table(titles, rows)


def _package(release: Release[Any]) -> str:
    """The package that runs the release, or why none is named."""
    package = release.package
    if package is None:
        return "none"
    return "" if package.version == release.name else code(f"{package.name}=={package.version}")


def _patches(family: Family[Any, Any]) -> str:
    rows = [
        (
            _linked(each.name, each.pull, family.name),
            plain(each.about),
            _span(each.fits) or code(f"-{each.name}"),
        )
        for each in family.patches
    ]
    return table(("patch", "what it does", "fits"), rows)


def _linked(name: str, pull: int | None, engine: str) -> str:
    """A patch, as a link to its proposal; another number than in its name follows it."""
    if not pull:
        return code(name)
    link = linked(f"#{pull}", engine)
    return link.replace(f"[#{pull}]", f"[`{name}`]") if str(pull) in name else f"`{name}` {link}"


def _span(names: Sequence[str]) -> str:
    """The first and the last release of a patch."""
    ends = dict.fromkeys((*names[:1], *names[-1:]))
    return code("\N{EN DASH}".join(ends)) if ends else ""
