"""A picture as SVG: no fetched resources, escaped texts, relative widths.

Bars are placed in per cent, so that one drawing fits a phone and a wide screen with letters of one
size. `body` draws the rows alone, for a page that puts them together; `standalone` is a file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from html import escape
from typing import Any, Final

from cachesim.report.picture import Arrow, Branch, Kind, Picture, Row, clip
from cachesim.report.texts import Bar, BarKind

LINE: Final = 34
"""Pixels of a row: its label, then its bars."""
LABEL: Final = 14
HIGH: Final = 16
MIDDLE: Final = LABEL + HIGH // 2

FARTHEST: Final = 40
"""Hundredths of the width up to which a label starts at its bar's start; behind it, it ends at its
end.
"""
INSIDE: Final = 94
"""Hundredths of the width from which a mark is drawn in its bar, not beside it."""

TREE_STYLE: Final = (
    ".cs-pic .br{stroke:var(--ink);stroke-width:1.5}"
    ".cs-pic .in{paint-order:stroke;stroke:var(--ground);stroke-width:4px;stroke-linejoin:round}"
    ".cs-pic .saved{fill:var(--ink);stroke:var(--ground)}"
    ".cs-pic .lacks{fill:var(--ground);stroke:var(--ink);stroke-dasharray:2 2}"
    ".cs-pic .false{fill:var(--ground);stroke:var(--wrong);stroke-width:2.5}"
    ".cs-pic .cross{stroke:var(--wrong);stroke-width:2}"
    ".cs-pic .alive{fill:var(--ink)}"
)


def share(part: int, whole: int) -> str:
    """A part in hundredths of the whole, as a length."""
    return f"{100 * part / whole:.5g}%"


def label_at(branch: Branch | None, wide: int) -> str:
    """Place of a label: in a tree above its bar, on the side with space."""
    if branch is None:
        return 'class="l" x="0" y="10"'
    level = 100 * branch.start / wide
    if level <= FARTHEST:
        return f'class="l in" x="{level:.5g}%" dx="{0 if branch.root else 4}" y="10"'
    end = max(100 * branch.end / wide, 100 - FARTHEST)
    return f'class="l in" x="{end:.5g}%" text-anchor="end" y="10"'


def branch_svg(branch: Branch, wide: int) -> str:
    """Lines from a row to its parent's and children's, below the bars."""
    parts = [_down(down, wide, 0, LINE) for down in branch.passes]
    if branch.root and branch.leads_on:
        parts.append(f'<circle class="saved" cx="5" cy="{MIDDLE}" r="4"/>')
        parts.append(_down(0, wide, MIDDLE, LINE))
    elif not branch.root:
        parts.append(_down(branch.start, wide, 0, MIDDLE))
    if branch.leads_on and not branch.root:
        parts.append(_down(branch.end, wide, LABEL + HIGH, LINE))
    return "".join(parts)


def ends_svg(branch: Branch, wide: int, uid: str) -> str:
    """Strip of a window and end mark of a bar."""
    parts = []
    if branch.window is not None:
        where = f'x="{share(branch.start, wide)}" width="{share(branch.end - branch.start, wide)}"'
        css = 'class="alive"' if branch.window else f'class="gone" fill="url(#{uid}px)"'
        parts.append(f'<rect {css} {where} y="{LABEL + HIGH}" height="3"/>')
    if branch.mark:
        beside = 8 if 100 * branch.end <= INSIDE * wide else -8
        css = {"saved": "saved", "lacks": "lacks", "wrong": "false"}[branch.mark]
        circle = f'<circle class="{css}" cx="0" cy="{MIDDLE}" r="5"/>'
        cross = f"M-3 {MIDDLE - 3}l6 6M3 {MIDDLE - 3}l-6 6"
        crossed = f'<path class="cross" d="{cross}"/>' if branch.mark == "wrong" else ""
        parts.append(
            f'<svg x="{share(branch.end, wide)}" overflow="visible">'
            f'<g transform="translate({beside})">{circle}{crossed}</g></svg>'
        )
    return "".join(parts)


def _down(at: int, wide: int, top: int, bottom: int) -> str:
    x = share(at, wide)
    inward = 1 if 100 * at < 50 * wide else -1
    return (
        f'<line class="br" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"'
        f' transform="translate({inward})"/>'
    )


HEADING: Final = 24
AXIS: Final = 18
GUTTER: Final = 3
"""Hundredths of the width at the left, for arrows."""
COLOURS: Final = 8
LETTERS: Final = 56
"""Number of positions up to which every token has a letter."""
SCREENS: Final = {"onphone": 340, "onwide": 700}
"""Widths of a picture in pixels on a phone and on a wide screen."""
LETTER: Final = 6.5
"""Pixels of a letter."""
RUNNING: Final = 5.8
"""Pixels of a letter or a space in a line of words."""
SHORTEST: Final = 4
"""Letters of a word that is shortened."""

LIGHT_COLOURS: Final = (
    "#f6b26b", "#8ec1f2", "#9bd18b", "#c9b1ec", "#f0dc6e", "#7fd1c7", "#f3a9c8", "#c4c9d0",
)  # fmt: skip
_DARK: Final = (
    "#8a4b12", "#1f5a94", "#2f6b28", "#5f4596", "#6f6210", "#156860", "#86335c", "#555c66",
)  # fmt: skip


def _variables(colours: tuple[str, ...], **others: str) -> str:
    named = {f"c{i}": colour for i, colour in enumerate(colours)} | others
    return ";".join(f"--{name}:{value}" for name, value in named.items())


_ON_LIGHT: Final = _variables(
    LIGHT_COLOURS, ink="#14181f", quiet="#4a525e", ground="#ffffff", wrong="#c01818", light=".3"
)
_ON_DARK: Final = _variables(
    _DARK, ink="#f3f5f8", quiet="#b4bdc9", ground="#14181d", wrong="#ff6b62", light=".5"
)

STYLE: Final = (
    f".cs-pic{{{_ON_LIGHT}}}"
    f"@media(prefers-color-scheme:dark){{.cs-pic{{{_ON_DARK}}}}}"
    f"[data-theme=light] .cs-pic{{{_ON_LIGHT}}}[data-theme=dark] .cs-pic{{{_ON_DARK}}}"
    ".cs-pic{font:11px/1 system-ui,sans-serif;display:block;max-width:100%}"
    ".cs-pic text{fill:var(--ink)}.cs-pic .l,.cs-pic .x{fill:var(--quiet)}"
    ".cs-pic .h{font-weight:700;font-size:13px}.cs-pic .bad{fill:var(--wrong)}"
    ".cs-pic .m{text-anchor:middle}"
    ".cs-pic .note{fill:var(--ink);font-weight:700}"
    ".cs-pic .g{stroke:var(--quiet);stroke-opacity:.35}"
    ".cs-pic .ax{stroke:var(--quiet)}"
    ".cs-pic .b{stroke:var(--ground)}.cs-pic .none{fill:none;stroke:var(--quiet)}"
    ".cs-pic .light{fill-opacity:var(--light)}.cs-pic .paper{fill:var(--ground)}"
    ".cs-pic .pending{fill:none;stroke:var(--quiet);stroke-dasharray:2 2}"
    ".cs-pic .new,.cs-pic .again{stroke:var(--quiet)}"
    ".cs-pic .wrong{stroke:var(--wrong);stroke-width:3}"
    ".cs-pic .missing{stroke:var(--wrong);stroke-dasharray:4 2;stroke-width:2}"
    ".cs-pic .gone{stroke:var(--quiet);stroke-dasharray:4 2}.cs-pic .tg{stroke:var(--ground)}"
    f"{TREE_STYLE}"
    ".cs-pic .arrow{stroke:var(--ink);stroke-width:2;fill:none}"
    ".cs-pic .arrow.wrong{stroke:var(--wrong)}.cs-pic .tip{fill:var(--ink)}"
    ".cs-pic .tip.wrong{fill:var(--wrong);stroke:none}"
    ".cs-pic .changed .b:not(.wrong){stroke:var(--ink);stroke-width:2}"
    ".cs-pic .t{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}"
    + "".join(f".cs-pic .f{i}{{fill:var(--c{i})}}" for i in range(COLOURS))
    + "@media(max-width:640px){.cs-pic .onwide{display:none}}"
    + "@media(min-width:641px){.cs-pic .onphone{display:none}}"
    + "@media print{.cs-pic .b{stroke:#000}}"
)

_STROKES: Final = (
    "M0 8L8 0", "M0 0L8 8", "M4 0V8", "M0 4H8", "M0 8L8 0M0 0L8 8", "M4 0V8M0 4H8",
    "M0 2H8M0 6H8",
)  # fmt: skip


def patterns(uid: str, count: int, *, plain: int) -> str:
    """A hatched colour for each number, and one plain colour.

    Where there are more than colours, each colour comes again with the next pattern.
    """
    drawn = "".join(
        f'<pattern id="{uid}p{i}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="var(--c{i % COLOURS})"/>'
        f'<path d="{"" if i == plain else _STROKES[(i + i // COLOURS) % len(_STROKES)]}"'
        ' stroke="var(--ink)"'
        ' stroke-opacity=".28" fill="none"/></pattern>'
        for i in range(count)
    )
    return f"<defs>{drawn}</defs>"


def hatches(uid: str) -> str:
    """Marks of tokens missing, evicted and reprocessed."""
    return (
        f'<defs><pattern id="{uid}px" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<path d="M0 6L6 0" stroke="var(--wrong)" fill="none"/></pattern>'
        f'<pattern id="{uid}pg" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<path d="M0 6L6 0" stroke="var(--quiet)" fill="none"/></pattern>'
        f'<pattern id="{uid}pa" width="7" height="7" patternUnits="userSpaceOnUse">'
        '<path d="M-1 1L1 -1M0 7L7 0M6 8L8 6" stroke="var(--ink)" stroke-opacity=".7" fill="none"/>'
        "</pattern></defs>"
    )


def row_svg(row: Row, wide: int, uid: str, letter: Callable[[int], str] | None = None) -> str:
    """A row from its top: the label, the rail, the bars."""
    row = clip(row, wide)
    note = f'<tspan class="note" dx="8">{escape(row.note)}</tspan>' if row.note else ""
    middle = LABEL + HIGH // 2
    parts = [f'<line class="g" x1="0" x2="100%" y1="{middle}" y2="{middle}"/>']
    if row.branch is not None:
        parts = [branch_svg(row.branch, wide)]
    parts.append(f"<text {label_at(row.branch, wide)}>{escape(row.label)}{note}</text>")
    if row.bracket is not None:
        a, b = (share(end, wide) for end in row.bracket)
        parts.append(f'<line class="ax" x1="{a}" x2="{b}" y1="{LABEL - 2}" y2="{LABEL - 2}"/>')
    gap = 18 if row.branch is not None and row.branch.mark else 4
    starts = [*sorted({bar.start for bar in row.bars}), wide]
    for bar in row.bars:
        end = next(start for start in starts if start > bar.start or start == wide)
        words = _words(bar, wide, end - bar.start, gap, letter if wide <= LETTERS else None)
        parts.append(_bar(bar, row.kind, wide, uid, "".join(words)))
    if row.branch is not None:
        parts.append(ends_svg(row.branch, wide, uid))
    return "".join(parts)


HATCHED: Final = {"missing": "px", "gone": "pg", "again": "pa"}
LIGHT: Final = frozenset({"new", "again"})


def _bar(bar: Bar, kind: Kind, wide: int, uid: str, words: str) -> str:
    round_ = ' rx="7"' if kind == "recurrent" else ""
    known = bar.colours if bar.kind not in {"missing", "gone", "pending"} else ()
    where = f'x="{share(bar.start, wide)}" y="{LABEL}" height="{HIGH}"'
    where += f' width="{share(bar.end - bar.start, wide)}"'
    fill = f"url(#{uid}{HATCHED[bar.kind]})" if bar.kind in HATCHED else "none"
    css = bar.kind if known or bar.kind != "held" else "held none"
    return (
        f'<g class="c"><title>{escape(bar.tip)}</title>{_filled(bar, known, wide, round_)}'
        f'<rect class="b {css}" {where} fill="{fill}"{round_}/>'
        f'<svg {where} overflow="visible">{words}</svg></g>'
    )


def _filled(bar: Bar, known: tuple[tuple[int, int], ...], wide: int, round_: str) -> str:
    light = " light" if bar.kind in LIGHT else ""
    at, parts = bar.start, []
    if light:
        whole = f'x="{share(bar.start, wide)}" width="{share(bar.end - bar.start, wide)}"'
        parts.append(f'<rect class="paper" {whole} y="{LABEL}" height="{HIGH}"{round_}/>')
    for count, colour in known:
        where = f'x="{share(at, wide)}" y="{LABEL}" width="{share(count, wide)}" height="{HIGH}"'
        rounded = round_ if len(known) == 1 else ""
        parts.append(f'<rect class="f{colour % COLOURS}{light}" {where}{rounded}/>')
        at += count
    return "".join(parts)


def _cut(text: str, most: int) -> str:
    """The text cut to a length; the last character marks a cut."""
    return text if len(text) <= most or most == 1 else f"{text[: most - 1]}…"


def _words(
    bar: Bar, wide: int, room: int, gap: int, letter: Callable[[int], str] | None
) -> Iterator[str]:
    """A letter or a word for each token, or the bar's text: inside, behind, or shortened."""
    tone = " t tg" if bar.kind in HATCHED else ""
    size = bar.end - bar.start
    texts = bar.words or (() if letter is None else tuple(map(letter, bar.tokens)))
    least = SHORTEST * LETTER if bar.words else 0
    narrow = {
        screen
        for screen, pixels in SCREENS.items()
        if len(texts) != max(size, 1) or pixels / wide < least
    }
    joined = {
        screen: [] if screen in narrow or not bar.words else list(_joined(bar, pixels / wide))
        for screen, pixels in SCREENS.items()
    }
    for screen, parts in joined.items():
        for start, count, text in parts:
            x = f"{100 * (start + count / 2) / size:.4g}%"
            yield f'<text class="m{tone} {screen}" x="{x}" y="12">{escape(text)}</text>'
    for i, text in enumerate(texts):
        x = f"{100 * (i + 0.5) / size:.4g}%"
        shown = {
            screen: _cut(text, max(1, int(pixels / wide / LETTER)))
            for screen, pixels in SCREENS.items()
            if screen not in narrow
            and not any(start <= i < start + count for start, count, _ in joined[screen])
        }
        alike = len(shown) == len(SCREENS) and len(set(shown.values())) == 1
        for screen, part in [("", text)] if alike else shown.items():
            css = f"m{tone} {screen}".rstrip()
            yield f'<text class="{css}" x="{x}" y="12">{escape(part)}</text>'
    found = {
        screen: _fitting(bar.text, pixels * size / wide, pixels * (room - size) / wide - gap)
        for screen, pixels in SCREENS.items()
        if screen in narrow
    }
    alike = len(narrow) == len(SCREENS) and len(set(found.values())) == 1
    for screen, (text, inside) in found.items():
        if text and not (alike and screen == "onwide"):
            only = "" if alike else f" {screen}"
            x = 'x="4"' if inside else f'x="100%" dx="{gap}"'
            css = f"{tone if inside else ' in'}{only}".strip()
            style = f'class="{css}" ' if css else ""
            yield f'<text {style}{x} y="12">{escape(text)}</text>'


