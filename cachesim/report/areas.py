"""What adds up over a number as stacked areas, small enough to stand beside others."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from cachesim.report.charts import patterns, svg_of

WIDTH: Final = 320
HEIGHT: Final = 150
TOP: Final = 20
BOTTOM: Final = 20


def stacked_areas(
    at: Sequence[int],
    columns: Mapping[str, Sequence[int]],
    *,
    kinds: Sequence[str],
    most: str,
    title: str,
) -> str:
    """Each column upon the one before; `kinds` say the pattern of each, `most` is the top."""
    sums = [sum(each) for each in zip(*columns.values(), strict=True)]
    top, first, last = max(sums) or 1, at[0], at[-1]
    across = [WIDTH * (each - first) / ((last - first) or 1) for each in at]
    floor = [0.0] * len(at)
    parts = [f"<title>{escape(title)}</title>", *patterns(len(kinds))]
    for kind in kinds:
        if kind in columns:
            ceiling = [low + more for low, more in zip(floor, columns[kind], strict=True)]
            edge = [*zip(across, ceiling, strict=True)]
            edge += [*zip(across, floor, strict=True)][::-1]
            way = " ".join(f"{x:.1f},{_height(y / top):.1f}" for x, y in edge)
            parts.append(f'<polygon points="{way}" fill="url(#p{kinds.index(kind)})"/>')
            floor = ceiling
    ground = _height(0)
    parts += [
        f'<line class="axis" x1="0" x2="{WIDTH}" y1="{ground}" y2="{ground}"/>',
        f'<text x="0" y="13">{escape(most)} at most</text>',
        f'<text x="0" y="{HEIGHT - 5}">{first:,}</text>',
        f'<text x="{WIDTH}" y="{HEIGHT - 5}" text-anchor="end">{last:,} requests</text>',
    ]
    return svg_of(parts, HEIGHT, WIDTH)


def _height(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
