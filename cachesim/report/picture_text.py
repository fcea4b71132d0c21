"""A picture of memory for a terminal: a row of characters for each place.

Short pictures may show a letter for each token. In others a character names the step that wrote the
content; with more tokens than columns, a column covers several.
"""

from collections.abc import Callable, Sequence
from typing import Final

from cachesim.report.picture import Picture
from cachesim.report.texts import Bar

WIDEST: Final = 64
"""Columns of a row."""

SYMBOLS: Final = {
    "shared": "=", "new": "+", "again": "~", "missing": " ", "gone": "/", "pending": ".",
}  # fmt: skip
"""Kinds shown before the origin; prefilled tokens show their origin in memory."""

MARKS: Final = {"saved": "●", "wrong": "✗", "lacks": "○", "": ""}
"""Sign of each mark at a node's end."""

ORDER: Final = "123456789abcdefghijklmnopqrstuvwxyz"


def text(picture: Picture, *, letter: Callable[[int], str] | None = None) -> str:
    """Headings, rows and marks, with the legend."""
    spells = letter is not None and picture.positions <= WIDEST
    lines = rows(picture, letter=letter)
    below = _signs(picture) if spells else legend(picture)
    return "\n".join([*lines, *(f"  {line}" for line in below)])


def rows(picture: Picture, *, letter: Callable[[int], str] | None = None) -> list[str]:
    """Rows without the legend."""
    heads = dict(picture.headings)
    lines: list[str] = []
    for i, block in enumerate(blocks(picture, letter=letter)):
        lines += [heads[i]] if i in heads else []
        lines += block
    return lines


def blocks(
    picture: Picture, *, letter: Callable[[int], str] | None = None
) -> list[tuple[str, ...]]:
    """Each row as its label, its characters, and its marks."""
    scale, writers = scale_of(picture), _writers_of(picture.steps)
    found = []
    for row in picture.rows:
        note = f" ({row.note})" if row.note else ""
        held = [" "] * min(picture.positions, WIDEST)
        marks = list(held)
        for bar in row.bars:
            if letter is not None and scale == 1:
                signs = SYMBOLS if row.kind == "request" else {}
                for at in range(bar.start, min(bar.end, len(held))):
                    known = at - bar.start < len(bar.tokens)
                    held[at] = letter(bar.tokens[at - bar.start]) if known else "?"
                    marks[at] = (
                        "^" if bar.kind in {"wrong", "missing"} else signs.get(bar.kind, marks[at])
                    )
            else:
                sign = (
                    ""
                    if bar.kind in {"again", "new"} and row.kind != "request"
                    else SYMBOLS.get(bar.kind)
                )
                _write(
                    held,
                    marks,
                    bar,
                    scale,
                    sign or ("?" if bar.step is None else writers[bar.step]),
                )
        label = f"{row.label}{note}"
        if row.branch is not None:
            label = f"{row.branch.stem}{label}"
            branch = row.branch
            for at in (length // scale for length in branch.passes):
                if at < len(held) and held[at] == " ":
                    held[at] = "│"
            if MARKS[branch.mark]:
                held.insert(
                    max(-(-branch.end // scale), branch.start // scale + 1), MARKS[branch.mark]
                )
        lines = [f"  {label}", f"    {''.join(held).rstrip()}"]
        if row.branch is not None and row.branch.root and not row.bars:
            lines.pop()
        lines += [f"    {''.join(marks).rstrip()}"] if set(marks) > {" "} else []
        found.append(tuple(lines))
    return found


def scale_of(picture: Picture) -> int:
    """Number of tokens per column."""
    return -(-picture.positions // WIDEST)


def legend(picture: Picture) -> list[str]:
    """Legend of the characters."""
    scale, writers = scale_of(picture), _writers_of(picture.steps)
    pairs = zip(writers, picture.steps, strict=True)
    named = [name if sign == name else f"{sign} {name}" for sign, name in pairs]
    few = ", ".join(named[: len(ORDER)])
    wide = f"a column is {scale} tokens" if scale > 1 else "a column is one token"
    reused, *nodes = _signs(picture)
    return [f"{reused};", f"{wide}; written by {few}", *nodes]


def _signs(picture: Picture) -> list[str]:
    """Legend of the signs without a step."""
    lines = ["= cached, + prefilled, ~ prefilled again, ^ wrong or missing"]
    if any(row.branch is not None for row in picture.rows):
        lines.append(
            "a node begins at its parent's end: ● to resume from, ○ nothing, ✗ wrong, / evicted"
        )
    return lines


def _writers_of(steps: Sequence[str]) -> list[str]:
    """A character for each step: the last of its name if these differ, else its number's."""
    last = [name[-1:] for name in steps]
    if len(set(last)) == len(last) and all(letter.isalnum() for letter in last):
        return last
    return [ORDER[i % len(ORDER)] for i in range(len(steps))]


def _write(held: list[str], marks: list[str], bar: Bar, scale: int, sign: str) -> None:
    first = bar.start // scale
    for at in range(first, min(max(-(-bar.end // scale), first + 1), len(held))):
        held[at] = sign
        marks[at] = "^" if bar.kind in {"wrong", "missing"} else marks[at]
