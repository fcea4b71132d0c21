"""Token ribbons: a conversation as one line of letters.

R  reused: computed for an earlier request and taken from cache
r  read again: equal to what was held, yet not usable
C  computed: new
X  cut: held before, not part of this prompt
.  held, untouched by this step
"""

from typing import Final

from rich.text import Text

LETTERS: Final = {"R": "reused", "r": "again", "C": "computed", "X": "cut", ".": "quiet"}
LEGEND: Final = (
    "R reused  r equal but read again  C computed  X cut away  . untouched"
    "\nx7: a letter is 7 tokens; astray: computed on wrong memory"
)
WIDEST: Final = 58


def ribbon(parts: list[tuple[str, int]], *, widest: int = WIDEST) -> Text:
    """Runs of tokens as letters; long ones are drawn to scale, never shorter than one letter."""
    parts = [(letter, size) for letter, size in parts if size > 0]
    total = sum(size for _, size in parts)
    scale = 1 if total <= widest else -(-total // widest)
    text = Text()
    for letter, size in parts:
        text.append(letter * max(1, round(size / scale)), style=LETTERS[letter])
    if scale > 1:
        text.append(f" x{scale}", style="quiet")
    return text
