"""Releases and patches of each engine."""

import re
from collections.abc import Sequence
from typing import Any

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family, Patch, Release
from pages.tables import code, linked, plain, table

INTRODUCTION = """\
# Releases and patches

A profile names an engine at one release, with patches in order: `llama.cpp@b11549+24143`. A patch
without a link is our own. A merged change can be laid over older releases and taken back of newer
ones: `llama.cpp@b11549-28302`; `cachesim list 28302` says what it does. Its pull request is linked
where it is known. The package that `cachesim real` runs is named where its version is not the
release's.
"""


def page() -> str:
    """Releases, then patches, engine by engine."""
    blocks = [INTRODUCTION]
    for name, family in FAMILIES.items():
        blocks += [f"## {name}", _releases(family)]
        blocks += [f"### Patches of {name}", _patches(family)] if _proposed(family) else []
        blocks += [f"### Merged into {name}", _merged(family)] if _landed(family) else []
        if any(patch.repository for patch in family.patches):
            blocks.append(f"Patches of {family.kin[0]} can be laid over it, too.")
    return "\n\n".join(blocks) + "\n"


def _releases(family: Family[Any, Any]) -> str:
    rows = [
        (
            code(release.name),
            release.date,
            re.sub(r"^wheel of [\d-]+(; )?", "", plain(release.about)),
            ", ".join(map(code, release.aliases)),
            _package(release),
        )
        for release in family.releases
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
        (_linked(patch.name, patch.pull, family.name), plain(patch.about), _span(patch.fits))
        for patch in _proposed(family)
    ]
    return table(("patch", "what it does", "fits"), rows)


def _merged(family: Family[Any, Any]) -> str:
    """Each release's merged changes, in one row."""
    landed = _landed(family)
    rows = [
        (
            code(release),
            ", ".join(
                _linked(patch.name, patch.pull, family.name)
                for patch in landed
                if patch.landed == release
            ),
        )
        for release in family.names()
        if any(patch.landed == release for patch in landed)
    ]
    return table(("release", "changes"), rows)


def _proposed(family: Family[Any, Any]) -> list[Patch[Any]]:
    return [patch for patch in _own(family) if not patch.landed]


def _landed(family: Family[Any, Any]) -> list[Patch[Any]]:
    return [patch for patch in _own(family) if patch.landed]


def _own(family: Family[Any, Any]) -> list[Patch[Any]]:
    """Its patches, without those of the engine below it."""
    return [patch for patch in family.patches if not patch.repository]


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
