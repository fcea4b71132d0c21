"""Pictures of a lesson's own runs, and controls that play one again with another number.

```python picture      sets `picture = drawn(replies)`: shown, its code is not
```python control      sets `control = swept("letters of the first prompt", range(1, 9), play)`
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachesim.lab.lessons.kit import Answered, letters
from cachesim.report import picture_text
from cachesim.report.picture import Kind, Picture, story
from cachesim.report.svg import inline

KINDS: Final[tuple[Kind, ...]] = (
    "request",
    "attention",
    "window",
    "recurrent",
    "checkpoint",
    "tree",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A picture of memory: what it shows, step by step."""

    picture: Picture

    def svg(self, uid: str) -> str:
        """For a page that has the pictures' style."""
        return inline(self.picture, uid, letter=_letter)

    def text(self) -> str:
        """For a terminal: a letter for each token, and a mark under what is wrong."""
        return picture_text.text(self.picture, letter=_letter)


def _letter(token: int) -> str:
    """A blank is seen as a low line, as in the lessons' own tables."""
    return letters([token]).replace(" ", "_")


def drawn(replies: Sequence[Answered], *also: Kind) -> Drawn:
    """Picture of the server's memory after each of these requests."""
    run = replies[0].watched()
    present = {row.kind for row in story(run).rows}
    best = "recurrent" if "recurrent" in present else "window" if "window" in present else None
    kinds = [k for k in KINDS if k in present and (best is None or k != "attention")]
    return Drawn(picture=story(run, kinds=(*kinds, *also)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A number to change, and what comes of each of its values."""

    label: str
    shown: tuple[tuple[str, str, Drawn], ...]  # the value, what it came to, the picture


def swept(
    label: str, values: Iterable[Any], play: Callable[[Any], Sequence[Answered]], *also: Kind
) -> Control:
    """Play a run once for each value."""
    found = []
    for value in values:
        replies = play(value)
        last = replies[-1]
        told = f"last request: {last.cached} of {last.tokens} cached, answer {last.answer}"
        found.append((str(value), told, drawn(replies, *also)))
    return Control(label=label, shown=tuple(found))
