"""`cachesim list` and `cachesim show`."""

from collections.abc import Callable
from dataclasses import fields
from typing import Final

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from cachesim.cli import catalogue
from cachesim.cli.catalogue import Item
from cachesim.cli.status import AS_EXPECTED
from cachesim.errors import InputError
from cachesim.model.presets import PRESETS
from cachesim.report.consoles import results, show
from cachesim.scenario import load
from cachesim.scenario.readers import nearest
from cachesim.scenario.shipped import shipped_files


def scenarios() -> list[Item]:
    """The scenarios shipped, with what kind of defect each shows."""
    loaded = map(load, shipped_files())
    return [
        Item(name=each.name, about=each.kind or "", upstream=each.source.issue) for each in loaded
    ]


LISTS: Final[dict[str, Callable[[], list[Item]]]] = {
    "scenarios": scenarios,
    "engines": catalogue.engines,
    "releases": catalogue.releases,
    "patches": catalogue.patches,
    "presets": catalogue.presets,
}


def list_command(what: str) -> int:
    """Print a list, one line per thing as far as the screen is wide."""
    name = what if what in LISTS else f"{what}s"
    if name not in LISTS:
        msg = f"there is no list of {what!r}; there are {', '.join(LISTS)}{nearest(what, [*LISTS])}"
        raise InputError(msg)
    show(results(), listed(LISTS[name]()))
    return AS_EXPECTED


def listed(items: list[Item]) -> RenderableType:
    """Names, and what they are about beside them."""
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="name", no_wrap=True)
    table.add_column(overflow="fold")
    for item in items:
        about = Text(item.about)
        if item.upstream:
            about.append(f"  {item.upstream}", style="quiet")
        table.add_row(item.name, about)
    return table


def show_command(name: str) -> int:
    """Show whatever has that name."""
    screen = results()
    for items in LISTS.values():
        found = [item for item in items() if name in aliases(item)]
        if found:
            show(screen, Group(*(shown(item) for item in found)))
            return AS_EXPECTED
    everything = [alias for items in LISTS.values() for item in items() for alias in aliases(item)]
    msg = f"there is nothing called {name!r}{nearest(name, everything) or '; see cachesim list'}"
    raise InputError(msg)


def aliases(item: Item) -> set[str]:
    """The names by which one thing is known: `llama.cpp +24143`, `+24143`, `24143`."""
    engine, plus, patch = item.name.partition(" +")
    if plus:
        return {item.name, f"+{patch}", patch, f"{engine}+{patch}"}
    release = item.name.partition("@")[2]
    return {item.name, release} if release else {item.name}


def shown(item: Item) -> RenderableType:
    """One thing in full."""
    lines: list[RenderableType] = [Text(item.name, style="name"), Text(item.about)]
    if item.upstream:
        lines.append(Text(f"upstream: {item.upstream}"))
    if item.fits:
        lines.append(Text(f"fits: {', '.join(item.fits)}"))
    if "@" in item.name:
        lines.append(Text(f"patches: {', '.join(fitting(item.name)) or 'none'}"))
    if item.name in PRESETS:
        spec = PRESETS[item.name]
        values = (f"{each.name} = {getattr(spec, each.name)!r}" for each in fields(spec))
        lines.append(Text("\n".join(values)))
    file = next((path for path in shipped_files() if path.stem == item.name), None)
    if file is not None:
        lines += [Text(str(file), style="quiet"), Text(load(file).story), Text()]
        lines.append(Syntax(file.read_text(encoding="utf-8"), "toml", word_wrap=True))
    return Group(*lines)


def fitting(release: str) -> list[str]:
    """The patches that may be laid over a release."""
    engine, _, number = release.partition("@")
    return [
        patch.name.partition(" ")[2]
        for patch in catalogue.patches()
        if patch.name.startswith(f"{engine} ") and (not patch.fits or number in patch.fits)
    ]
