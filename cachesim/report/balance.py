"""Changes as bars on both sides of a line: what grew to the left, what shrank to the right.

llama.cpp, hybrid: b9538 to b11549
[ state-missing |   memory-depth      ]
^ the line
"""

from collections.abc import Mapping
from html import escape
from typing import Final

from cachesim.report.charts import BAR_AT, BAR_HIGH, ROW, TOP, WIDTH, legend, patterns, svg_of

EDGE: Final = 90
"""Room for a number on each side."""


def balance_bars(bars: Mapping[str, Mapping[str, int]], *, title: str) -> str:
    """A row for each name: parts above zero to the left, parts below zero to the right."""
    names = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    sides = [_sides(bar) for bar in bars.values()]
    more, less = (max((side[at] for side in sides), default=0) for at in (0, 1))
    unit = (WIDTH - 2 * EDGE) / ((more + less) or 1)
    line = EDGE + more * unit
    height = TOP + ROW * len(bars)
    parts = [f"<title>{escape(title)}</title>", *patterns(len(names))]
    for index, ((name, bar), (grown, shrunk)) in enumerate(zip(bars.items(), sides, strict=True)):
        up = TOP + index * ROW
        parts.append(f'<text x="0" y="{up + 18}">{escape(name)}</text>')
        left, right = line, line
        for part, value in bar.items():
            wide = abs(value) * unit
            left -= wide if value > 0 else 0
            at = left if value > 0 else right
            right += wide if value < 0 else 0
            told = f"<title>{escape(part)}: {value:+,}</title>"
            parts.append(
                f'<rect x="{at:.1f}" y="{up + BAR_AT}" width="{wide:.1f}" height="{BAR_HIGH}" '
                f'fill="url(#p{names.index(part)})">{told}</rect>'
            )
        text = up + BAR_AT + 11
        if grown:
            parts.append(f'<text x="{left - 6:.1f}" y="{text}" text-anchor="end">{grown:,}</text>')
        if shrunk:
            parts.append(f'<text x="{right + 6:.1f}" y="{text}">{shrunk:,}</text>')
    parts.append(
        f'<line class="axis" x1="{line:.1f}" x2="{line:.1f}" y1="{TOP + BAR_AT - 4}" '
        f'y2="{height}"/>'
    )
    return svg_of(parts, height) + legend(names, filled=True)


def _sides(bar: Mapping[str, int]) -> tuple[int, int]:
    return (
        sum(value for value in bar.values() if value > 0),
        -sum(value for value in bar.values() if value < 0),
    )
