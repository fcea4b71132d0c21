"""A picture as a GIF that grows by one request a frame, for places that show no SVG.

Pillow draws it, with its own font, which has no arrow. It is no dependency of cachesim: whoever
asks for a GIF installs it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from cachesim.report.picture import Arrow, Picture, Row, clip
from cachesim.report.svg import (
    COLOURS,
    EDGE,
    GUTTER,
    HEADING,
    HIGH,
    LABEL,
    LEGEND,
    LIGHT,
    LIGHT_COLOURS,
    LINE,
    MIDDLE,
    NOTE,
    WIDE,
    bar_kinds,
)
from cachesim.report.texts import Bar

INK, QUIET, GROUND, WRONG = "#14181f", "#4a525e", "#ffffff", "#c01818"
RAIL: Final = "#c9ccd1"
PALE: Final = 0.3
"""Share of a colour in a bar that was prefilled, as in the SVG."""
UNFILLED: Final = frozenset({"gone", "missing", "pending"})
EDGES: Final = {
    "wrong": WRONG,
    "missing": WRONG,
    "gone": QUIET,
    "pending": QUIET,
    "new": QUIET,
    "again": QUIET,
}
INNER: Final = WIDE - 2 * EDGE
SHARP: Final = 30
"""Rows up to which a frame has twice the pixels of the SVG."""
PACE, LAST = 1200, 4000
"""Milliseconds of a frame, and of the last one."""


@dataclass(frozen=True, slots=True)
class Canvas:
    """An image that is drawn on in the SVG's pixels, inside its edge."""

    image: Image.Image
    draw: ImageDraw.ImageDraw
    scale: int

    @classmethod
    def blank(cls, high: int, scale: int = 2) -> "Canvas":
        """A white image for a drawing of this height."""
        image = Image.new("RGB", (WIDE * scale, (high + 2 * EDGE) * scale), GROUND)
        return cls(image, ImageDraw.Draw(image), scale)

    def scaled(self, *values: float) -> list[int]:
        """Numbers of the SVG's pixels in the image's."""
        return [round((value + EDGE) * self.scale) for value in values]

    def write(
        self,
        at: tuple[float, float],
        text: str,
        *,
        size: int = 11,
        ink: str = INK,
        bold: bool = False,
        halo: bool = False,
        anchor: str = "ls",
    ) -> None:
        """Write a text; `anchor` says which of its points stands at the place."""
        left, top = self.scaled(*at)
        font = ImageFont.load_default(size * self.scale)
        self.draw.text(
            (left, top),
            text.replace("→", "->"),
            fill=ink,
            font=font,
            anchor=anchor,
            stroke_width=self.scale if halo else self.scale - 1 if bold else 0,
            stroke_fill=GROUND if halo else ink,
        )

    def width(self, text: str) -> float:
        """The width of a text of eleven pixels."""
        font = ImageFont.load_default(11 * self.scale)
        return self.draw.textlength(text.replace("→", "->"), font=font) / self.scale

    def row(self, row: Row, top: int, positions: int, left: float = 0) -> None:
        """A row as `row_svg` draws it: the label, the rail, the bars with their words."""
        across = (INNER - left) / positions
        label = f"{row.label}   {row.note}" if row.note else row.label
        self.write((left, top + 10), label, ink=INK if row.note else QUIET)
        middle = top + LABEL + HIGH // 2
        self.draw.line(self.scaled(left, middle, INNER, middle), fill=RAIL, width=self.scale)
        for bar in clip(row, positions).bars:
            self._bar(bar, top + LABEL, across, left)

    def _bar(self, bar: Bar, top: int, across: float, left: float) -> None:
        at, end = (left + place * across for place in (bar.start, bar.end))
        start = at
        for count, colour in () if bar.kind in UNFILLED else bar.colours:
            fill = paled(LIGHT_COLOURS[colour % COLOURS], PALE if bar.kind in LIGHT else 1)
            box = self.scaled(start, top, start + count * across, top + HIGH)
            self.draw.rectangle(box, fill=fill)
            start += count * across
        if bar.kind == "again":
            for x in range(round(at), round(max(at + 1, end - HIGH)), 7):
                self.draw.line(self.scaled(x, top + HIGH, x + HIGH, top), fill=QUIET)
        wide = self.scale * (3 if bar.kind == "wrong" else 1)
        edge = EDGES.get(bar.kind, GROUND)
        self.draw.rectangle(self.scaled(at, top, end, top + HIGH), outline=edge, width=wide)
        words = bar.words or (bar.text,)
        step = (end - at) / len(words)
        if bar.words and max(map(self.width, words)) > step:
            words, step = (bar.text,), end - at
        for i, word in enumerate(words):
            if self.width(word) <= step:
                place = (at + (i + 0.5) * step, top + 12)
                self.write(place, word, anchor="ms", halo=bar.kind == "again")

    def sample(self, kind: str, left: float, top: int) -> None:
        """An entry of the legend: a bar of this kind, and its meaning."""
        known = next(each for each in LEGEND[kind][0] if each in {kind, "held"})
        bar = Bar(start=0, end=16, step=None, kind=known, text="", tip="", colours=((16, 1),))
        self._bar(bar, top, 1, left)
        self.write((left + 22, top + 12), LEGEND[kind][1], ink=QUIET)


