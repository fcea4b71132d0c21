"""Pictures of a lesson's own runs, and controls that play one again with another number.

```python picture      sets `picture = drawn(replies)`: shown, its code is not
```python control      sets `control = swept("letters of the first prompt", range(1, 9), play)`
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachesim.lessons.kit import Answered, letters
from cachesim.report.picture import Picture, story
from cachesim.report.picture_rows import Bar, Kind
from cachesim.report.svg import inline

WIDEST: Final = 64
"""Positions of a picture in the terminal."""

KINDS: Final[tuple[Kind, ...]] = ("request", "attention", "window", "recurrent", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One picture of memory: what it shows, step by step."""

    picture: Picture

    def svg(self, uid: str) -> str:
        """For a page that has the pictures' style."""
        return inline(self.picture, uid, letter=_letter)

    def text(self) -> str:
        """For a terminal: a letter for each token, and a mark under what is wrong.

        Where there are more tokens than columns, a column stands for many, and names its writer.
        """
        lines: list[str] = []
        heads = dict(self.picture.headings)
        scale = -(-self.picture.positions // WIDEST)
        for i, row in enumerate(self.picture.rows):
            lines += [heads[i]] if i in heads else []
            note = f" ({row.note})" if row.note else ""
            lines.append(f"  {row.label}{note}")
            held = [" "] * min(self.picture.positions, WIDEST)
            marks = list(held)
            for bar in row.bars:
                if scale > 1:
                    _write_scaled(held, marks, bar, scale, self.picture.steps)
                else:
                    _write(held, marks, bar)
            lines.append(f"    {''.join(held).rstrip()}")
            lines += [f"    {''.join(marks).rstrip()}"] if "^" in marks else []
        if scale > 1:
            lines += [f"  one column is {scale} tokens; = reused, ~ processed again;"]
            lines += ["  a digit is the request that wrote them"]
        return "\n".join(lines)


def _write_scaled(
    held: list[str], marks: list[str], bar: Bar, scale: int, steps: Sequence[str]
) -> None:
    """A bar in columns of many tokens each; even the shortest has one."""
    looks = {"shared": "=", "again": "~"}
    mark = looks.get(bar.look) or ("?" if bar.step is None else steps[bar.step][-1])
    first = bar.start // scale
    for at in range(first, min(max(-(-bar.end // scale), first + 1), len(held))):
        held[at] = mark
        marks[at] = "^" if bar.look in {"wrong", "missing"} else marks[at]


def _write(held: list[str], marks: list[str], bar: Bar) -> None:
    for at in range(bar.start, min(bar.end, len(held))):
        known = at - bar.start < len(bar.tokens)
        held[at] = _letter(bar.tokens[at - bar.start]) if known else "?"
        marks[at] = "^" if bar.look in {"wrong", "missing"} else marks[at]


def _letter(token: int) -> str:
    """A blank is seen as a low line, as in the lessons' own tables."""
    return letters([token]).replace(" ", "_")


def drawn(replies: Sequence[Answered], *also: Kind) -> Drawn:
    """What the server held after each of these requests."""
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