def _joined(bar: Bar, token: float) -> Iterator[tuple[int, int, str]]:
    """Parts of one colour whose words fit as a line, and not each above its token."""
    start = 0
    for count, _ in bar.colours:
        words = bar.words[start : start + count]
        line = " ".join(words)
        cut = any(LETTER * len(word) > token for word in words)
        if cut and len(words) == count and RUNNING * len(line) <= token * count:
            yield start, count, line
        start += count


def _fitting(text: str, bar: float, after: float) -> tuple[str, bool]:
    """A text, its first word or nothing, and whether it fits inside the bar."""
    for label in (text, text.replace(":", " ").split(" ", maxsplit=1)[0]):
        need = LETTER * len(label) + 4
        if need + 4 <= bar or need <= after:
            return label, need + 4 <= bar
    return "", True


def axis_svg(wide: int) -> str:
    """The scale of positions."""
    step = next(step for step in _ROUND if wide / step <= 8)
    marks = []
    for at in range(0, wide, step):
        x = share(at, wide)
        marks.append(f'<line class="ax" x1="{x}" x2="{x}" y1="0" y2="4"/>')
        if at + step / 2 < wide:
            marks.append(f'<text class="x" x="{x}" dx="2" y="14">{at}</text>')
    return f'<line class="ax" x1="0" x2="100%" y1="0" y2="0"/>{"".join(marks)}'


