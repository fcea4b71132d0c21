"""Writes the page on how cost grows from what `benchmarks.growth` measured.

    python -m benchmarks.growth growth.json
    python docs/make_growth.py growth.json

Without a file it writes the page again from the numbers that are kept beside it. Each sentence
takes its numbers from the cells; one that they do not bear out is an error.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any, Final

from measured import Measured, hold

from cachesim.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    STYLE,
    TOP,
    WIDTH,
    legend,
    line_of,
    numbered,
    svg_of,
)

UNITS: Final[Mapping[str, str]] = {
    "tokens": "tokens of one prompt",
    "slots": "slots that are busy at the same time",
    "requests": "requests, one after the other",
}

EVEN, BENT, SQUARE = 1.15, 1.4, 2.1
"""Up to which power a row counts as what its sentence says: caches and a busy machine add some."""

Row = Mapping[str, Any]
Points = list[tuple[int, float]]


def points(row: Row) -> Points:
    """The cells of a row that were played: size and seconds."""
    cells = ((int(size), seconds) for size, seconds in row["seconds"].items())
    return [(size, seconds) for size, seconds in cells if seconds is not None]


def slope(row: Row) -> float:
    """The power of its size that the last two cells grow with: 1 is linear, 2 quadratic."""
    (size, seconds), (larger, longer) = points(row)[-2:]
    return log10(longer / seconds) / log10(larger / size)


def chart(axis: str, rows: Sequence[Row]) -> str:
    """Seconds over a size, both by powers of ten: linear growth is the slope of the thin line."""
    cells = [point for row in rows for point in points(row)]
    left, right = (log10(pick(size for size, _ in cells)) for pick in (min, max))
    low = floor(log10(min(seconds for _, seconds in cells)))
    high = ceil(log10(max(seconds for _, seconds in cells)))

    def place(size: float) -> float:
        return LEFT + (log10(size) - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def height(seconds: float) -> float:
        return TOP + (high - log10(seconds)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    title = f"Seconds of processor time over {UNITS[axis]}"
    parts = [f"<title>{escape(title)}</title>"]
    for power in range(low, high + 1):
        at = height(10.0**power)
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>'
        )
    sizes, under = sorted({size for size, _ in cells}), HEIGHT - BOTTOM + 22
    anchors = {sizes[0]: "start", sizes[-1]: "end"}
    parts += [
        f'<text x="{place(size):.1f}" y="{under}" text-anchor="{anchors.get(size, "middle")}">'
        f"{size:,}</text>"
        for size in sizes
    ]
    parts.append(
        f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{UNITS[axis]}</text>'
    )
    for index, row in enumerate(rows):
        spots = [(place(size), height(took)) for size, took in points(row)]
        parts += line_of(index, spots, wide=2)
    names = [f"{row['model']}, {row['arithmetic']}" for row in rows]
    return svg_of(parts, HEIGHT) + legend(numbered(names))


def sentences(told: Mapping[str, Any]) -> Iterator[str]:
    """The page's conclusions; one that the cells contradict raises."""
    tokens, slots, requests = (of_axis(told, axis) for axis in UNITS)
    straight = [row for row in tokens if row["model"] != "attention"]
    square, *bent = (row for row in tokens if row not in straight)
    hold(fact=all(slope(row) < EVEN for row in straight), what="windows and states are linear")
    yield (
        f"Windows and recurrent layers are linear in the tokens of a prompt in every arithmetic:"
        f" the power is {_span(straight)}."
    )
    hold(
        fact=all(slope(row) < BENT for row in bent),
        what="attention is nearly linear in ring and counts",
    )
    yield (
        f"For attention, ring and counts are nearly linear up to {points(bent[0])[-1][0]:,} tokens:"
        f" the power is {_span(bent)}. The part that grows by pairs of an ubatch and a token is"
        f" small."
    )
    count, seconds = points(square)[-1]
    hold(fact=BENT < slope(square) <= SQUARE, what="attention in float grows by pairs")
    yield (
        f"Attention in float computes every pair of tokens: the power is {slope(square):.2f}, and"
        f" {count:,} tokens took {seconds:.1f} s."
    )
    hold(fact=all(slope(row) < BENT for row in slots), what="slots are worked off one by one")
    yield (
        f"Requests on as many slots are nearly linear in their number, with a power of"
        f" {_span(slots)}: each compares all slots, as in the real server."
    )
    hold(
        fact=all(slope(row) < EVEN for row in requests),
        what="a late request costs what an early one did",
    )
    yield (f"A request costs the same however many came before: the power is {_span(requests)}.")
    missing = [
        f"{row['model']} in {row['arithmetic']} with {int(size):,} {axis}"
        for axis in UNITS
        for row in of_axis(told, axis)
        for size, seconds in row["seconds"].items()
        if seconds is None
    ]
    if missing:
        yield (
            f"Left out, because at that growth they would have taken more than"
            f" {told['limit']:.0f} s: {'; '.join(missing)}."
        )
    yield (
        f"Each cell was run once, on `{told['profile']}`. The machine had {told['processors']}"
        f" processors and a load of {told['load']:g}, so look at the powers more than at the times."
    )


def _span(rows: Sequence[Row]) -> str:
    """The least and the largest power."""
    slopes = [slope(row) for row in rows]
    return f"{min(slopes):.2f} to {max(slopes):.2f}"


def of_axis(told: Mapping[str, Any], axis: str) -> list[Row]:
    """The rows of one axis."""
    return [row for row in told["rows"] if row["axis"] == axis]


def picture(told: Mapping[str, Any]) -> str:
    """A chart for each axis."""
    drawn = "\n".join(chart(axis, of_axis(told, axis)) for axis in UNITS)
    return f"<style>{STYLE}</style>\n{drawn}\n"


def written(told: Mapping[str, Any]) -> str:
    """The part of the page that is written here."""
    return "\n".join(f"- {sentence}" for sentence in sentences(told))


PAGE: Final = Measured(name="growth", maker="make_growth.py", written=written, picture=picture)

if __name__ == "__main__":
    PAGE.write(sys.argv[1:])
