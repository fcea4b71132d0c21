"""Pictures of a lesson's runs, and controls that rerun with another number.

```python picture      sets `picture = drawn(replies)`: shown, its code is not
```python control      sets `control = swept("letters of the first prompt", range(1, 9), play)`
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from cachesim.learn.kit import Answered, Memory, letters
from cachesim.report import picture_text
from cachesim.report.picture import Kind, Picture, story
from cachesim.report.svg import STYLE, inline

BOXES_STYLE: Final = """\
svg.boxes { width: 100%; height: auto; display: block; } svg.boxes rect { stroke: #14181d40; }
svg.boxes text { font: 13px ui-monospace, monospace; }
svg.boxes text { fill: var(--color-foreground-primary, currentColor); }
svg.boxes text.in { text-anchor: middle; fill: #14181d; }
svg.boxes .first { fill: #f6b26b; } svg.boxes .second { fill: #8ec1f2; }
svg.boxes .both { fill: #9bd18b; } svg.boxes .plain { fill: #c4c9d0; }
svg.boxes .gone { fill: #fff; stroke: #d0282b; stroke-dasharray: 3 2; }
"""


class InNotebook:
    """What a notebook shows of a picture in the last line of a cell."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        pictures: Iterable[tuple[Any, ...]] = getattr(self, "shown", (("", "", self),))
        drawn = (
            f"<p>{escape(f'{value} {said}')}</p>{picture.svg('n')}"
            for value, said, picture in pictures
        )
        return f"<style>{STYLE}{BOXES_STYLE}</style>{''.join(drawn)}"


KINDS: Final[tuple[Kind, ...]] = (
    "request", "attention", "window", "recurrent", "checkpoint", "tree",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn(InNotebook):
    """A picture of memory with its description, step by step."""

    picture: Picture
    link: str = ""  # the fragment that opens the run in the playground

    def svg(self, uid: str) -> str:
        """SVG for a page with the pictures' style."""
        return inline(self.picture, uid, letter=_letter)

    def text(self) -> str:
        """Text for a terminal: a letter for each token, and a mark under wrong ones."""
        words = any(bar.words for row in self.picture.rows for bar in row.bars)
        return picture_text.text(self.picture, letter=None if words else _letter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes(InNotebook):
    """Rows of boxes: cells with their letters and owners, or blocks with their hashes."""

    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]  # a label, then text and tone
    legend: str = ""
    key: tuple[tuple[str, str], ...] = ()  # tones, and what they say; a terminal has none

    def svg(self, uid: str) -> str:
        """A box for each text; the tones are classes of the site's style."""
        wide = max(len(text) for _, boxes in self.rows for text, _ in boxes)
        step = max(26, 8 * wide + 10)
        most = max(len(boxes) for _, boxes in self.rows)
        width, high = LABEL_WIDE + step * most, 30 * (len(self.rows) + len(self.key))
        parts = []
        for row, (label, boxes) in enumerate(self.rows):
            top = 30 * row
            parts.append(f'<text x="0" y="{top + 18}">{escape(label)}</text>')
            for at, (text, tone) in enumerate(boxes):
                if tone:
                    x = LABEL_WIDE + step * at
                    box = f'x="{x + 1}" y="{top + 2}" width="{step - 3}" height="24" rx="3"'
                    parts.append(f'<rect class="{tone}" {box}/>')
                    parts.append(f'<text x="{x + step / 2}" y="{top + 19}" class="in">')
                    parts.append(f"{escape(text)}</text>")
        for row, (tone, text) in enumerate(self.key, len(self.rows)):
            parts.append(f'<rect class="{tone}" x="0" y="{30 * row + 8}" width="24" height="14"/>')
            parts.append(f'<text x="32" y="{30 * row + 20}">{escape(text)}</text>')
        name = escape(self.legend or "; ".join(label for label, _ in self.rows))
        return (
            f'<svg class="boxes" id="{uid}" viewBox="0 0 {width} {high}" role="img"'
            f' aria-label="{name}" style="max-width:{width}px">{"".join(parts)}</svg>'
            + (f"<figcaption>{escape(self.legend)}</figcaption>" if self.legend else "")
        )

    def text(self) -> str:
        """Text of the boxes for a terminal."""
        wide = max(3, *(len(text) for _, boxes in self.rows for text, _ in boxes))
        left = max(len(label) for label, _ in self.rows)
        lines = [
            f"{label:<{left}}  " + " ".join(f"{text:^{wide}}" for text, _ in boxes)
            for label, boxes in self.rows
        ]
        return "\n".join([*(line.rstrip() for line in lines), *filter(None, [self.legend])])

    @property
    def link(self) -> str:
        """Empty: no scenario of the playground has a memory without a server."""
        return ""


LABEL_WIDE: Final = 88
"""Pixels of the labels of boxes."""

TONES: Final = {"": "", "0": "first", "1": "second", "01": "both"}
"""Owners of a cell, and their tones."""


def cells_of(memory: Memory) -> Boxes:
    """Picture of an attention cache: cells with position, letter and owners."""
    found = memory.cells()
    tones = [TONES[owners] for _, _, owners in found]
    letters_of = tuple((text, tone) for (_, text, _), tone in zip(found, tones, strict=True))
    places = tuple((place, tone) for (place, _, _), tone in zip(found, tones, strict=True))
    tones_of = (("first", "first sequence"), ("second", "second sequence"), ("both", "both"))
    key = tuple(tone for tone in tones_of if tone[0] in tones)
    return Boxes(rows=(("position", places), ("token", letters_of)), key=key)


def _letter(token: int) -> str:
    """A token's letter; a space as an underscore, as in the lessons' tables."""
    return letters([token]).replace(" ", "_")


def drawn(replies: Sequence[Answered], *also: Kind) -> Drawn:
    """Picture of the server's memory after each request."""
    run = replies[0].watched()
    present = {row.kind for row in story(run).rows}
    best = "recurrent" if "recurrent" in present else "window" if "window" in present else None
    kinds = [k for k in KINDS if k in present and (best is None or k != "attention")]
    return Drawn(picture=story(run, kinds=(*kinds, *also)), link=replies[0].link())


@dataclass(frozen=True, slots=True, kw_only=True)
class Control(InNotebook):
    """A number to change, with the result of each value."""

    label: str
    shown: tuple[tuple[str, str, Drawn | Boxes], ...]  # the value, the result, the picture


def swept(
    label: str, values: Iterable[Any], play: Callable[[Any], Sequence[Answered]], *also: Kind
) -> Control:
    """Run a run once for each value."""
    found = []
    for value in values:
        replies = play(value)
        last = replies[-1]
        text = f"{last.cached} of {last.tokens} cached, answer {last.answer}"
        text += f", reply {last.reply}" if last.reply else ""
        found.append((str(value), text, drawn(replies, *also)))
    return Control(label=label, shown=tuple(found))
