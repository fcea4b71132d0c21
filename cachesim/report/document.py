"""Parts of a report: Rich's text and tables, and these.

A command composes one list of parts. `consoles.show` prints it, `html_document.page` writes it as
a page. Tables keep their numbers whole on a narrow terminal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

UNBOUND: Final = 10_000
"""Columns of an unlimited terminal."""

FOLDED: Final = 12
"""Columns for long names, which are folded."""

SENTENCES: Final = 24
"""Least width of a column of sentences."""


class Heading(Text):
    """The title of a report, or of a part of it."""

    def __init__(self, text: str, *, level: int = 1) -> None:
        super().__init__(text, style="name" if level < 3 else "")
        self.level = level


class Bar(Text):
    """A share from 0 to 1, drawn over `wide` columns."""

    def __init__(self, share: float, wide: int) -> None:
        super().__init__("█" * round(wide * share))
        self.share = share


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing as text and as markup of a page."""

    text: RenderableType
    markup: str = ""

    def __rich__(self) -> RenderableType:
        return self.text


@dataclass(frozen=True, slots=True)
class PageOnly:
    """Parts for pages only."""

    parts: tuple[RenderableType, ...]

    def __rich__(self) -> RenderableType:
        return Group()


class FittingTable(Table):
    """A table, or a list of its rows if the terminal is too narrow.

    `below`: the sentences of a row stand in a line below its numbers.
    """

    def __init__(self, *, below: bool = False, **settings: Any) -> None:
        frame: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
        super().__init__(**frame | settings)
        self._below = below

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._below and (lines := list(self._rows_of_lines(options.max_width))):
            yield from lines
            return
        if self._narrowest(console, options) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text(str(self.title))
        names = self.columns[0]
        is_named = names.justify == "left"
        if is_named and names.header:
            yield Text(str(names.header), "quiet")
        for row in zip(*(column.cells for column in self.columns), strict=True):
            first, *rest = map(as_text, row)
            yield first if is_named else _labelled(names, first)
            numbers: list[Text] = []
            sentences: list[Text] = []
            for column, cell in zip(self.columns[1:], rest, strict=True):
                if cell.plain.strip():
                    kind = sentences if column.overflow == "fold" else numbers
                    kind.append(_labelled(column, cell))
            for line in [*([Text(", ").join(numbers)] if numbers else []), *sentences]:
                yield Padding(line, (0, 0, 0, 2))

    def _rows_of_lines(self, wide: int) -> Iterator[RenderableType]:
        """Each row's numbers in a line, its sentences in one below; nothing if that is too wide."""
        columns = [column for column in self.columns if column.overflow != "fold"]
        sentences = [column for column in self.columns if column.overflow == "fold"]
        cells = [[as_text(cell) for cell in (column.header, *column.cells)] for column in columns]
        widths = [max(map(len, column)) for column in cells]
        room = (wide - sum(widths)) // max(1, len(widths) - 1)
        if room < 1:
            return
        gap = " " * min(room, 2)
        for number, row in enumerate(zip(*cells, strict=True), -1):
            line = Text(gap).join(
                _aligned(cell, column, width)
                for cell, column, width in zip(row, columns, widths, strict=True)
            )
            line.rstrip()
            if number < 0:
                line.stylize("name")
            yield line
            below = [as_text(list(column.cells)[number]) for column in sentences if number >= 0]
            if words := Text("; ").join(text for text in below if text.plain):
                yield Padding(
                    Text.assemble((words.plain, "quiet")), (0, 0, 0, widths[0] + len(gap))
                )

    def _narrowest(self, console: Console, options: ConsoleOptions) -> int:
        wide = options.update_width(UNBOUND)
        _, right, _, left = self.padding
        between = right + left + (1 if self.box else 0)
        return sum(_narrowest(column, console, wide) for column in self.columns) + between * (
            len(self.columns) - 1
        )


def facts(*, gap: int = 1, narrowest: int | None = None) -> Table:
    """A table of words, each with its sentence."""
    word = Column(style="quiet", min_width=narrowest, no_wrap=True)
    return Table.grid(word, Column(overflow="fold"), padding=(0, gap, 0, 0), pad_edge=False)


def _aligned(cell: Text, column: Column, width: int) -> Text:
    padded = cell.copy()
    padded.align("right" if column.justify == "right" else "left", width)
    return padded


def _narrowest(column: Column, console: Console, wide: ConsoleOptions) -> int:
    if column.width is not None:
        return column.width
    measured = [Measurement.get(console, wide, cell) for cell in (column.header, *column.cells)]
    if column.no_wrap:
        return max(measure.maximum for measure in measured)
    widest = max(measure.minimum for measure in measured)
    widest = min(FOLDED, widest) if column.overflow == "fold" else widest
    return max(column.min_width or 0, widest)


def _labelled(column: Column, cell: Text) -> Text:
    head = " ".join(as_text(column.header).plain.split())
    return Text.assemble((f"{head}: " if head else "", "quiet"), cell)


def as_text(cell: object) -> Text:
    """A cell, a heading or a string as text, without markup."""
    return cell if isinstance(cell, Text) else Text(str(cell))
