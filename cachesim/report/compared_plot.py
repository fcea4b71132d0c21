"""A comparison as a picture: of each row's prompts, what was reused and what went to which cause.

    policy                                    reused / asked
    [ reused ######## | cause ... | cause .. |   new          ]

Drawn in the style of the other pictures: nothing is fetched. All rows have one scale: the longest
rail is as wide as the picture, and a row that refused a request has a shorter one.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from itertools import count
from typing import Final

from cachesim.report.svg import STYLE, patterns
from cachesim.report.svg_tree import LABEL, LINE
from cachesim.scenario.comparing import Compared

REUSED: Final = 2
"""The colour of what was reused; the causes take the others in turn."""

EDGE: Final = 14
HIGH: Final = 14
WIDE: Final = 760


def plot(title: str, rows: Sequence[Compared]) -> str:
    """The picture as a file."""
    colours = colours_of(rows)
    legend = [("reused", REUSED), *colours.items()]
    widest = max((row.asked for row in rows), default=0) or 1
    high = LINE * (len(rows) + 1) + LABEL * (len(legend) + 2)
    drawn = [
        f'<svg y="{LINE * (at + 1)}" width="100%" height="{LINE}" overflow="visible">'
        f"{''.join(_row(row, colours, widest))}</svg>"
        for at, row in enumerate(rows)
    ]
    drawn += _legend(legend, LINE * (len(rows) + 1) + LABEL)
    fills = patterns("", max([REUSED, *colours.values()]) + 1)
    whole, inner = WIDE, WIDE - 2 * EDGE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cs-pic" role="img" aria-labelledby="t"'
        f' width="{whole}" height="{high + 2 * EDGE}" viewBox="0 0 {whole} {high + 2 * EDGE}">'
        f'<title id="t">{escape(title)}</title><style>{STYLE}</style>{fills}'
        f'<rect width="100%" height="100%" rx="8" fill="var(--ground)"/>'
        f'<svg x="{EDGE}" y="{EDGE}" width="{inner}" height="{high}" overflow="visible">'
        f'<text class="h" x="0" y="14">{escape(title)}: tokens reused, and lost to what</text>'
        f"{''.join(drawn)}</svg></svg>\n"
    )


def colours_of(rows: Sequence[Compared]) -> dict[str, int]:
    """A fill of its own for each cause, the largest first; the same in every row."""
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row.lost)
    free = (each for each in count() if each != REUSED)
    return {cause: fill for (cause, _), fill in zip(total.most_common(), free, strict=False)}


def _row(row: Compared, colours: dict[str, int], widest: int) -> Iterator[str]:
    told = row.problem or f"{row.reused:,} of {row.asked:,}"
    yield f'<text class="l" x="0" y="10">{escape(row.name)}'
    yield f'<tspan class="note" dx="8">{escape(told)}</tspan></text>'
    middle = LABEL + HIGH // 2
    rail = f"{100 * row.asked / widest:.4g}%"
    yield f'<line class="g" x1="0" x2="{rail}" y1="{middle}" y2="{middle}"/>'
    start = 0
    for name, tokens, colour in (
        ("reused", row.reused, REUSED),
        *((cause, row.lost.get(cause, 0), colour) for cause, colour in colours.items()),
    ):
        if not tokens:
            continue
        yield (
            f"<g><title>{escape(name)}: {tokens:,} tokens</title>"
            f'<rect class="b" x="{100 * start / widest:.4g}%" y="{LABEL}"'
            f' width="{100 * tokens / widest:.4g}%" height="{HIGH}" fill="url(#p{colour})"/></g>'
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
