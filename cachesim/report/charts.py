"""Charts as SVG: lines, stacked bars, balance bars, areas.

Colours are distinguished by a mark or a pattern as well, so a plot reads in black and white. Blue
is left to reused tokens, red to wrong answers; bars of lost tokens are hatched, as in pictures.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import count
from math import log10
from textwrap import wrap
from typing import Final

COLOURS: Final = (
    "#64748b", "#c2571a", "#2a7d4f", "#8a4fb0", "#a67c00", "#6b6b1f", "#3b8a99", "#9a4a72",
    "#2f6fb0",
)  # fmt: skip
REUSED: Final = len(COLOURS) - 1
"""The colour of reused tokens; it and the first one are plain."""
MARKS: Final = ("circle", "square", "diamond", "cross")
DASHES: Final = ("", "6 3", "2 3", "9 3 2 3")

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 14, 56

ROW: Final = 56
"""Height of a bar with its name above it, in letters readable on a phone."""

BAR_AT, BAR_HIGH = 32, 14

STYLE: Final = """
.chart { width: 100%; max-width: 45rem; height: auto; overflow: visible; }
.chart text { font: 12px system-ui, sans-serif; fill: currentColor; }
.chart .knee { fill: none; stroke: currentColor; stroke-width: 1.5; }
.chart .axis { stroke: currentColor; stroke-opacity: .35; }
@media (max-width: 30rem) { .chart text { font-size: 20px; } }
.small { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1rem; }
.small figure { margin: 0; } .small .chart text { font-size: 12px; }
.legend { list-style: none; padding: 0; columns: 22rem; }
.legend svg { width: 30px; height: 12px; margin-right: .5rem; }
"""

Points = Sequence[tuple[float, float]]


def line_chart(
    series: Mapping[str, Points], *, x: str, title: str, rings: Mapping[str, Sequence[float]]
) -> str:
    """Shares from 0 to 1 over a number, on a logarithmic axis if it grows fast; rings mark points.

    Series with the same points are one line, whose name in the legend is all of theirs.
    """
    rings = {name: rings.get(name, ()) for name in series}
    alike: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name, points in series.items():
        alike.setdefault(tuple(sorted(points)), []).append(name)
    groups = {" = ".join(names): names for names in alike.values()}
    series, names = dict(zip(groups, alike, strict=True)), groups
    rings = {name: [at for ring in names[name] for at in rings[ring]] for name in series}
    numbers = sorted({at for points in series.values() for at, _ in points})
    low, high = numbers[0], numbers[-1]
    logarithmic = low > 0 and high / low >= 20

    def place(value: float) -> float:
        ends = (log10(low), log10(high)) if logarithmic else (low, high)
        own = log10(value) if logarithmic else value
        return LEFT + (own - ends[0]) / ((ends[1] - ends[0]) or 1) * (WIDTH - LEFT - RIGHT)

    top = max((share for points in series.values() for _, share in points), default=1) or 1
    marks = steps(top)

    def height(share: float) -> float:
        return HEIGHT - BOTTOM - share / marks[-1] * (HEIGHT - TOP - BOTTOM)

    parts = [f"<title>{escape(title)}</title>"]
    for step in marks:
        at = height(step)
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{100 * step:g} %</text>'
        )
    under = HEIGHT - BOTTOM + 22
    anchors = {low: "start", high: "end"}
    parts += [
        f'<text x="{place(at):.1f}" y="{under}" text-anchor="{anchors.get(at, "middle")}">'
        f"{at:,g}</text>"
        for at in _spaced(_some(numbers), place)
    ]
    parts.append(
        f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>'
    )
    for index, (name, points) in enumerate(series.items()):
        spots = [(place(at), height(share)) for at, share in sorted(points)]
        parts += line_of(index, spots, wide=2 + 1.5 * min(4, len(series) - 1 - index))
        parts += [
            f'<circle class="knee" cx="{place(at):.1f}" cy="{height(share):.1f}" r="9"/>'
            for at, share in points
            if at in rings.get(name, ())
        ]
    return svg_of(parts, HEIGHT) + legend(numbered(series))


def scatter(groups: Mapping[str, Points], names: Mapping[str, str]) -> str:
    """Memory and prefill tokens of several groups of settings; `names` are printed beside some.

    Upwards the scale begins at 0.
    """
    spots = [point for points in groups.values() for point in points]
    left, right = min(at for at, _ in spots), max(at for at, _ in spots)
    low, high = min(up for _, up in spots), max(up for _, up in spots)

    def place(at: float, up: float) -> tuple[float, float]:
        across = (at - left) / ((right - left) or 1) * (WIDTH - LEFT - 180)
        return LEFT + 40 + across, HEIGHT - BOTTOM - up / (high or 1) * 210

    floor = HEIGHT - BOTTOM
    parts = [
        "<title>prefill tokens and memory of each of the settings</title>",
        f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{TOP + 8}" y2="{floor}"/>',
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>',
        f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">memory (MiB)</text>',
        f'<text x="0" y="{TOP}">prefill tokens</text>',
    ]
    for value in dict.fromkeys((0, low, high)):
        at = place(left, value)[1] + 4
        parts.append(f'<text x="{LEFT - 6}" y="{at:.1f}" text-anchor="end">{value:,.0f}</text>')
    for value in dict.fromkeys((left, right)):
        at = place(value, low)[0]
        parts.append(f'<text x="{at:.1f}" y="{floor + 22}" text-anchor="middle">{value:,g}</text>')
    for index, (name, points) in enumerate(groups.items()):
        for point in points:
            over, up = place(*point)
            parts.append(f"<g><title>{escape(name)}: {point[1]:,.0f}</title>")
            parts.append(f"{_mark(index, over, up)}</g>")
            if name in names:
                parts.append(
                    f'<text x="{over + 9:.1f}" y="{up - 7:.1f}">{escape(names[name])}</text>'
                )
    return svg_of(parts, HEIGHT) + legend(numbered(groups), lined=False)


def line_of(index: int, spots: Points, *, wide: float = 2) -> list[str]:
    """A line of some width through some points, and its mark at each."""
    way = " ".join(f"{left:.1f},{up:.1f}" for left, up in spots)
    drawn = f'<polyline points="{way}" fill="none" {_pen(index, wide)}/>'
    return [drawn, *(_mark(index, left, up) for left, up in spots)]


def stacked_bars(
    bars: Mapping[str, Mapping[str, float]], *, title: str, order: Sequence[str] = ()
) -> str:
    """A bar for each name, in parts; one colour and hatch for each part."""
    fills = _fills(bars, order)
    most = max((sum(bar.values()) for bar in bars.values()), default=0) or 1
    height, tops = _labelled(bars)
    parts = [f"<title>{escape(title)}</title>", *patterns(fills.values()), *_labels(tops)]
    for (up, _), bar in zip(tops, bars.values(), strict=True):
        left = 0.0
        for part, value in bar.items():
            wide = value / most * (WIDTH - 120)
            parts.append(
                f'<rect x="{left:.1f}" y="{up + BAR_AT}" width="{wide:.1f}" height="{BAR_HIGH}" '
                f'fill="url(#p{fills[part]})"><title>{escape(part)}: {value:,.0f}</title></rect>'
            )
            left += wide
        parts.append(
            f'<text x="{left + 6:.1f}" y="{up + BAR_AT + 12}">{sum(bar.values()):,.0f}</text>'
        )
    return svg_of(parts, height) + legend(fills, filled=True)


def _fills(bars: Mapping[str, Mapping[str, float]], order: Sequence[str]) -> dict[str, int]:
    """A hatch for each part; parts of `order` have theirs in every chart of a page."""
    used = dict.fromkeys(part for bar in bars.values() for part in bar)
    free = (colour for colour in count() if colour % len(COLOURS) not in {0, REUSED})
    every = dict.fromkeys([*order, *used])
    fills = {part: REUSED if part == "reused" else next(free) for part in every}
    return {part: fill for part, fill in fills.items() if part in used}


LETTERS: Final = 64
"""Letters in a line of a bar's label, on a phone."""

