"""Consoles: results to standard output, everything else to standard error.

Rich obeys `NO_COLOR` and `FORCE_COLOR`, and writes plain text into a pipe. A pipe is 80 columns
wide unless `COLUMNS` is set, so that pasted output is equal everywhere.
"""

import os
import shutil
import sys
from io import StringIO
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.theme import Theme

from cachesim.careful import CarefulConsole

THEME: Final = Theme(
    {
        "right": "green",
        "wrong": "bold red",
        "lost": "yellow",
        "quiet": "dim",
        "name": "bold",
        "computed": "cyan",
        "reused": "green",
        "cut": "red",
        "again": "yellow",
        "differs": "yellow",
    }
)
"""The styles; every coloured text is readable without colour."""

NARROWEST: Final = 20
"""Fewest columns of a valid width."""

PLAIN: Final = str.maketrans(
    {"→": "->", "·": "-", "─": "-", "…": "~", "│": "|", "├": "|", "└": "`", "●": "o", "○": "."}
    | {"✗": "x"}
    | dict(zip("▁▂▃▄▅▆▇█", ".:-=+*%#", strict=True))
)
"""ASCII replacements of signs that an encoding lacks."""


class Screen(CarefulConsole):
    """A console with our styles, whose reader may disconnect."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(theme=THEME, **settings)

    def on_broken_pipe(self) -> None:
        """Leave the reaction to the program."""
        raise  # noqa: PLE0704 - Rich calls this while it handles the error


def results() -> Console:
    """Standard output."""
    return Screen(file=sys.stdout, width=_narrow())


def notes() -> Console:
    """Standard error."""
    return Screen(file=sys.stderr, stderr=True, width=_narrow())


def plain_text(*parts: RenderableType, width: int = 80) -> str:
    """A report as printed to a pipe."""
    file = StringIO()
    show(Screen(file=file, width=width, color_system=None, _environ={}), *parts)
    return file.getvalue()


def _narrow() -> int | None:
    """A valid width if `COLUMNS` is too small; 0 if it is unset."""
    columns = os.environ.get("COLUMNS", "")
    if not columns.isdigit() or int(columns) >= NARROWEST:
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns)


def show(screen: Console, *renderables: RenderableType, wrap: bool = True) -> None:
    """Print without trailing spaces of tables."""
    with screen.capture() as captured:
        screen.print(*renderables, sep="\n", soft_wrap=not wrap, crop=False)
    text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    screen.file.write(writable(text, getattr(screen.file, "encoding", None) or "utf-8"))


def writable(text: str, encoding: str) -> str:
    """The text with ASCII replacements, if the encoding lacks its signs."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(PLAIN).encode(encoding, "replace").decode(encoding)
    return text
