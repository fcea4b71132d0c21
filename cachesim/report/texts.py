"""Texts of a run: bars of tokens, and one colour for each text."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from cachesim.engines.tokens import get_common_prefix
from cachesim.model.recall import text_of
from cachesim.play.result import PromptPart, Run, Step
from cachesim.play.states import Piece, size_of

BarKind: TypeAlias = Literal[
    "held", "shared", "new", "again", "wrong", "missing", "gone", "pending"
]

MOST_IDS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Neighbouring positions `[start, end)` with tokens of one step, or of none."""

    start: int
    end: int
    step: int | None  # who wrote them
    kind: BarKind
    text: str
    tip: str
    tokens: tuple[int, ...] = ()
    words: tuple[str, ...] = ()  # of the tokens, where the model's tokens are words
    colours: tuple[tuple[int, int], ...] = ()  # lengths in a row, each of one text


class Texts:
    """The steps' names, parts, tokens and colours, for pieces that refer to them by number."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.steps = run.steps
        self.words = run.detail is not None and run.detail.words
        self._colours = _colours(run.steps)

    def tokens(self, piece: Piece) -> tuple[int, ...]:
        """The tokens of a piece; empty if unknown."""
        if "tokens" in piece:
            return tuple(piece["tokens"])
        step = piece.get("step")
        if step is None or self.steps[step].detail is None:
            return ()
        detail = self.steps[step].detail
        prompt = () if detail is None else detail.prompt
        text = (*prompt, *self.steps[step].generated)
        return tuple(text[piece["at"] : piece["at"] + piece["count"]])

    def spelled(self, pieces: Iterable[Piece]) -> tuple[int, ...]:
        """The tokens of consecutive pieces."""
        return tuple(token for piece in pieces for token in self.tokens(piece))

    def colours(self, piece: Piece) -> tuple[tuple[int, int], ...]:
        """The ranges of a piece, each with the number of its text."""
        step = piece.get("step")
        if step is None:
            return ()
        at, end = piece["at"], piece["at"] + piece["count"]
        found = [
            (min(last, end) - max(first, at), colour)
            for first, last, colour in self._colours[step]
            if first < end and at < last
        ]
        return tuple(found)

    def name(self, piece: Piece) -> str:
        """The origin of a piece: the step, and the parts of its prompt."""
        at = piece.get("step")
        if at is None:
            return "no step" if "tokens" in piece else "unknown"
        step = self.steps[at]
        if step.detail is None:
            return step.name
        first, end = piece["at"], piece["at"] + piece["count"]
        parts = [part.name for part in step.detail.parts if part.start < end and first < part.end]
        if end > len(step.detail.prompt):
            parts.append("reply")
        return f"{step.name}: {' '.join(dict.fromkeys(parts))}" if parts else step.name

    def bar(self, start: int, piece: Piece, kind: BarKind = "held", *, also: str = "") -> Bar:
        """A piece from a position on; `also` is added to its tooltip."""
        count, ids = size_of(piece), self.tokens(piece)
        name = self.name(piece)
        where = f"position {start}" if count == 1 else f"positions {start} to {start + count - 1}"
        more = f" and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
        words = tuple(text_of((token,)) for token in ids) if self.words else ()
        some = " ".join(words[:MOST_IDS] or map(str, ids[:MOST_IDS]))
        tokens = f"; tokens {some}{more}" if ids else ""
        return Bar(
            start=start,
            end=start + count,
            step=piece.get("step"),
            kind=kind,
            text=name,
            tip=f"{where}, {name}{also}{tokens}",
            tokens=ids,
            words=words,
            colours=self.colours(piece),
        )

    def bars(self, pieces: Iterable[Piece]) -> Iterator[Bar]:
        """Consecutive pieces, from position 0 on."""
        start = 0
        for piece in pieces:
            yield self.bar(start, piece)
            start += size_of(piece)


_recent: list[Texts] = []
"""The texts of the run drawn last, as states are drawn one by one."""


def texts_of(run: Run) -> Texts:
    """The texts of a run."""
    if not _recent or _recent[0].run is not run:
        _recent[:] = [Texts(run)]
    return _recent[0]


MOST_COMPARED: Final = 40
"""Most earlier prompts that a prompt is compared with."""


def _colours(steps: Sequence[Step]) -> list[list[tuple[int, int, int]]]:
    """Ranges `(first, end, colour)` of the prompt and reply of each step.

    One text has one colour in every request: a beginning that an earlier request had too, an equal
    part, and a slice of one (`S[:10]`). A reply continues the text before it.
    """
    found: list[list[tuple[int, int, int]]] = []
    spelled: dict[int, list[tuple[int, tuple[int, ...]]]] = {}  # by first token
    known: dict[tuple[int, ...], int] = {}  # parts as they are, and the first of each name
    named: dict[str, tuple[int, ...]] = {}
    for number, step in enumerate(steps):
        prompt = () if step.detail is None else tuple(step.detail.prompt)
        text = (*prompt, *step.generated)
        alike = spelled.setdefault(text[0] if text else -1, [])
        same, whose = max(
            ((get_common_prefix(text, other), -at) for at, other in alike[-MOST_COMPARED:]),
            default=(0, 0),
        )
        alike.append((number, text))
        mine = [(a, min(b, same), c) for a, b, c in (found[-whose] if same else ()) if a < same]
        parts = [] if step.detail is None else step.detail.parts
        for part in parts or [PromptPart(name="", start=0, end=len(prompt))]:
            start, tokens = max(part.start, same), prompt[part.start : part.end]
            name = part.name.partition("[")[0]
            first = named.setdefault(name, tokens)
            alike_named = first[: len(tokens)] == tokens[: len(first)]
            if start < part.end:
                key = tokens if tokens in known or not alike_named else first
                rest = prompt[start : part.end] if start > part.start else key
                mine.append((start, part.end, known.setdefault(rest, len(known))))
        end = max(len(prompt), same)
        if end < len(text):
            mine.append(
                (end, len(text), mine[-1][2] if mine else known.setdefault(text, len(known)))
            )
        found.append(mine)
    return found
