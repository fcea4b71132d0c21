"""Draws the picture of `make_picture` as a GIF, for places that show no SVG; needs Pillow.

`make docs` writes it into the site. Pillow brings its own font, which has no arrow.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from make_picture import SECONDS, SIZE, TALL, TOP, lines
from PIL import Image, ImageDraw, ImageFont
from two_codes import DRAWN, SHOWN, Moment, Told, told

from cachesim.report.picture import Row
from cachesim.report.svg import COLOURS, EDGE, HIGH, LABEL, LIGHT_COLOURS, LINE, WIDE

SCALE: Final = 2
INK, QUIET, GROUND, WRONG = "#14181f", "#4a525e", "#ffffff", "#c01818"


def write_gif(path: Path) -> None:
    """The frames at twice their size, drawn with Pillow and its own font."""
    story = told(SHOWN)
    frames = [_painted(story, moment) for moment in story.moments]
    frames[0].save(
        path,
        save_all=True,
        append_images=frames[1:],
        duration=[1000 * seconds for seconds in SECONDS],
        loop=0,
        optimize=True,
    )


def _painted(story: Told, moment: Moment) -> Image.Image:
    size = (WIDE * SCALE, (TALL + 2 * EDGE) * SCALE)
    image = Image.new("RGB", size, GROUND)
    draw = ImageDraw.Draw(image)
    for line in lines(story, moment):
        ink = WRONG if line.tone == "bad" else INK
        _write(draw, (line.x, line.y), line.text, size=SIZE, ink=ink, bold=bool(line.tone))
    for i, row in enumerate(moment.rows):
        _paint(draw, row, TOP + LINE * i)
    return image.quantize(16)


def _paint(draw: ImageDraw.ImageDraw, row: Row, top: int) -> None:
    """A row as `row_svg` draws it: the label, the rail, the bars with their words."""
    across = (WIDE - 2 * EDGE) / DRAWN
    label = f"{row.label}   {row.note}" if row.note else row.label
    _write(draw, (0, top + 10), label, size=11, ink=INK if row.note else QUIET)
    middle = top + LABEL + HIGH // 2
    draw.line(_scaled(0, middle, DRAWN * across, middle), fill="#c9ccd1", width=SCALE)
    for bar in row.bars:
        at = bar.start
        gone = bar.kind == "gone"
        for count, colour in ((bar.end - bar.start, -1),) if gone else bar.colours:
            fill = GROUND if gone else LIGHT_COLOURS[colour % COLOURS]
            box = _scaled(at * across, top + LABEL, (at + count) * across, top + LABEL + HIGH)
            draw.rectangle(box, fill=fill)
            at += count
        box = _scaled(bar.start * across, top + LABEL, bar.end * across, top + LABEL + HIGH)
        edge = {"wrong": WRONG, "gone": QUIET}.get(bar.kind, GROUND)
        draw.rectangle(box, outline=edge, width=SCALE * (3 if bar.kind == "wrong" else 1))
        spread: Sequence[str] = bar.words or (bar.text,)
        step = (bar.end - bar.start) / len(spread)
        for i, word in enumerate(spread):
            centre = (bar.start + (i + 0.5) * step) * across
            _write(draw, (centre, top + LABEL + 12), word, size=11, ink=INK, anchor="ms")


def _scaled(*values: float) -> list[int]:
    """Numbers of the SVG's pixels in a file's, inside its edge."""
    return [round((value + EDGE) * SCALE) for value in values]


def _write(
    draw: ImageDraw.ImageDraw,
    at: tuple[float, float],
    text: str,
    *,
    size: int,
    ink: str,
    bold: bool = False,
    anchor: str = "ls",
) -> None:
    font = ImageFont.load_default(size * SCALE)
    left, top = _scaled(*at)
    draw.text(
        (left, top), text.replace("→", "->"), fill=ink, font=font, anchor=anchor, stroke_width=bold
    )
