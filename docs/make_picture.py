"""Draws `docs/images/two-codes.svg`: a reply from the checkpoint of another conversation.

`python docs/make_picture.py` writes it; a test compares. The letters are those of whatever font
the reader's machine has: the picture fetches nothing.
"""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Final

from cachesim import run_scenario
from cachesim.report.picture import Kind, Picture, story
from cachesim.report.svg import standalone
from cachesim.scenario.shipped import shipped_file

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "images" / "two-codes.svg"
SCENARIO: Final = "llama.cpp-two-codes"
PROFILE: Final = "llama.cpp@b11549"
SHOWN: Final[tuple[Kind, ...]] = ("request", "recurrent", "checkpoint")
"""The rows that the story is told by."""
NARROW: Final = 11
"""Positions that are drawn: those of the longest prompt that is not cut."""


def shown() -> Picture:
    """The requests below each other, the restored checkpoint, and the state resumed from it."""
    mapping = tomllib.loads(shipped_file(SCENARIO).read_text(encoding="utf-8"))
    whole = story(run_scenario(mapping, profile=PROFILE, detail=True), kinds=SHOWN)
    arrow = next(each for each in whole.arrows if each.wrong)
    name = whole.rows[arrow.from_row].label
    kept = [
        i
        for i, row in enumerate(whole.rows)
        if row.kind == "request" or i == arrow.to_row or row.label == name
    ]
    number = {old: new for new, old in enumerate(kept)}
    return replace(
        whole,
        rows=tuple(whole.rows[i] for i in kept),
        positions=min(whole.positions, NARROW),
        headings=tuple((number[at], text) for at, text in whole.headings),
        arrows=(replace(arrow, from_row=number[arrow.from_row], to_row=number[arrow.to_row]),),
    )


def picture() -> str:
    """The picture as SVG; the same bytes on every machine."""
    return standalone(shown())


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
