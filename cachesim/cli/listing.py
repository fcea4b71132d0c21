"""`cachesim list`: scenarios, engines, causes and more; a line for each, or one item in full."""

import json
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from cachesim.cli import AS_EXPECTED
from cachesim.cli.options import Page, TextOrJson, refuse_beside
from cachesim.cli.outputs import page_at, write_page
from cachesim.errors import InputError
from cachesim.files import Output
from cachesim.report.consoles import results, show
from cachesim.report.document import FittingTable, Heading, Picture
from cachesim.scenario.shipped import shipped_files, shipped_under
from cachesim.typed import Json

if TYPE_CHECKING:
    from cachesim.engines.family import Family, Patch, Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line of a list."""

    name: str
    about: str
    upstream: str = ""
    fits: tuple[str, ...] = ()
    range: str = ""  # what it fits, in words
    landed: str = ""  # between which releases it was merged
    also: tuple[str, ...] = ()  # other names of it
    facts: tuple[str, ...] = ()  # further lines where it is shown in full
    fit: int | None = None  # percent of a symptom's words that it has


def families(thing: str = "") -> "Iterable[Family[Any, Any]]":
    """The engines, or the one that prefixes a name; only that one is loaded."""
    from cachesim.engines import FAMILIES

    engine = FAMILIES.named(re.split(r"[@+]| \+", thing, maxsplit=1)[0])
    engine = engine if engine in FAMILIES else FAMILIES.named(thing.partition(" ")[0])
    return [FAMILIES[engine]] if engine in FAMILIES else FAMILIES.values()


def engines(thing: str = "") -> list[Item]:
    """The known engines."""
    return [
        Item(
            name=family.name,
            about=family.about,
            upstream=family.repository,
            facts=(
                f"rules: {family.evidence}",
                f"releases: {family.range_of(family.names())}",
                *_loads(family),
            ),
        )
        for family in families(thing)
    ]


def _loads(family: "Family[Any, Any]") -> Iterator[str]:
    from cachesim.model.presets import ABOUT

    if family.loads:
        named = defaultdict[str, list[str]](list)
        for name, how in family.loads.items():
            named[how].append(name)
        parts = (f"{' and '.join(names)} {how}".strip() for how, names in named.items())
        yield f"its real server loads: {', '.join(parts)}"
        others = (preset for preset in ABOUT if preset not in family.loads)
        yield f"it does not load: {', '.join(others)}"


def releases(thing: str = "") -> list[Item]:
    """Every release of every engine, oldest first."""
    return [
        Item(
            name=f"{family.name}@{release.name}",
            about=release.about,
            upstream=f"{family.repository} {release.follows}",
            also=release.aliases,
            facts=tuple(_facts(family, release)),
        )
        for family in families(thing)
        for release in family.releases
    ]


def _facts(family: "Family[Any, Any]", release: "Release[Any]") -> Iterator[str]:
    if release.date:
        yield f"date: {release.date}"
    if release.aliases:
        yield f"other names: {', '.join(release.aliases)}"
    if release.package is not None:
        yield f"real package: {' '.join(release.package.requirements)}"
    fitting = (f"+{name}" for name in family.fitting(release.name))
    yield f"patches: {', '.join(fitting) or 'none'}"


def patches(thing: str = "") -> list[Item]:
    """Every patch, with the releases it fits."""
    return [item for family in families(thing) for item in _patches_of(family)]


def _patches_of(family: "Family[Any, Any]") -> Iterator[Item]:
    for patch in family.patches:
        yield Item(
            name=f"{family.name} +{patch.name}",
            about=patch.about,
            upstream=family.upstream_of(patch) or "our own name",
            fits=patch.fits,
            range=family.range_of(patch.fits),
            landed=landed(family, patch),
        )


def landed(family: "Family[Any, Any]", patch: "Patch[Any]") -> str:
    """Releases between which a patch was merged; empty if it was not."""
    if not patch.landed:
        return ""
    names = family.names()
    at = names.index(patch.landed)
    return f"between {names[at - 1]} and {patch.landed}" if at else f"in {patch.landed}"


def causes(thing: str = "") -> list[Item]:
    """Every cause of lost reuse, as `run`, `why` and `compare` print it."""
    from cachesim.engines.facts import causes_of

    return [
        Item(
            name=f"{family.name} {cause.id}",
            about=cause.about,
            facts=(f"printed as: {cause.sentence}",),
        )
        for family in families(thing)
        for cause in causes_of(family.name)
    ]


def presets(_: str = "") -> list[Item]:
    """Presets by name."""
    from cachesim.model.presets import ABOUT, ALL_PRESETS

    return [
        Item(
            name=name,
            about=ABOUT[name],
            facts=tuple(f"{field.name} = {getattr(spec, field.name)!r}" for field in fields(spec)),
        )
        for name, spec in ALL_PRESETS.items()
    ]


def models(_: str = "") -> list[Item]:
    """Real models with the bytes of their memory, keys and values in 16 bits."""
    from cachesim.why.infer.model_memory import ENGINES, known_models, memory_of

    found = []
    for name, config in known_models().items():
        memory = memory_of(name)
        own = memory.sizes(ENGINES[0])
        sizes = {"a token": own.token, "a token in windows": own.window}
        about = ", ".join(f"{size:,} bytes {what}" for what, size in sizes.items() if size)
        facts = [f"a window sees {memory.length:,} tokens"] if memory.length else []
        if own.state:
            states = {engine: memory.sizes(engine).state for engine in ENGINES}
            facts += [f"a recurrent state on {kind}: {n:,} bytes" for kind, n in states.items()]
            about += f", {own.state:,} bytes a recurrent state ({ENGINES[0]})"
        facts.append(f"values of the config by {config['source'].partition(':')[0]}")
        upstream = config["source"].partition(": ")[2]
        found.append(Item(name=name, about=about, upstream=upstream, facts=tuple(facts)))
    return found


def scenarios() -> list[Item]:
    """The shipped scenarios with the class of each one's defect."""
    texts = (file.read_text("utf-8") for file in shipped_files())
    return [_scenario(tomllib.loads(SHOWN.split(text, maxsplit=1)[0])) for text in texts]


