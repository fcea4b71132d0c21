"""Draws `docs/images/three-requests.svg`: what memory holds after each of three requests.

`python docs/make_picture.py` writes it; a test compares. The letters are those of whatever font
the reader's machine has: the picture fetches nothing.
"""

import tomllib
from pathlib import Path
from typing import Final

from cachesim import run_scenario
from cachesim.report.picture import Kind, Picture, story
from cachesim.report.svg import standalone
from cachesim.scenario.shipped import shipped_file

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "images" / "three-requests.svg"
SCENARIO: Final = "llama.cpp-three-requests"
PROFILE: Final = "llama.cpp@b11549"
SHOWN: Final[tuple[Kind, ...]] = ("request", "recurrent", "checkpoint")
"""The rows that the story is told by."""


def shown() -> Picture:
    """The three requests below each other."""
    mapping = tomllib.loads(shipped_file(SCENARIO).read_text(encoding="utf-8"))
    return story(run_scenario(mapping, profile=PROFILE, detail=True), kinds=SHOWN)


def picture() -> str:
    """The picture as SVG; the same bytes on every machine."""
    return standalone(shown())


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
