"""`cachesim conform`: the laws of a cache, asked of a whole real server."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import RenderableType
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED, UNTESTED, options
from cachesim.cli.jobs import setting
from cachesim.cli.outputs import page_at, write_page
from cachesim.cli.probe import interruptible, telling
from cachesim.conform.command import Asked, run
from cachesim.conform.formats import junit, sarif
from cachesim.conform.laws import LAWS
from cachesim.conform.result import Table, evidence
from cachesim.probe.command import Settings
from cachesim.report.consoles import results, show
from cachesim.report.document import FittingTable, Heading

DEFAULT: Final = Settings()
STYLES: Final = {"holds": "right", "viola": "wrong"}


def conform_command(
    what: Annotated[
        str,
        Parameter(
            help="An engine, or ENGINE@RELEASE: a checkout starts its server with a tiny model of"
            " each layer kind, --minutes for each."
        ),
    ] = "",
    *,
    url: Annotated[str, Parameter(help="A server that runs, as http://127.0.0.1:8080.")] = "",
    law: Annotated[
        list[str] | None,
        Parameter(help=f"Ask for this law alone: {', '.join(LAWS)}; may be repeated."),
    ] = None,
    profile: options.Profile = None,
    model: Annotated[
        list[str] | None,
        Parameter(
            help="A preset of `cachesim list presets` that the server has; may be repeated for an"
            " engine, of which a few have their own column by default."
        ),
    ] = None,
    set: options.Settings = None,
    settings: Settings = DEFAULT,
    emit: Annotated[
        Path, Parameter(help="Write reports and scenarios of violations to this folder.")
    ] = Path("conform"),
    format: options.TestFormat = "text",
    report: options.Page = None,
) -> int:
    """Hold a real server against the laws of a cache, and print a table.

    Example: cachesim conform --start "llama-server -m model.gguf --port {port}" --minutes 5
    """
    page = page_at(report)
    asked = Asked(
        what=what,
        laws=tuple(dict.fromkeys(law or LAWS)),
        profile=profile or "",
        models=tuple(dict.fromkeys(model or ())),
        options=dict(map(setting, set or ())),
        settings=replace(settings, url=url, emit=emit),
    )
    with interruptible(), telling() as progress:
        table = run(asked, progress)
    if format == "text":
        show(results(), *_parts(table))
    else:
        written = {"junit": junit, "sarif": sarif}
        told = json.dumps(table.as_json(), indent=1) if format == "json" else written[format](table)
        sys.stdout.write(f"{told}\n")
    write_page(page, "cachesim conform", [Heading("cachesim conform"), *_parts(table)])
    if table.violated:
        return NOT_AS_EXPECTED
    return AS_EXPECTED if table.tested else UNTESTED


def _parts(table: Table) -> Iterator[RenderableType]:
    grid = FittingTable(title_style="", box=None)
    for head in table.heads():
        grid.add_column(head)
    for law, *cells in table.rows():
        grid.add_row(law, *(Text(cell, style=STYLES.get(cell[:5], "")) for cell in cells))
    yield grid
    yield from map(Text, table.lines())
    for column in table.columns:
        for verdict, finding in column.findings:
            yield Text(
                f"VIOLATED {column.model}, {verdict.law}: {evidence(finding)}", style="wrong"
            )
            yield Text(f"  {LAWS[verdict.law].sentence}")
            yield from (Text(f"  {line}") for line in finding.mechanism)
        yield from (Text(f"known: {name}") for name in column.known)
        yield from (Text(f"written: {file}") for file in column.files)
