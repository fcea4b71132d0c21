"""The README's picture shows the current run, and fetches nothing."""

import re
from html import unescape

import make_picture
from two_codes import told

from cachesim.report.svg import EDGE, WIDE


def test_the_picture_is_in_step_with_the_program() -> None:
    kept = make_picture.PICTURE.read_text(encoding="utf-8")

    assert kept == make_picture.picture(), "python docs/make_picture.py draws it again"


def test_the_picture_fetches_nothing() -> None:
    kept = make_picture.PICTURE.read_text(encoding="utf-8")
    without = re.sub(r"<!--.*?-->|xmlns=\"[^\"]*\"", "", kept, flags=re.DOTALL)

    assert "@font-face" not in kept
    assert "http" not in without
    assert "7413, WRONG: B's code is 2361" in unescape(kept)
    assert 5 == kept.count('<g class="fr ')
    assert "@media(prefers-reduced-motion:reduce){.fr{animation:none}}" in kept


def test_every_line_fits_into_the_picture() -> None:
    """Letters of a wide font: bold ones are 0.6 as wide as they are high, on average."""
    story = told(600)
    for moment in story.moments:
        for line in make_picture.lines(story, moment):
            wide = make_picture.SIZE * (0.6 if line.tone else 0.55) * len(line.text)
            assert line.x + wide <= WIDE - 2 * EDGE, line.text