LABEL_HIGH: Final = 24


def _labelled(names: Iterable[str]) -> tuple[int, list[tuple[int, list[str]]]]:
    """The height of a chart of bars; the top of each row, and its label in lines."""
    rows, up = [], TOP
    for name in names:
        label = wrap(name, LETTERS) or [""]
        up += LABEL_HIGH * (len(label) - 1)
        rows.append((up, label))
        up += ROW
    return up, rows


def _labels(rows: Iterable[tuple[int, list[str]]]) -> Iterator[str]:
    for up, label in rows:
        for at, words in enumerate(reversed(label)):
            yield f'<text x="0" y="{up + 22 - LABEL_HIGH * at}">{escape(words)}</text>'


def svg_of(parts: Sequence[str], height: int, width: int = WIDTH) -> str:
    """Parts as an SVG as wide as its container."""
    return f'<svg class="chart" role="img" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'


def steps(top: float) -> list[float]:
    """Round numbers from 0 to `top` or just above."""
    size = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 1e9) if top / step <= 5)
    count = 1
    while count * size < top - 1e-9:
        count += 1
    return [round(size * number, 6) for number in range(count + 1)]


def _some(numbers: Sequence[float]) -> Sequence[float]:
    if len(numbers) <= 8:
        return numbers
    return [numbers[round(at * (len(numbers) - 1) / 7)] for at in range(8)]


