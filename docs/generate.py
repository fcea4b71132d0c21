"""Writes the pages that come from the code into docs/_generated: lessons and reference.

`make docs` runs it before every build, so that no page can fall behind the code.
"""

import importlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import make_picture
from pages import (
    api,
    causes,
    commands,
    events,
    flags,
    gallery,
    home,
    leaks,
    lessons,
    releases,
    schemas,
)

from cachesim.learn.drawing import BOXES_STYLE
from cachesim.report.svg import STYLE

FOLDER: Final = Path(__file__).parent / "_generated"

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    **lessons.pages(),
    "commands.md": commands.page,
    "scenario-keys.md": schemas.scenario_page,
    "json-output.md": schemas.output_page,
    "events.md": events.page,
    "causes.md": causes.page,
    "python.md": api.page,
    "releases.md": releases.page,
    "flags.md": flags.page,
    "leaks.md": leaks.page,
}
"""Every generated page, and what writes it."""

PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "static/picture.css": lambda: STYLE + BOXES_STYLE,
    "static/two-codes.svg": make_picture.picture,
    "parts/home.inc": home.page,
    "parts/gallery.inc": gallery.page,
    "parts/lessons.inc": lessons.index,
}
"""Parts of pages."""


def main() -> None:
    """Write all pages again."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, write in {**PAGES, **PARTS}.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(write(), encoding="utf-8")
    write_gif = importlib.import_module(
        "make_gif"
    ).write_gif  # needs Pillow, which tests do without
    write_gif(FOLDER / "static" / "two-codes.gif")


if __name__ == "__main__":
    main()
