"""Draws the picture of `make_picture` as a GIF, for places that show no SVG; needs Pillow.

`make docs` writes it into the site.
"""

from pathlib import Path

from make_picture import SECONDS, SIZE, TALL, TOP, lines
from two_codes import DRAWN, SHOWN, Moment, Told, told

from cachesim.report.gif import INK, WRONG, Canvas, save
from cachesim.report.svg import LINE


def write_gif(path: Path) -> None:
    """The frames at twice their size."""
    story = told(SHOWN)
    frames = [_painted(story, moment) for moment in story.moments]
    save(path, frames, [1000 * seconds for seconds in SECONDS])


def _painted(story: Told, moment: Moment) -> Canvas:
    canvas = Canvas.blank(TALL)
    for line in lines(story, moment):
        ink = WRONG if line.tone == "bad" else INK
        canvas.write((line.x, line.y), line.text, size=SIZE, ink=ink, bold=bool(line.tone))
    for i, row in enumerate(moment.rows):
        canvas.row(row, TOP + LINE * i, DRAWN)
    return canvas