NUMBER_WIDE: Final = 64
"""Space for a number below an axis, on a phone."""


def _spaced(numbers: Sequence[float], place: Callable[[float], float]) -> list[float]:
    """The first number, the last, and those between that do not touch another."""
    shown = list(numbers[:1])
    end = place(numbers[-1])
    for at in numbers[1:-1]:
        if place(at) - place(shown[-1]) >= NUMBER_WIDE and end - place(at) >= NUMBER_WIDE:
            shown.append(at)
    return [*shown, *numbers[1:][-1:]]


def _pen(index: int, wide: float = 2) -> str:
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    drawn = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="{wide:g}"{drawn}'


def _mark(index: int, x: float, y: float) -> str:
    colour = COLOURS[index % len(COLOURS)]
    match MARKS[index % len(MARKS)]:
        case "circle":
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
        case "square":
            return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}"/>'
        case "diamond":
            way = f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"
            return f'<path d="{way}" fill="{colour}"/>'
        case _:
            way = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
            return f'<path d="{way}" stroke="{colour}" stroke-width="2"/>'


def patterns(indexes: Iterable[int]) -> Iterator[str]:
    """The first colour and that of reused tokens are plain, the others have stripes."""
    yield "<defs>"
    for index in indexes:
        colour = COLOURS[index % len(COLOURS)]
        turn = (0, 45, 90, 135)[(index + index // len(COLOURS)) % 4]
        wide = 0 if index in {0, REUSED} else 1.5
        stripe = f'<path d="M0 3h6" stroke="#fff" stroke-opacity=".55" stroke-width="{wide}"/>'
        yield (
            f'<pattern id="p{index}" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate({turn})"><rect width="6" height="6" fill="{colour}"/>'
            f"{stripe}</pattern>"
        )
    yield "</defs>"


def numbered(names: Iterable[str]) -> dict[str, int]:
    """Each name with its number from 0, as a legend takes them."""
    return {name: index for index, name in enumerate(names)}


def legend(entries: Mapping[str, int], *, filled: bool = False, lined: bool = True) -> str:
    """Each name with its line and mark, its mark, or its pattern."""
    lines = []
    for name, index in entries.items():
        if filled:
            drawn = f'<rect width="30" height="12" fill="url(#p{index})"/>'
        else:
            line = f'<path d="M0 6h30" {_pen(index)}/>' if lined else ""
            drawn = f"{line}{_mark(index, 15, 6)}"
        lines.append(
            f'<li><svg viewBox="0 0 30 12" aria-hidden="true">{drawn}</svg>{escape(name)}</li>'
        )
    return f'<ul class="legend">{"".join(lines)}</ul>'


EDGE: Final = 90
"""Space for a number on each side."""


def balance_bars(
    bars: Mapping[str, Mapping[str, int]], *, title: str, order: Sequence[str] = ()
) -> str:
    """A row for each name: parts above zero to the left, parts below zero to the right."""
    fills = _fills(bars, order)
    sides = [_sides(bar) for bar in bars.values()]
    more, less = (max((side[at] for side in sides), default=0) for at in (0, 1))
    unit = (WIDTH - 2 * EDGE) / ((more + less) or 1)
    line = EDGE + more * unit
    height, tops = _labelled(bars)
    parts = [f"<title>{escape(title)}</title>", *patterns(fills.values()), *_labels(tops)]
    for (up, _), bar, (grown, shrunk) in zip(tops, bars.values(), sides, strict=True):
        left, right = line, line
        for part, value in bar.items():
            wide = abs(value) * unit
            left -= wide if value > 0 else 0
            at = left if value > 0 else right
            right += wide if value < 0 else 0
            tip = f"<title>{escape(part)}: {value:+,}</title>"
            parts.append(
                f'<rect x="{at:.1f}" y="{up + BAR_AT}" width="{wide:.1f}" height="{BAR_HIGH}" '
                f'fill="url(#p{fills[part]})">{tip}</rect>'
            )
        text = up + BAR_AT + 12
        if grown:
            parts.append(f'<text x="{left - 6:.1f}" y="{text}" text-anchor="end">{grown:,}</text>')
        if shrunk:
            parts.append(f'<text x="{right + 6:.1f}" y="{text}">{shrunk:,}</text>')
    parts.append(
        f'<line class="axis" x1="{line:.1f}" x2="{line:.1f}" y1="{TOP + BAR_AT - 4}" '
        f'y2="{height}"/>'
    )
    return svg_of(parts, height) + legend(fills, filled=True)


def _sides(bar: Mapping[str, int]) -> tuple[int, int]:
    """Positive parts, and negative parts."""
    return (
        sum(value for value in bar.values() if value > 0),
        -sum(value for value in bar.values() if value < 0),
    )


SMALL_WIDTH: Final = 320
SMALL_HEIGHT: Final = 150
SMALL_TOP: Final = 20
SMALL_BOTTOM: Final = 20


def stacked_areas(
    at: Sequence[int],
    columns: Mapping[str, Sequence[int]],
    *,
    kinds: Sequence[str],
    most: str,
    top: float,
    title: str,
) -> str:
    """Stacked columns; `kinds` are their patterns, `top` the scale."""
    top, first, last = top or 1, at[0], at[-1]
    across = [SMALL_WIDTH * (value - first) / ((last - first) or 1) for value in at]
    floor = [0.0] * len(at)
    parts = [f"<title>{escape(title)}</title>", *patterns(range(len(kinds)))]
    for kind in kinds:
        if kind in columns:
            ceiling = [low + more for low, more in zip(floor, columns[kind], strict=True)]
            edge = [*zip(across, ceiling, strict=True)]
            edge += [*zip(across, floor, strict=True)][::-1]
            way = " ".join(f"{x:.1f},{_small_height(y / top):.1f}" for x, y in edge)
            parts.append(f'<polygon points="{way}" fill="url(#p{kinds.index(kind)})"/>')
            floor = ceiling
    ground = _small_height(0)
    parts += [
        f'<line class="axis" x1="0" x2="{SMALL_WIDTH}" y1="{ground}" y2="{ground}"/>',
        f'<text x="0" y="13">{escape(most)} at most</text>',
        f'<text x="0" y="{SMALL_HEIGHT - 5}">{first:,}</text>',
        f'<text x="{SMALL_WIDTH}" y="{ground + 15}" text-anchor="end">{last:,} requests</text>',
    ]
    return svg_of(parts, SMALL_HEIGHT, SMALL_WIDTH)


def _small_height(share: float) -> float:
    return SMALL_HEIGHT - SMALL_BOTTOM - share * (SMALL_HEIGHT - SMALL_TOP - SMALL_BOTTOM)
