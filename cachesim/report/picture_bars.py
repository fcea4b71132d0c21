"""What a picture of memory is made of: bars, rows, and texts that say whose tokens they are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from cachesim.scenario.provenance import Piece, size_of
from cachesim.scenario.result import Run

Look: TypeAlias = Literal["held", "shared", "again", "wrong", "missing", "gone"]
Kind: TypeAlias = Literal[
    "request", "slot", "attention", "window", "recurrent", "checkpoint", "parked", "tree"
]

MOST_IDS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Neighbouring positions `[start, end)` that one step's tokens fill, or none."""

    start: int
    end: int
    step: int | None  # who wrote them
    look: Look
    text: str
    tip: str
    tokens: tuple[int, ...] = ()


Mark: TypeAlias = Literal["saved", "wrong", "lacks", ""]
"""What stands at a node's end: something to resume from, something false, nothing, no place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """How a row of a tree hangs on those around it; lines go down where a parent ends."""

    start: int  # where its parent ends
    end: int
    lines: tuple[bool, ...] = ()  # for each node above it: whether another child of it follows
    passes: tuple[int, ...] = ()  # where lines to later rows run through this one
    root: bool = False
    leads_on: bool = False  # children follow
    last: bool = True  # no sibling follows
    mark: Mark = ""
    window: bool | None = None

    @property
    def stem(self) -> str:
        """In text: lines to later rows, and the corner that joins a node to its parent."""
        lines = "".join("│  " if more else "   " for more in self.lines)
        return lines if self.root else f"{lines}{'└─ ' if self.last else '├─ '}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the picture."""

    kind: Kind
    label: str
    bars: tuple[Bar, ...]
    note: str = ""  # what happened to it in this step
    bracket: tuple[int, int] | None = None  # what a window sees
    branch: Branch | None = None  # its place in a tree


class Texts:
    """The steps' names, parts and tokens, for pieces that name them by number."""

    def __init__(self, run: Run) -> None:
        self.steps = run.steps

    def tokens(self, piece: Piece) -> tuple[int, ...]:
        """The tokens of a piece; none where they are not known."""
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
        """The tokens of pieces in a row."""
        return tuple(token for piece in pieces for token in self.tokens(piece))

    def step(self, piece: Piece) -> int | None:
        """Who wrote it."""
        return piece.get("step")

    def name(self, piece: Piece) -> str:
        """Whose tokens: the step, and the parts of its prompt that they lie in."""
        at = piece.get("step")
        if at is None:
            return "no step" if "tokens" in piece else "unknown"
        step = self.steps[at]
        if step.detail is None:
            return step.name
        first, end = piece["at"], piece["at"] + piece["count"]
        parts = [each.name for each in step.detail.parts if each.start < end and first < each.end]
        if end > len(step.detail.prompt):
            parts.append("reply")
        return f"{step.name}: {' '.join(dict.fromkeys(parts))}" if parts else step.name

    def bar(self, start: int, piece: Piece, look: Look = "held", *, also: str = "") -> Bar:
        """A piece from a position on; `also` is said of it when it is pointed at."""
        count, ids = size_of(piece), self.tokens(piece)
        name = self.name(piece)
        where = f"position {start}" if count == 1 else f"positions {start} to {start + count - 1}"
        more = f" and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
        told = f"; tokens {' '.join(map(str, ids[:MOST_IDS]))}{more}" if ids else ""
        return Bar(
            start=start,
            end=start + count,
            step=self.step(piece),
            look=look,
            text=name,
            tip=f"{where}, {name}{also}{told}",
            tokens=ids,
        )

    def bars(self, pieces: Iterable[Piece], look: Look = "held") -> Iterator[Bar]:
        """Pieces in a row, from position 0 on."""
        start = 0
        for piece in pieces:
            yield self.bar(start, piece, look)
            start += size_of(piece)
