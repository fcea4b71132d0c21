"""Where text goes: results to standard output, everything else to standard error.

Rich obeys `NO_COLOR` and `FORCE_COLOR`, and writes plain text into a pipe. A pipe is 80 columns
wide unless `COLUMNS` says otherwise, so that what people paste looks the same everywhere.
"""

import sys
from typing import Final

from rich.console import Console, RenderableType
from rich.theme import Theme

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
    }
)
"""Colour says nothing that words and letters do not say too."""

PLAIN: Final = str.maketrans({"→": "->", "·": "-", "─": "-", "…": "~"})
"""What is written where an encoding lacks the sign."""


def results() -> Console:
    """Standard output."""
    return Console(file=sys.stdout, theme=THEME, highlight=False, emoji=False, markup=False)


def notes() -> Console:
    """Standard error."""
    return Console(
        file=sys.stderr, stderr=True, theme=THEME, highlight=False, emoji=False, markup=False
    )


def show(screen: Console, *renderables: RenderableType) -> None:
    """Print without the blanks that tables put at the end of lines."""
    with screen.capture() as captured:
        screen.print(*renderables, sep="\n")
    text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    screen.file.write(writable(text, getattr(screen.file, "encoding", None) or "utf-8"))


def writable(text: str, encoding: str) -> str:
    """The text in plainer signs where the output has no others."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(PLAIN).encode(encoding, "replace").decode(encoding)
    return text
