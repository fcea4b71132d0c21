"""`cachesim list ENGINE --flags`: a server's flags, from the table that parses them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from cachesim.cli import AS_EXPECTED
from cachesim.cli.outputs import print_report, write_page
from cachesim.engines.family import Family, Profile, family_of
from cachesim.engines.fields import Class, Field
from cachesim.engines.option import Option
from cachesim.files import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A printed flag."""

    name: str  # in a scenario's [engine.options], or in a step's options
    upstream: str
    value: str
    default: str
    releases: str
    about: str


def flags_command(name: str, page: Output | None = None) -> int:
    """Print the flags of an engine, or of one release of it."""
    engine, _, release = (str(Profile.parse(name)) if "@" in name else name).partition("@")
    family = family_of(engine)
    one = family.release(release).name if release else ""
    what = f"{family.name}@{one}" if one else family.name
    parts: list[RenderableType] = [
        Text(f"flags of {what}, as options of a scenario's server", style="name")
    ]
    parts += map(_entry, flags_of(family, one))
    if family.fields:
        parts.append(Text("\nfields of a request, as options of a step", style="name"))
    parts += map(_entry, fields_of(family, one))
    parts += _configuration(family)
    print_report(parts)
    write_page(page, f"flags of {what}", parts)
    return AS_EXPECTED


def flags_of(family: Family[Any, Any], release: str = "") -> Iterator[Flag]:
    """The flags of a server, or those of one release."""
    yield from _each(family, family.table(), release)


def fields_of(family: Family[Any, Any], release: str = "") -> Iterator[Flag]:
    """The further fields of its requests."""
    shown = tuple(field for field in family.fields if not field.internal)
    yield from _each(family, shown, release)


def _each(family: Family[Any, Any], table: tuple[Option, ...], release: str) -> Iterator[Flag]:
    for option in table:
        if not release or release in family.having(option):
            yield Flag(
                name=option.name,
                upstream=family.flag_at(option, release),
                value=option.shape,
                default=_default(family, option, release),
                releases=_releases(family, option),
                about=option.about,
            )


def _default(family: Family[Any, Any], option: Option, release: str) -> str:
    """The release's default, or each default with its first release."""
    first = next(iter(family.having(option)), family.names()[0])
    if release or option.patch:
        return plain(family.default(option, release or first))
    begins = family.since(first)[1:]
    later = (f"{plain(value)} since {at}" for at, value in option.later.items() if at in begins)
    return ", ".join((plain(family.default(option, first)), *later))


def plain(value: object) -> str:
    """A value in the syntax of a scenario file."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _releases(family: Family[Any, Any], option: Option) -> str:
    if option.patch:
        return f"with the patch +{option.patch}"
    having, names = family.having(option), family.names()
    if having == names:
        return ""
    if having[-1] == names[-1]:
        return f"since {having[0]}"
    return f"until {having[-1]}" if having[0] == names[0] else f"{having[0]} to {having[-1]}"


def _configuration(family: Family[Any, Any]) -> Iterator[RenderableType]:
    """Every field of upstream's configuration, by what becomes of it here, and the reason."""
    newest = f"{family.name}@{family.names()[-1]}"
    for kind, about in CLASSES.items():
        rows = [field for field in family.upstream_fields() if field.kind == kind]
        if rows:
            title = f"\nfields of the configuration of {newest} that {about}: {len(rows)}"
            yield Text(title, style="name")
        for text, names in _by_text(rows).items():
            yield Text(f"\n{text}", style="")
            yield Padding(Text(" ".join(names), style="quiet"), (0, 0, 0, 2))


CLASSES: Final[dict[Class, str]] = {
    "simulated": "are simulated",
    "no influence": "have no influence on what is cached",
    "not simulated": "are not simulated",
}


def _by_text(rows: Iterable[Field]) -> dict[str, list[str]]:
    """The flags, or the names of fields without one, for which a text holds."""
    found = dict[str, list[str]]()
    for row in rows:
        text = row.no_influence or row.differs
        if row.simulated:
            text = "under their own names" if row.simulated == row.name else f"as {row.simulated}"
        found.setdefault(f"{row.owner}: {text}", []).append(row.flag or row.name)
    return found


def _entry(flag: Flag) -> Text:
    text = Text(f"\n{flag.name}", style="name")
    if flag.upstream:
        text.append(f"  {flag.upstream}", style="quiet")
    if flag.releases:
        text.append(f"  {flag.releases}", style="quiet")
    text.append(f"\n  {flag.about}\n", style="")
    text.append(f"  {flag.value}; default {flag.default}", style="quiet")
    return text