SHOWN: Final = re.compile(r"^\[(shows|model|chat|engine|spans|\[step)\b", re.MULTILINE)
"""Start of the part that a list skips, the symptom included."""


def _with_symptom(words: str) -> list[Item]:
    """Scenarios, causes, changes of clients and pages, ranked by what they have of a symptom."""
    from cachesim.cli.symptoms import ranked

    return [
        Item(name=entry.name, about=entry.about, upstream=entry.upstream, fit=round(100 * fit))
        for entry, fit in ((hit.entry, hit.fit) for hit in ranked(words)[:MOST_HITS])
    ]


def _scenario(content: Mapping[str, Any]) -> Item:
    return Item(
        name=content["name"],
        about=content.get("class", ""),
        upstream=content.get("source", {}).get("issue", ""),
    )


LISTS: Final[dict[str, Callable[[], list[Item]]]] = {
    "scenarios": scenarios,
    "engines": engines,
    "releases": releases,
    "patches": patches,
    "causes": causes,
    "presets": presets,
    "models": models,
}


COLUMNS: Final = ("name", "about")
"""Padded columns."""


SCHEMA: Final = "schema"


def list_command(
    what: Annotated[
        str,
        Parameter(
            help="scenarios, engines, releases, patches, causes, presets, models; or the name of "
            "one of them, which is then shown; or schema."
        ),
    ] = "scenarios",
    part: Annotated[
        str | None, Parameter(help="After schema: one of scenario, output, why, requests.")
    ] = None,
    *,
    symptom: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True,
            help="Scenarios, causes, changes of clients and pages that sound like this, the "
            "closest first.",
        ),
    ] = "",
    raw: Annotated[bool, Parameter(help="A shipped scenario's file exactly as it is.")] = False,
    flags: Annotated[
        bool, Parameter(help="The flags of an engine's server, or of one release.")
    ] = False,
    format: TextOrJson = "text",
    report: Page = None,
) -> int:
    """List scenarios, engines, releases; show one, or a schema.

    `cachesim list llama.cpp-three-requests --raw > mine.toml` copies a scenario's file,
    `cachesim list vllm --flags` explains the flags of a server.

    Example: cachesim list scenarios --symptom "every turn reprocesses the whole prompt"
    """
    page = page_at(report)
    if what == SCHEMA and page is not None:
        raise InputError("--report: a schema is JSON; print it to a file with >")
    if what == SCHEMA:
        return _schema(part or "scenario")
    if part is not None:
        msg = f"{part!r} follows {what!r}; write one name, or `cachesim list schema {part}`"
        raise InputError(msg)
    if flags:
        refuse_beside("--flags", {"--symptom": symptom, "--raw": raw, "--format": format != "text"})
        from cachesim.cli.flags import flags_command

        return flags_command(what, page)
    if raw:
        refuse_beside("--raw", {"--symptom": symptom, "--format": format != "text"})
    elif what in LISTS or f"{what}s" in LISTS:
        return _list(what, symptom=symptom, output=format, page=page)
    if symptom:
        raise InputError(f"--symptom searches scenarios, not {what!r}; leave the name out")
    return show_command(what, raw=raw, output=format, page=page)


