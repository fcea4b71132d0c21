"""Parts of a text between marks: notes that a client puts into messages, and reasoning."""

import re
from collections.abc import Callable, Sequence
from typing import Final

NOTE: Final = re.compile(
    r"<((?:[a-z]{1,30}[_-]){0,4}(?:reminder|environment|context|memor(?:y|ies)|date|datetime|time|info"
    r"|state|status|workspace|editor|files?|tabs?|notes?|hints?|selection|cursor|todos?|mode|details)"
    r"(?:[_-][a-z]{1,30}){0,4})\b[^<>\n]{0,200}>",
    re.IGNORECASE,
)

CLOSES: Final = {
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel|>analysis<|message|>": "<|end|>",
    "<|channel>thought": "<channel|>",
    "<unused94>": "<unused95>",
}
"""Marks of reasoning that are no tags."""

THINKING: Final = re.compile(
    r"<(think|thinking|thought|reason|reasoning|reflection|scratchpad|analysis|seed:think|antthinking)>|"
    + "|".join(map(re.escape, CLOSES))
)
OPENED: Final = "</think>"
"""The mark behind reasoning that a template opens."""

MARKS: Final = re.compile(
    r"<\|start\|>assistant|<\|channel\|>(?:final|commentary)[^<]{0,80}<\|message\|>"
    r"|<\|(?:end|return|call)\|>|<\|(?:begin|end)_of_solution\|>|<\|(?:START|END)_RESPONSE\|>"
)
"""Marks of an answer beside its reasoning."""

MOST_UNCLOSED: Final = 32
"""Names of tags without an end that are looked for in one text."""

Spans = list[tuple[int, int]]


def notes_in(text: str) -> Spans:
    """Where tagged notes stand, with the blanks around them."""
    return [_with_blanks(text, *span) for span in _between(text, NOTE, lambda n: f"</{n}>")]


def _with_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    while start > 0 and text[start - 1].isspace():
        start -= 1
    while end < len(text) and text[end].isspace():
        end += 1
    return start, end


def reasoning_in(text: str) -> int:
    """Characters of the reasoning in a text, one more for the marks of each."""
    inside = (re.sub(r"<[^<>]*>|\s", "", text[start:end]) for start, end in _reasoning(text))
    return sum(len(text) + 1 for text in inside)


def without_reasoning(text: str) -> str:
    """A text without its reasoning, marks and blanks."""
    return "".join(MARKS.sub("", without(text, _reasoning(text))).split())


def _reasoning(text: str) -> Spans:
    end = text.find(OPENED)
    if end >= 0 and "<think>" not in text[:end]:
        return [(0, end + len(OPENED))]
    return _between(text, THINKING, lambda name: CLOSES.get(name, f"</{name[1:-1]}>"))


def without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """A text without some of its parts."""
    ends = [0, *(end for _, end in spans)]
    starts = [*(start for start, _ in spans), len(text)]
    return "".join(text[end:start] for end, start in zip(ends, starts, strict=True))


def _between(text: str, opening: re.Pattern[str], closing: Callable[[str], str]) -> Spans:
    spans: Spans = []
    last, unclosed = 0, set[str]()
    for mark in opening.finditer(text):
        close = closing(mark[0] if opening is THINKING else mark[1])
        if mark.start() < last or close in unclosed:
            continue
        end = text.find(close, mark.end())
        if end < 0:
            unclosed.add(close)
            if len(unclosed) > MOST_UNCLOSED:
                break
            continue
        last = end + len(close)
        spans.append((mark.start(), last))
    return spans
