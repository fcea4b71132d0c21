"""Draws the five frames of `two_codes` as a picture that moves, for the README and to be posted.

`python docs/make_picture.py` writes `docs/images/two-codes.svg`; a test compares. The letters are
those of whatever font the reader's machine has: the picture fetches nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final, Literal, TypeAlias

from two_codes import DRAWN, SHOWN, Moment, Told, told

from cachesim.report.svg import LINE, file_of, hatches, row_svg

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "images" / "two-codes.svg"
SECONDS: Final = (2, 2, 2, 4, 5)
"""Of each frame."""
TOP: Final = 84
"""Pixels of the chats, above the rows."""
TALL: Final = TOP + 2 * LINE + 36

SIZE: Final = 14
"""Pixels of a letter's height."""

Tone: TypeAlias = Literal["", "h", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of text: where it starts, and whether it is bold or an error."""

    x: int
    y: int
    text: str
    tone: Tone = ""


def lines(story: Told, moment: Moment) -> Iterator[Line]:
    """The chats, and the frame's sentence below the rows."""
    a, begins, asks = story.chats
    yield Line(x=0, y=16, text="Chat A", tone="h")
    yield Line(x=64, y=16, text=f"{a}  → {story.told_a}, right")
    yield Line(x=0, y=42, text="Chat B", tone="h")
    yield Line(x=64, y=42, text=f"{begins} … {SHOWN} more words")
    if moment.answered:
        wrong = story.reply != story.right
        text = f"{asks}  → {story.reply}"
        text += f", WRONG: B's code is {story.right}" if wrong else ", right"
        yield Line(x=64, y=64, text=text, tone="bad" if wrong else "")
    tone: Tone = "bad" if moment.answered and story.reply != story.right else ""
    yield Line(x=0, y=TALL - 12, text=moment.sentence, tone=tone)


def picture(*, fixed: bool = False) -> str:
    """The picture as SVG; the same bytes on every machine."""
    story = told(SHOWN, fixed=fixed)
    whole, start = sum(SECONDS), 0
    style = [f".fr{{visibility:hidden;animation:{whole}s step-end infinite}}"]
    drawn = [hatches("")]
    for i, (moment, seconds) in enumerate(zip(story.moments, SECONDS, strict=True)):
        first, end = 100 * start / whole, 100 * (start + seconds) / whole
        hidden, shown = "{visibility:hidden}", "{visibility:visible}"
        keys = f"0%{hidden}{first:.4g}%{shown}{end:.4g}%{hidden}"
        style.append(f"@keyframes k{i}{{{keys}}}.fr{i}{{animation-name:k{i}}}")
        drawn.append(f'<g class="fr fr{i}">{_frame(story, moment)}</g>')
        start += seconds
    last = f".fr{len(SECONDS) - 1}{{visibility:visible}}"
    style.append(f"{last}@media(prefers-reduced-motion:reduce){{.fr{{animation:none}}}}")
    about = " ".join(moment.sentence for moment in story.moments)
    fills = f"<style>{''.join(style)}</style>"
    title = f"Chat B is told {story.reply}, which only chat A said"
    return file_of(title, f'<desc id="d">{escape(about)}</desc>', "".join(drawn), TALL, fills)


def _frame(story: Told, moment: Moment) -> str:
    parts = []
    for line in lines(story, moment):
        weight = ' font-weight="700"' if line.tone else ""
        css = ' class="bad"' if line.tone == "bad" else ""
        at = f'x="{line.x}" y="{line.y}" style="font-size:{SIZE}px"'
        parts.append(f"<text{css} {at}{weight}>{escape(line.text)}</text>")
    for i, row in enumerate(moment.rows):
        place = f'y="{TOP + LINE * i}" width="100%" height="{LINE}"'
        parts.append(f'<svg class="r" {place}>{row_svg(row, DRAWN, "")}</svg>')
    return "".join(parts)


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