def paled(colour: str, share: float) -> str:
    """A colour over white."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 + share * (part - 255)):02x}" for part in parts)


def save(path: Path, frames: Iterable[Canvas], milliseconds: list[int]) -> None:
    """Write the frames as a GIF that begins again."""
    first, *others = (canvas.image.quantize(64) for canvas in frames)
    first.save(
        path,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=milliseconds,
        loop=0,
        optimize=True,
    )


def write_gif(picture: Picture, path: Path) -> None:
    """Write a picture, one request more in each frame."""
    count = max(1, len(picture.headings))
    save(path, _frames(picture, count), [*[PACE] * (count - 1), LAST])


def _frames(picture: Picture, count: int) -> Iterator[Canvas]:
    heads = dict(picture.headings)
    ends = [*[at for at, _ in picture.headings][1:], len(picture.rows)][-count:]
    tops, y = [], 4
    for i in range(len(picture.rows)):
        y += HEADING if i in heads else 0
        tops.append(y)
        y += LINE
    left = INNER * GUTTER / 100 if picture.arrows else 0
    kinds = bar_kinds(picture.rows)
    for end in ends:
        canvas = Canvas.blank(y + NOTE, 2 if len(picture.rows) <= SHARP else 1)
        for i, row in enumerate(picture.rows[:end]):
            if i in heads:
                ink = WRONG if "WRONG" in heads[i] else INK
                canvas.write((left, tops[i] - 7), heads[i], size=13, ink=ink, bold=True)
            canvas.row(row, tops[i], picture.positions, left)
        for arrow in picture.arrows:
            if arrow.to_row < end:
                _arrow(canvas, arrow, tops, left)
        samples = [sample for sample, (fills, _) in LEGEND.items() if kinds & fills]
        for i, sample in enumerate(samples):
            at = left + i * (INNER - left) / len(samples)
            canvas.sample(sample, at, y)
        yield canvas


def _arrow(canvas: Canvas, arrow: Arrow, tops: list[int], left: float) -> None:
    """Down the gutter, from the checkpoint to the memory that it was restored to."""
    first, last = (tops[at] + MIDDLE for at in (arrow.from_row, arrow.to_row))
    ink, x = WRONG if arrow.wrong else INK, left / 3
    path = canvas.scaled(left, first, x, first, x, last, left, last)
    canvas.draw.line(path, fill=ink, width=2 * canvas.scale)
    tip = canvas.scaled(left, last, left - 8, last - 5, left - 8, last + 5)
    canvas.draw.polygon(tip, fill=ink)
