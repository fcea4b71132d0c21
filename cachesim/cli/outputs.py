"""Reports of commands: printed, as JSON, as pages; and the files that flags name."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cachesim.files import PAGE, Output
from cachesim.report.consoles import notes, results, show


def output_at(path: Path | None, flag: str, kind: bytes = b"") -> Output | None:
    """The file of a flag, if given; checked before any work is done for it."""
    return None if path is None else Output.at(path, flag, kind)


def write(output: Output, text: str) -> None:
    """Write a file; its name goes to standard error."""
    output.write(text)
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
        sys.stdout.writelines(json.dumps(each) + "\n" for each in found)
