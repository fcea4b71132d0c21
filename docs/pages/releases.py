"""Releases, patches, and the rules in which they differ."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from cachesim.cli import catalogue
from cachesim.engines.profile import ALIASES, Profile
from pages.source import FOLDERS, classes
from pages.tables import code, linked, plain, table

RULES_OF: Final[Mapping[str, Callable[[Profile], Any]]] = {
    engine: importlib.import_module(module).rules_of for engine, module in catalogue.MODULES.items()
}

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
    for engine in RULES_OF:
        blocks += [f"## {engine}", _releases(engine), f"### Patches of {engine}", _patches(engine)]
    return "\n\n".join(blocks) + "\n"


def _releases(engine: str) -> str:
    rows = []
    for item in catalogue.releases():
        if item.name.startswith(f"{engine}@"):
            release = item.name.partition("@")[2]
            others = [
                old for (name, old), new in ALIASES.items() if (name, new) == (engine, release)
            ]
            rows.append((code(item.name), plain(item.about), ", ".join(map(code, others))))
    return table(("profile", "what it is", "other names"), rows)


def _patches(engine: str) -> str:
    rows = []
    for item in catalogue.patches():
        name, _, patch = item.name.partition(" +")
        if name != engine:
            continue
        upstream = (
            linked(f"#{item.upstream.partition('#')[2]}", engine) if "#" in item.upstream else ""
        )
        fits = ", ".join(map(code, item.fits))
        changes = ", ".join(_changes(engine, patch, item.fits))
        rows.append((code(patch), plain(item.about), upstream or "our own", fits, changes))
    return table(("patch", "what it does", "upstream", "fits", "fields it changes"), rows)


def _changes(engine: str, patch: str, fits: tuple[str, ...]) -> Iterator[str]:
    """The fields that a patch sets, on the newest release that it changes."""
    bases = fits or tuple(catalogue.FAMILIES[engine].releases)
    found: dict[str, str] = {}
    for release in bases:
        base = Profile(engine, release)
        before = flat(RULES_OF[engine](base))
        after = flat(RULES_OF[engine](base.with_patches(patch)))
        found |= {name: after[name] for name in after if before.get(name) != after[name]}
    for name, value in found.items():
        yield f"{code(name)} = {code(value)}"


def rules_page() -> str:
    """Every field, with its value in each release."""
    blocks = [RULES]
    for engine, folder in FOLDERS.items():
        blocks.append(f"## {engine}")
        releases = tuple(catalogue.FAMILIES[engine].releases)
        values = {each: flat(RULES_OF[engine](Profile(engine, each))) for each in releases}
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


def flat(rules: Any) -> dict[str, str]:  # noqa: ANN401 - any of the rules
    """The fields of a value of rules, those of its parts among them."""
    found = {}
    for field in fields(rules):
        value = getattr(rules, field.name)
        if is_dataclass(value):
            found |= flat(value)
        else:
            found[field.name] = shown(value)
    return found


def shown(value: Any) -> str:  # noqa: ANN401 - any field
    """A value as the tables show it; sets in order, so that two runs are alike."""
    if isinstance(value, frozenset):
        return ", ".join(sorted(map(str, value)))
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)
