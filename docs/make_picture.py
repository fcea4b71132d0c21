"""Draws `docs/images/three-requests.svg`: the first screen, as a terminal shows it.

`python docs/make_picture.py` writes it; a test compares. The letters are those of whatever
monospaced font the reader's machine has: the picture fetches nothing.
"""

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "images" / "three-requests.svg"
COMMAND: Final = ("run", "llama.cpp-three-requests")
COLUMNS: Final = 80

FONTS: Final = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def picture() -> str:
    """The picture as SVG; the same bytes on every machine."""
    screen = Console(width=COLUMNS, record=True, file=io.StringIO())
    screen.print(Text.from_ansi(said()))
    title = f"cachesim {' '.join(COMMAND)}"
    return with_local_fonts(screen.export_svg(title=title, unique_id="cachesim"))


def said() -> str:
    """What the command prints at a terminal with colours."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "cachesim", *COMMAND],
        cwd=ROOT,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "NO_COLOR": ""},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def with_local_fonts(svg: str) -> str:
    """Rich's own window around a terminal, without the fonts that it would fetch."""
    without = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return without.replace("Fira Code, monospace", FONTS)


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
