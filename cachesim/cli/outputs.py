"""Reports of commands: printed, as JSON, as pages; and the files that flags name."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from cachesim.files import PAGE, Output
from cachesim.report.consoles import notes, results, show


def output_at(path: Path | None, flag: str, kind: bytes = b"") -> Output | None:
    """The file of a flag, if given; checked before the work."""
    return None if path is None else Output.at(path, flag, kind)


def write(output: Output, text: str) -> None:
    """Write a file; its name goes to standard error."""
    output.write(text)
    written(output)


def written(output: Output) -> None:
    """The file's name, on standard error."""
    show(notes(), Text(f"{output.flag[2:]}: {output.path}"))


def page_at(path: Path | None) -> Output | None:
    """The file that `--report` names."""
    return output_at(path, "--report", PAGE)


def write_page(output: Output | None, title: str, parts: Iterable[RenderableType]) -> None:
    """Write a report as a page, if requested."""
    if output is not None:
        from cachesim.report.html_document import page

        write(output, page(title, *parts))


def print_report(
    parts: Iterable[RenderableType],
    found: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    *,
    format: str = "text",
    indent: int = 1,
) -> None:
    """Print a report, or its values as JSON."""
    if format == "text":
        show(results(), *parts)
    elif format == "json":
        sys.stdout.write(json.dumps(found, indent=indent) + "\n")
    else:
        sys.stdout.writelines(json.dumps(row) + "\n" for row in found)


# -- progress --------------------------------------------------------------------------------------

T = TypeVar("T")

INTERVAL: Final = 30.0
"""Seconds between two lines of progress, where standard error is no terminal."""


@contextmanager
def progress(
    text: str, total: float | None = None, unit: str = "", *, shown: bool = True
) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error; a line each `INTERVAL` seconds if that is no terminal.

    The bar takes the completed amount, and a text in place of "7 of 12 releases".
    """
    screen, printed = notes(), monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=screen, transient=True, disable=not (shown and screen.is_terminal)
    ) as bar:
        task = bar.add_task(text, total=total, done="")

        def move(done: float, words: str = "") -> None:
            nonlocal printed
            of = "" if total is None else f" of {total:,.0f}"
            words = words or f"{done:,.0f}{of} {unit}"
            bar.update(task, completed=done, done=words)
            if shown and bar.disable and monotonic() - printed >= INTERVAL:
                printed = monotonic()
                screen.print(f"{text}: {words}", soft_wrap=True)

        yield move


def tracked(items: Iterable[T], total: int, text: str, unit: str) -> Iterator[T]:
    """The items, with a progress bar."""
    with progress(text, total, unit) as move:
        for number, item in enumerate(items):
            move(number)
            yield item