def _schema(what: str) -> int:
    """A JSON Schema, for editors and checkers."""
    from cachesim.play import output_schema, scenario_schema
    from cachesim.why.explain.schema import requests_schema, why_schema

    schemas: dict[str, Callable[[], dict[str, Any]]] = {
        "scenario": scenario_schema,
        "output": output_schema,
        "why": why_schema,
        "requests": requests_schema,
    }
    if what not in schemas:
        raise InputError(f"there is no schema of {what!r}; there are {', '.join(schemas)}")
    sys.stdout.write(json.dumps(schemas[what](), indent=2) + "\n")
    return AS_EXPECTED


def _list(what: str, *, symptom: str, output: str, page: Output | None) -> int:
    name = what if what in LISTS else f"{what}s"
    if symptom and name != "scenarios":
        raise InputError(f"--symptom searches scenarios; {name} have none")
    items = _with_symptom(symptom) if symptom else LISTS[name]()
    if symptom and not items:
        raise InputError(f"nothing here sounds like {symptom!r}; `cachesim list` names scenarios")
    what = f"entries for {symptom!r}" if symptom else name
    write_page(page, f"cachesim list {name}", [Heading(f"{len(items)} {what}"), _table(items)])
    if output == "json":
        return _as_json([_fields(item) for item in items])
    screen = results()
    closest = max((item.fit or 0 for item in items[:3]), default=0)
    if symptom and closest < FITS:
        show(screen, Text(HARDLY.format(closest)))
    lines = listed(items)
    if screen.is_terminal and symptom:  # what was reported is to be read whole
        for item in items:
            about = Padding(Text(item.about), (0, 0, 0, 2))
            show(screen, Text(f"{item.fit} %  ").append(item.name, style="name"), about)
        return AS_EXPECTED
    if screen.is_terminal:
        for line in lines:
            line.truncate(screen.width, overflow="ellipsis")
    show(screen, Text("\n").join(lines), wrap=False)
    return AS_EXPECTED


def _fields(item: Item) -> dict[str, Any]:
    """The fields of a line, its fit only where a symptom was given."""
    return {key: value for key, value in asdict(item).items() if key != "fit" or value is not None}


MOST_HITS: Final = 12
FITS: Final = 25
"""Percent of a symptom's words below which no entry fits well."""

HARDLY: Final = (
    "Nothing here fits well: the closest entries have {} % of the words, weighted by their rarity."
)


def _as_json(value: Json) -> int:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
    return AS_EXPECTED


