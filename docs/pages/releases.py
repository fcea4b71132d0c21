"""Releases, patches, and the rules in which they differ."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from cachesim.engines import FAMILIES
from cachesim.engines.family import Family
from cachesim.engines.profile import Profile
from cachesim.engines.release import Patch
from pages.source import classes, folders
from pages.tables import code, linked, plain, table

INTRODUCTION = """\
# Releases and patches

A profile names an engine at one release, and patches laid over it in order:
`llama.cpp@b11549+24143`. Releases and patches are data: one value of rules each, one field per
difference. The tables say which fields a patch changes; [the rules](rules.md) says what each
field means.
"""

RULES = """\
# Rules: what differs between releases

One field per difference, with the proposal that made it. The engines' logic reads these fields
and never asks which release it plays.
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
            code(each.follows),
            ", ".join(map(code, each.aliases)),
            "" if each.package is None else code(f"{each.package.name}=={each.package.version}"),
        )
        for each in family.releases
    ]
    titles = ("profile", "date", "what it is", "follows", "other names", "played for real by")
    return table(titles, rows)


def _patches(family: Family[Any, Any]) -> str:
    rows = [
        (
            code(each.name),
            plain(each.about),
            linked(f"#{each.pull}", family.name) if each.pull else "our own",
            ", ".join(map(code, each.fits)) or f"in every release: {code(f'-{each.name}')} only",
            ", ".join(_changes(family, each)),
        )
        for each in family.patches
    ]
    return table(("patch", "what it does", "upstream", "fits", "fields it changes"), rows)


def _changes(family: Family[Any, Any], patch: Patch[Any]) -> Iterator[str]:
    """The fields that a patch sets, on the newest release that it changes.

    What every release has is told by what taking it back from the first one changes.
    """
    found: dict[str, str] = {}
    if not patch.fits:
        base = Profile(family.name, patch.landed)
        before = flat(family.rules(base.with_patches(f"-{patch.name}")))
        after = flat(family.rules(base))
        found = {name: after[name] for name in after if before[name] != after[name]}
    for release in patch.fits:
        base = Profile(family.name, release)
        before = flat(family.rules(base))
        after = flat(family.rules(base.with_patches(patch.name)))
        found |= {name: after[name] for name in after if before.get(name) != after[name]}
    for name, value in found.items():
        yield f"{code(name)} = {code(value)}"


def rules_page() -> str:
    """Every field, with its value in each release."""
    blocks = [RULES]
    for engine, folder in folders().items():
        blocks.append(f"## {engine}")
        values = {each.name: flat(each.rules) for each in FAMILIES[engine].releases}
        for path in sorted(folder.rglob("*.py")):
            blocks += list(_groups(engine, path, values))
    return "\n\n".join(blocks) + "\n"


def _groups(engine: str, path: Path, values: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for each in classes(path):
        if not each.name.endswith("Rules"):
            continue
        rows = [
            (code(field.name), linked(plain(field.about), engine), _by_release(field.name, values))
            for field in each.fields
            if field.name != "name" and any(field.name in found for found in values.values())
        ]
        if rows:
            yield f"### {each.name}"
            yield plain(each.about.split("\n\n")[0])
            yield table(("field", "what it says", "value"), rows)


def _by_release(name: str, values: Mapping[str, Mapping[str, str]]) -> str:
    """One value where all releases agree, else each value with the releases that have it."""
    having: dict[str, list[str]] = {}
    for release, found in values.items():
        having.setdefault(found.get(name, "none"), []).append(release)
    if len(having) == 1:
        return code(next(iter(having)))
    return "; ".join(f"{code(value)}: {', '.join(names)}" for value, names in having.items())


def flat(rules: object) -> dict[str, str]:
    """The fields of a value of rules, those of its parts among them."""
    found = {}
    for field in fields(rules):
        value = getattr(rules, field.name)
        if is_dataclass(value):
            found |= flat(value)
        else:
            found[field.name] = shown(value)
    return found


def shown(value: object) -> str:
    """A value as the tables show it; sets in order, so that two runs are alike."""
    if isinstance(value, frozenset):
        return ", ".join(sorted(map(str, value)))
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)
