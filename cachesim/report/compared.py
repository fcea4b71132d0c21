"""A workload on several engines: reuse by request, and losses."""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from itertools import count
from textwrap import wrap
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cachesim.play.comparing import Compared
from cachesim.report.document import Bar, FittingTable, PageOnly, Picture
from cachesim.report.svg import LABEL, LINE, file_of, patterns

WIDE: Final = 9
"""Number of requests up to which each has a column."""

BAR: Final = 14
"""Characters of a full bar."""

LOSSES: Final = 2
"""Most causes named in a row."""


def comparison(title: str, rows: Sequence[Compared]) -> list[RenderableType]:
    """Reused tokens, wrong answers, bytes held, tokens lost by cause; a plot on pages."""
    steps = max((len(row.cached) for row in rows), default=0)
    labels = [Text(f"wrong answers of {row.name}: {row.evidence}") for row in rows if row.evidence]
    labels += [Text(fromkey) for fromkey in dict.fromkeys(row.rules for row in rows) if fromkey]
    reused = _reused(title, rows, steps if steps <= WIDE else 0)
    table = _table()
    most = max((row.reused or 0 for row in rows), default=0)
    table.add_column("against the bound", no_wrap=True)
    table.add_column("wrong", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("lost to", overflow="fold")
    for row in rows:
        wrong = "" if row.wrong is None or row.problem else str(row.wrong)
        design = f", {row.by_design} by design" if row.by_design else ""
        size = "" if row.bytes is None else f"{row.bytes:,}"
        text = row.problem or _lost_to(row)
        bar = Text() if row.problem else _bar(row, most)
        cells = (
            bar,
            Text(wrong, style="wrong" if row.wrong else "").append(design, "lost"),
            Text(size),
        )
        table.add_row(Text(row.name), *cells, Text(text, style="quiet" if row.problem else "lost"))
    return [reused, table, *labels, PageOnly((Picture("", plot(title, rows)),))]


def _table(title: str = "") -> Table:
    table = FittingTable(title=title or None, title_style="", pad_edge=True)
    table.add_column("policy", overflow="fold", ratio=None)
    return table


def _reused(title: str, rows: Sequence[Compared], steps: int) -> Table:
    """Reused tokens of each request and in total, with a bar up to the bound."""
    table = _table(f"{title}: tokens reused of each request")
    most = max((row.reused or 0 for row in rows), default=0)
    for number in range(1, steps + 1):
        table.add_column(str(number), justify="right", no_wrap=True)
    table.add_column("sum", justify="right", no_wrap=True)
    if not steps:
        table.add_column("share", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
    for row in rows:
        if row.problem:
            continue
        counts = (
            [Text("-" if count is None else str(count)) for count in row.cached] if steps else []
        )
        reused = row.reused or 0
        cells = [Text(row.name), *counts, Text(f"{reused:,}", style="bold")]
        if not steps:
            cells += [Text(f"{reused / (row.prompt_tokens or 1):.1%}"), _bar(row, most)]
        table.add_row(*cells)
    return table


def _bar(row: Compared, most: int) -> Bar:
    return Bar((row.reused or 0) / most if most else 0.0, BAR)


def _lost_to(row: Compared) -> str:
    causes = sorted(row.lost.items(), key=lambda loss: -loss[1])
    named = [f"{cause} {count:,}" for cause, count in causes]
    more = len(named) - LOSSES
    return ", ".join(named[:LOSSES]) + (f" and {more} more" if more > 0 else "")


REUSED: Final = 1
"""The colour of reused tokens, plain; causes take the others in turn, hatched."""

PLOT_HIGH: Final = 14
PLOT_LETTERS: Final = 120
"""Letters of a line in the picture."""


def plot(title: str, rows: Sequence[Compared]) -> str:
    """The picture as a file."""
    colours = colours_of(rows)
    legend = [("reused", REUSED), *colours.items()]
    widest = max((row.prompt_tokens for row in rows), default=0) or 1
    high = LINE * (len(rows) + 1) + LABEL * (len(legend) + 2)
    drawn = [
        f'<svg y="{LINE * (at + 1)}" width="100%" height="{LINE}" overflow="visible">'
        f"{''.join(_row(row, colours, widest))}</svg>"
        for at, row in enumerate(rows)
    ]
    drawn += _legend(legend, LINE * (len(rows) + 1) + LABEL)
    fills = patterns("", max([REUSED, *colours.values()]) + 1, plain=REUSED)
    head = f'<text class="h" x="0" y="14">{escape(title)}: tokens reused, and lost to what</text>'
    return file_of(title, "", "".join([head, *drawn]), high, fills)


def colours_of(rows: Sequence[Compared]) -> dict[str, int]:
    """A fill for each cause, the largest first; the same in every row."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row.lost)
    free = (colour for colour in count() if colour % 8 != REUSED)
    return {cause: fill for (cause, _), fill in zip(total.most_common(), free, strict=False)}


def _row(row: Compared, colours: dict[str, int], widest: int) -> Iterator[str]:
    """Table row of a server: name, sum, reused tokens, causes, new tokens."""
    refused = "no request answered" if row.cached else "not run"
    text = refused if row.problem else f"{row.reused or 0:,} of {row.prompt_tokens:,}"
    yield f'<text class="l" x="0" y="10">{escape(row.name)}'
    yield f'<tspan class="note" dx="8">{escape(text)}</tspan></text>'
    for at, line in enumerate(wrap(row.problem or "", PLOT_LETTERS)):
        yield f'<text class="l" x="0" y="{LABEL + 8 + 11 * at}">{escape(line)}</text>'
    middle = LABEL + PLOT_HIGH // 2
    rail = f"{100 * row.prompt_tokens / widest:.4g}%"
    yield f'<line class="g" x1="0" x2="{rail}" y1="{middle}" y2="{middle}"/>'
    start = 0
    for name, tokens, colour in (
        ("reused", row.reused or 0, REUSED),
        *((cause, row.lost.get(cause, 0), colour) for cause, colour in colours.items()),
    ):
        if not tokens:
            continue
        yield (
            f"<g><title>{escape(name)}: {tokens:,} tokens</title>"
            f'<rect class="b" x="{100 * start / widest:.4g}%" y="{LABEL}"'
            f' width="{100 * tokens / widest:.4g}%" height="{PLOT_HIGH}"'
            f' fill="url(#p{colour})"/></g>'
        )
        start += tokens


def _legend(entries: Sequence[tuple[str, int]], top: int) -> Iterator[str]:
    for at, (name, colour) in enumerate(entries):
        y = top + LABEL * at
        yield f'<rect class="b" x="0" y="{y}" width="12" height="10" fill="url(#p{colour})"/>'
        yield f'<text x="18" y="{y + 9}">{escape(name)}</text>'
    y = top + LABEL * len(entries)
    yield f'<line class="g" x1="0" x2="12" y1="{y + 5}" y2="{y + 5}"/>'
    yield f'<text x="18" y="{y + 9}">new: no cache could have reused it</text>'