_ROUND: Final = tuple(digit * 10**power for power in range(9) for digit in (1, 2, 5))


LEGEND: Final[Mapping[str, tuple[frozenset[BarKind], str]]] = {
    "held": (frozenset({"shared", "held"}), "cached, or still held"),
    "new": (frozenset({"new"}), "prefilled"),
    "again": (frozenset({"again"}), "lost, and prefilled again"),
    "wrong": (frozenset({"wrong"}), "wrong"),
    "missing": (frozenset({"missing"}), "missing, but needed"),
    "gone": (frozenset({"gone"}), "evicted"),
    "pending": (frozenset({"pending"}), "not prefilled yet"),
}
"""A sample of each fill -> its kinds of bars and its label."""
NOTE: Final = 18
"""Pixels of a line of the legend."""
ACROSS: Final = {"onphone": 2, "onwide": 4}
"""Entries of the legend in a line."""


def bar_kinds(rows: Iterable[Row]) -> set[BarKind]:
    """The fills of rows."""
    return {bar.kind for row in rows for bar in row.bars}


def legend_high(kinds: AbstractSet[BarKind]) -> int:
    """Pixels of the legend's height."""
    return NOTE * -(-(len(_samples(kinds)) + 1) // ACROSS["onphone"])


def _samples(kinds: AbstractSet[BarKind]) -> list[str]:
    return [sample for sample, (meant, _) in LEGEND.items() if kinds & meant]


def legend_svg(kinds: AbstractSet[BarKind], uid: str) -> str:
    """Samples of the fills, and the meaning of a colour."""
    parts = []
    for screen, across in ACROSS.items():
        for i, sample in enumerate([*_samples(kinds), ""]):
            entry = _sample(sample, uid) if sample else _hues()
            at = f'x="{100 * (i % across) / across:g}%" y="{NOTE * (i // across)}"'
            parts.append(f'<svg class="{screen}" {at} overflow="visible">{entry}</svg>')
    return "".join(parts)


def _sample(sample: str, uid: str) -> str:
    fill = f"url(#{uid}{HATCHED[sample]})" if sample in HATCHED else "none"
    light = " light" if sample in LIGHT else ""
    plain = sample in {"missing", "gone", "pending"}
    colour = "" if plain else f'<rect class="f1{light}" y="3" width="16" height="11"/>'
    frame = f'<rect class="b {sample}" y="3" width="16" height="11" fill="{fill}"/>'
    return f'{colour}{frame}<text class="x" x="22" y="12">{LEGEND[sample][1]}</text>'


def _hues() -> str:
    chips = "".join(
        f'<rect class="f{i}" x="{6 * i}" y="3" width="6" height="11"/>' for i in range(3)
    )
    return f'{chips}<text class="x" x="22" y="12">one colour = one text</text>'


def frame(rows: Iterable[Row], wide: int, uid: str) -> dict[str, Any]:
    """The parts of a page around rows: heights, the axis and the legend."""
    kinds = bar_kinds(rows)
    return {
        "line": LINE,
        "foot": AXIS,
        "axis": axis_svg(wide),
        "legend": legend_svg(kinds, uid),
        "note": legend_high(kinds),
    }


def _tops_of(picture: Picture) -> tuple[list[int], int]:
    heads = dict(picture.headings)
    tops, y = [], 4
    for i in range(len(picture.rows)):
        y += HEADING if i in heads else 0
        tops.append(y)
        y += LINE
    return tops, y + AXIS + legend_high(bar_kinds(picture.rows))


def body(picture: Picture, uid: str, *, letter: Callable[[int], str] | None = None) -> str:
    """Headings, rows, axis and arrows."""
    tops, high = _tops_of(picture)
    heads = dict(picture.headings)
    gutter = GUTTER if picture.arrows else 0
    across = f'x="{gutter}%" width="{100 - gutter}%"'
    kinds = bar_kinds(picture.rows)
    legend = legend_high(kinds)
    parts = [hatches(uid)]
    for i, (row, top) in enumerate(zip(picture.rows, tops, strict=True)):
        if i in heads:
            tone = "h bad" if "WRONG" in heads[i] else "h"
            parts.append(
                f'<text class="{tone}" x="{gutter}%" y="{top - 7}">{escape(heads[i])}</text>'
            )
        inner = row_svg(row, picture.positions, uid, letter)
        parts.append(f'<svg class="r" y="{top}" {across} height="{LINE}">{inner}</svg>')
    parts.append(
        f'<svg y="{high - legend - AXIS}" {across} height="{AXIS}">'
        f"{axis_svg(picture.positions)}</svg>"
    )
    parts.append(
        f'<svg y="{high - legend}" {across} height="{legend}">{legend_svg(kinds, uid)}</svg>'
    )
    parts += [_arrow(arrow, tops, gutter) for arrow in picture.arrows]
    return "".join(parts)


def _arrow(arrow: Arrow, tops: list[int], gutter: int) -> str:
    """An arrow from the start of the checkpoint, down the gutter, to the restored memory."""
    top, bottom = (tops[row] + LABEL + HIGH // 2 for row in (arrow.from_row, arrow.to_row))
    tone, x = (" wrong" if arrow.wrong else ""), f"{gutter / 3:.4g}%"
    lines = (
        f'x1="{gutter}%" x2="{x}" y1="{top}" y2="{top}"',
        f'x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"',
        f'x1="{x}" x2="{gutter}%" y1="{bottom}" y2="{bottom}"',
    )
    drawn = "".join(f'<line class="arrow{tone}" {line}/>' for line in lines)
    tip = f'<path class="tip{tone}" d="M0 0l-8 -5v10z"/>'
    head = f'<svg x="{gutter}%" y="{bottom}" overflow="visible">{tip}</svg>'
    return f"<g><title>{escape(arrow.label)}</title>{drawn}{head}</g>"


def inline(picture: Picture, uid: str, *, letter: Callable[[int], str] | None = None) -> str:
    """A drawing for a page with `STYLE`, as wide as the page."""
    _, high = _tops_of(picture)
    return (
        f'<svg class="cs-pic" role="img" aria-label="{escape(picture.title)}"'
        f' aria-describedby="{uid}d" width="100%"'
        f' height="{high}" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{uid}t">{escape(picture.title)}</title>'
        f'<desc id="{uid}d">{escape(picture.about)}</desc>'
        f"{body(picture, uid, letter=letter)}</svg>"
    )


def standalone(picture: Picture) -> str:
    """A drawing as a file."""
    _, high = _tops_of(picture)
    about = f'<desc id="d">{escape(picture.about)}</desc>'
    return file_of(picture.title, about, body(picture, ""), high)


EDGE, WIDE = 14, 760
"""Pixels around a drawing in a file, and of its width."""


def file_of(title: str, about: str, drawn: str, high: int, fills: str = "") -> str:
    """A drawing as a file with its own background; `about` is its description, if it has one."""
    inner, outer = WIDE - 2 * EDGE, high + 2 * EDGE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cs-pic" role="img"'
        f' aria-labelledby="{"t d" if about else "t"}"'
        f' width="{WIDE}" height="{outer}" viewBox="0 0 {WIDE} {outer}">'
        f'<title id="t">{escape(title)}</title>{about}<style>{STYLE}</style>{fills}'
        f'<rect width="100%" height="100%" rx="8" fill="var(--ground)"/>'
        f'<svg x="{EDGE}" y="{EDGE}" width="{inner}" height="{high}" overflow="visible">'
        f"{drawn}</svg></svg>\n"
    )
