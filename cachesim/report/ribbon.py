"""Token ribbons: a conversation as a line of letters.

R  reused: computed for an earlier request and taken from cache
F  reused, but foreign: memory holds something else than this token, or nothing
r  matches what was held, but reprocessed
C  computed: new
X  cut: held before, not part of this prompt
.  held, untouched by this step
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from rich.text import Text

from cachesim.play.result import Step

LETTERS: Final = {
    "R": "reused",
    "F": "wrong",
    "r": "again",
    "C": "computed",
    "X": "cut",
    ".": "quiet",
}
LEGEND: Final = (
    "R reused  F reused, but foreign  r matched, but reprocessed  C computed"
    "\nX cut away  . untouched  xN: each letter stands for N tokens"
    "\nastray: computed from wrong cache contents"
)
WIDEST: Final = 58

Parts: TypeAlias = Sequence[tuple[str, int]]


def prompt_parts(step: Step) -> list[tuple[str, int]]:
    """The letters of a prompt: reused, foreign, reprocessed, new."""
    cached = step.cached or 0
    equal = max(step.explanation.equal if step.explanation else 0, cached)
    new = step.prompt_tokens - equal
    return [*reused_parts(step, cached), ("r", equal - cached), ("C", new)]


def reused_parts(step: Step, count: int) -> list[tuple[str, int]]:
    """Reused tokens, the foreign ones among them marked.

    A recurrent state is foreign from the token on at which it parts from the prompt; a cell is so
    on its own.
    """
    fault = step.explanation.fault if step.explanation else None
    if fault is None or fault.position >= count:
        return [("R", count)]
    if fault.place == "recurrent":
        return [("R", fault.position), ("F", count - fault.position)]
    return [("R", fault.position), ("F", 1), ("R", count - fault.position - 1)]


def scale_of(*ribbons: Parts, widest: int = WIDEST) -> int:
    """Number of tokens per letter at which the longest of several ribbons fits."""
    total = max((sum(size for _, size in parts) for parts in ribbons), default=0)
    return max(1, -(-total // widest))


def letters(parts: Parts, scale: int) -> list[tuple[str, str]]:
    """Each part as its letters, at least one, with their style.

    A part ends where its last token lies, so that ribbons below each other keep one scale.
    """
    found, start, tokens = [], 0, 0
    for letter, size in parts:
        if size <= 0:
            continue
        tokens += size
        end = max(start + 1, round(tokens / scale))
        found.append((letter * (end - start), LETTERS[letter]))
        start = end
    return found


def ribbon(parts: Parts, scale: int) -> Text:
    """Parts as letters, and the scale where it is not one to one."""
    text = Text()
    for word, style in letters(parts, scale):
        text.append(word, style=style)
    if scale > 1:
        text.append(f" x{scale}", style="quiet")
    return text