def listed(items: Sequence[Item]) -> list[Text]:
    """Names and summaries."""
    wide = [max((len(getattr(item, key)) for item in items), default=0) for key in COLUMNS]
    lines = []
    for item in items:
        line = Text(f"{item.name:<{wide[0]}}", style="")
        line.stylize("name")
        if item.fit is not None:
            line = Text(f"{item.fit:>3} %  ", style="").append_text(line)
        line.append(f"  {item.about:<{wide[1] if item.upstream else 0}}", style="")
        if item.upstream:
            line.append(f"  {item.upstream}", style="quiet")
        if item.landed:
            line.append(f", landed {item.landed}", style="quiet")
        lines.append(line)
    return lines


def _table(items: Sequence[Item]) -> FittingTable:
    table = FittingTable()
    for head in ("name", "about", "upstream", "landed"):
        table.add_column(head, overflow="fold")
    for item in items:
        table.add_row(item.name, item.about, item.upstream, item.landed)
    return table


def show_command(
    name: str, *, raw: bool = False, output: str = "text", page: Output | None = None
) -> int:
    """Show the item of a name; of a shipped scenario the file, unchanged if raw."""
    file = shipped_under(name)
    if file is not None:
        text = file.read_text(encoding="utf-8")
        markup = f"<pre>{escape(text)}</pre>"
        write_page(page, file.stem, [Heading(file.stem), Picture("", markup)])
        if output == "json":
            from cachesim.scenario.files import content_of

            return _as_json(content_of(text))
        screen = results()
        if raw:
            sys.stdout.write(text)
        elif not screen.is_terminal:
            sys.stdout.write(f"# {file}\n{text}")
        else:
            from rich.syntax import Syntax

            show(screen, Text(f"# {file}", style="quiet"), Syntax(text, "toml", word_wrap=True))
        return AS_EXPECTED
    if raw:
        from cachesim.scenario.readers import nearest

        msg = f"no shipped scenario is called {name!r}; --raw prints the file of one"
        raise InputError(msg + nearest(name, [path.stem for path in shipped_files()]))
    screen = results()
    name = _spelled(name)
    for items in (presets, models, engines, releases, patches, causes):
        found = [item for item in items(name) if name in aliases(item)]
        if found:
            parts = [*map(shown, found)]
            write_page(page, f"cachesim list {name}", parts)
            if output == "json":
                return _as_json([asdict(item) for item in found])
            show(screen, *parts)
            return AS_EXPECTED
    engine, _, release = name.partition("@")
    for family in families(name):
        if family.name == engine and release and "+" not in release:
            family.release(release)  # says which releases are near
    from cachesim.engines.family import did_you_mean

    everything = [alias for items in LISTS.values() for item in items() for alias in aliases(item)]
    lists = f"there are lists of {', '.join((*LISTS, SCHEMA))}"
    near = did_you_mean(name, [*everything, *LISTS, SCHEMA])
    raise InputError(f"there is nothing called {name!r}; {near or lists}")


def _spelled(name: str) -> str:
    """An engine or a release as it is called here: `LM Studio`, `KoboldCpp@1.120`, `ollama`."""
    from cachesim.engines.family import FAMILIES, Profile

    if "@" not in name:
        return FAMILIES.named(name)
    try:
        return str(Profile.parse(name))
    except InputError:
        return name


def aliases(item: Item) -> set[str]:
    """The names of one item: `llama.cpp +24143`, `+24143`, `24143`; `llama.cpp slot-busy`."""
    engine, plus, patch = item.name.partition(" +")
    if plus:
        return {item.name, f"+{patch}", patch, f"{engine}+{patch}"}
    if " " in item.name:
        return {item.name, item.name.partition(" ")[2]}
    engine, _, release = item.name.partition("@")
    names = {release, *item.also} if release else set()
    return {item.name, *names, *(f"{engine}@{name}" for name in names)}


def shown(item: Item) -> RenderableType:
    """An item in full."""
    lines: list[RenderableType] = [Text(item.name, style="name"), Text(item.about)]
    if item.upstream:
        lines.append(Text(f"upstream: {item.upstream}"))
    if item.fits:
        lines.append(Text(f"fits: {item.range}"))
    if item.landed:
        lines.append(Text(f"landed: {item.landed}"))
    lines += [Text(fact) for fact in item.facts]
    return Group(*lines)
