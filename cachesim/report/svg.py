"""A picture as SVG: nothing is fetched, every text is escaped, widths are shares of the whole.

Bars are placed in per cent, so that one drawing fits a phone and a wide screen with letters of one
size. `body` draws the rows alone, for a page that puts them together; `standalone` is a file.
"""

from collections.abc import Callable, Iterator
from html import escape
from typing import Final

from cachesim.report.picture import Arrow, Bar, Branch, Kind, Picture, Row

LINE: Final = 34
"""Pixels of a row: its label, then its bars."""
LABEL: Final = 14
HIGH: Final = 16
MIDDLE: Final = LABEL + HIGH // 2

FARTHEST: Final = 40
"""Hundredths of the width up to which a label begins with its bar; later it ends with it."""
INSIDE: Final = 94
"""From here on there is no room for a mark beside a bar, and it stands in it."""

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
    """Place of a label: in a tree above its bar, on the side with room."""
    if branch is None:
        return 'class="l" x="0" y="10"'
    level = 100 * branch.start / wide
    if level <= FARTHEST:
        return f'class="l in" x="{level:.5g}%" dx="{0 if branch.root else 4}" y="10"'
    end = max(100 * branch.end / wide, 100 - FARTHEST)
    return f'class="l in" x="{end:.5g}%" text-anchor="end" y="10"'


def branch_svg(branch: Branch, wide: int) -> str:
    """Lines from a row to its parent's and children's, below the bars."""
    parts = [_down(each, wide, 0, LINE) for each in branch.passes]
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
        look = 'class="alive"' if branch.window else f'class="gone" fill="url(#{uid}px)"'
        parts.append(f'<rect {look} {where} y="{LABEL + HIGH}" height="3"/>')
    if branch.mark:
        parts.append(_mark(branch, wide))
    return "".join(parts)


def _down(at: int, wide: int, top: int, bottom: int) -> str:
    x = share(at, wide)
    inward = 1 if 100 * at < 50 * wide else -1
    return (
        f'<line class="br" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"'
        f' transform="translate({inward})"/>'
    )


def _mark(branch: Branch, wide: int) -> str:
    beside = 8 if 100 * branch.end <= INSIDE * wide else -8
    look = {"saved": "saved", "lacks": "lacks", "wrong": "false"}[branch.mark]
    circle = f'<circle class="{look}" cx="0" cy="{MIDDLE}" r="5"/>'
    cross = f"M-3 {MIDDLE - 3}l6 6M3 {MIDDLE - 3}l-6 6"
    crossed = f'<path class="cross" d="{cross}"/>' if branch.mark == "wrong" else ""
    return (
        f'<svg x="{share(branch.end, wide)}" overflow="visible">'
        f'<g transform="translate({beside})">{circle}{crossed}</g></svg>'
    )


HEADING: Final = 24
AXIS: Final = 18
GUTTER: Final = 3
"""Hundredths of the width at the left, for arrows, where there are any."""
COLOURS: Final = 8
LETTERS: Final = 56
"""Positions up to which every token has room for a letter."""
SCREENS: Final = {"onphone": 340, "onwide": 700}
"""Pixels that a picture has on a phone and on a wide screen; the style shows one or the other."""
LETTER: Final = 6.5
"""Pixels that a letter of a text takes."""

_LIGHT: Final = (
    "#f6b26b",
    "#8ec1f2",
    "#9bd18b",
    "#c9b1ec",
    "#f0dc6e",
    "#7fd1c7",
    "#f3a9c8",
    "#c4c9d0",
)
_DARK: Final = (
    "#8a4b12",
    "#1f5a94",
    "#2f6b28",
    "#5f4596",
    "#6f6210",
    "#156860",
    "#86335c",
    "#555c66",
)


def _variables(colours: tuple[str, ...], ink: str, quiet: str, ground: str, wrong: str) -> str:
    named = "".join(f"--c{i}:{colour};" for i, colour in enumerate(colours))
    return f"{named}--ink:{ink};--quiet:{quiet};--ground:{ground};--wrong:{wrong}"


_ON_LIGHT: Final = _variables(_LIGHT, "#14181f", "#4a525e", "#ffffff", "#c01818")
_ON_DARK: Final = _variables(_DARK, "#f3f5f8", "#b4bdc9", "#14181d", "#ff6b62")

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
    ".cs-pic .shared{fill-opacity:.55;stroke:var(--quiet);stroke-dasharray:2 2}"
    ".cs-pic .again{stroke:var(--quiet);stroke-dasharray:5 3;fill-opacity:.35}"
    ".cs-pic .wrong{stroke:var(--wrong);stroke-width:3}"
    ".cs-pic .missing{stroke:var(--wrong);stroke-dasharray:4 2;stroke-width:2}"
    ".cs-pic .gone{stroke:var(--quiet);stroke-dasharray:4 2}.cs-pic .tg{stroke:var(--ground)}"
    f"{TREE_STYLE}"
    ".cs-pic .arrow{stroke:var(--ink);stroke-width:2;fill:none}"
    ".cs-pic .arrow.wrong{stroke:var(--wrong)}.cs-pic .tip{fill:var(--ink)}"
    ".cs-pic .tip.wrong{fill:var(--wrong);stroke:none}"
    ".cs-pic .changed .b:not(.wrong){stroke:var(--ink);stroke-width:2}"
    ".cs-pic .t{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}"
    + "".join(f".cs-pic .t{i}{{stroke:var(--c{i})}}" for i in range(COLOURS))
    + "@media(max-width:640px){.cs-pic .onwide{display:none}}"
    + "@media(min-width:641px){.cs-pic .onphone{display:none}}"
    + "@media print{.cs-pic .b{stroke:#000}}"
)  # fmt: skip

_STROKES: Final = (
    "", "M0 8L8 0", "M0 0L8 8", "M4 0V8", "M0 4H8", "M0 8L8 0M0 0L8 8", "M4 0V8M0 4H8", "M2 2h1",
)  # fmt: skip


def patterns(uid: str, count: int = COLOURS) -> str:
    """A colour and a pattern for each step, so that both tell them apart; a hatch for nothing.

    Where there are more than colours, each colour comes again with the next pattern.
    """
    drawn = "".join(
        f'<pattern id="{uid}p{i}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="var(--c{i % COLOURS})"/>'
        f'<path d="{_STROKES[(i + i // COLOURS) % len(_STROKES)]}" stroke="var(--ink)"'
        ' stroke-opacity=".28" fill="none"/></pattern>'
        for i in range(count)
    )
    return (
        f'<defs>{drawn}<pattern id="{uid}px" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<path d="M0 6L6 0" stroke="var(--wrong)" fill="none"/></pattern>'
        f'<pattern id="{uid}pg" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<path d="M0 6L6 0" stroke="var(--quiet)" fill="none"/></pattern></defs>'
    )


def row_svg(row: Row, wide: int, uid: str, letter: Callable[[int], str] | None = None) -> str:
    """A row from its own top: the label, the rail, the bars."""
    note = f'<tspan class="note" dx="8">{escape(row.note)}</tspan>' if row.note else ""
    middle = LABEL + HIGH // 2
    parts = [f'<line class="g" x1="0" x2="100%" y1="{middle}" y2="{middle}"/>']
    if row.branch is not None:
        parts = [branch_svg(row.branch, wide)]
    parts.append(f"<text {label_at(row.branch, wide)}>{escape(row.label)}{note}</text>")
    if row.bracket is not None:
        a, b = (share(each, wide) for each in row.bracket)
        parts.append(f'<line class="ax" x1="{a}" x2="{b}" y1="{LABEL - 2}" y2="{LABEL - 2}"/>')
    gap = 18 if row.branch is not None and row.branch.mark else 4
    starts = [*sorted({bar.start for bar in row.bars}), wide]
    for bar in row.bars:
        end = next(each for each in starts if each > bar.start or each == wide)
        words = _words(bar, wide, end - bar.start, gap, letter if wide <= LETTERS else None)
        parts.append(_bar(bar, row.kind, wide, uid, "".join(words)))
    if row.branch is not None:
        parts.append(ends_svg(row.branch, wide, uid))
    return "".join(parts)


def _bar(bar: Bar, kind: Kind, wide: int, uid: str, words: str) -> str:
    start, width = share(bar.start, wide), share(bar.end - bar.start, wide)
    hue = None if bar.step is None else bar.step % COLOURS
    fill = f"url(#{uid}p{hue})" if hue is not None else "none"
    hatched = {"missing": "px", "gone": "pg"}.get(bar.look)
    if hatched is not None:
        fill = f"url(#{uid}{hatched})"
    round_ = ' rx="7"' if kind == "recurrent" else ""
    looks = f"b {bar.look}" + ("" if hue is not None or bar.look != "held" else " none")
    where = f'x="{start}" y="{LABEL}" width="{width}" height="{HIGH}"'
    return (
        f'<g class="c"><title>{escape(bar.tip)}</title>'
        f'<rect class="{looks}" {where} fill="{fill}"{round_}/>'
        f'<svg {where} overflow="visible">{words}</svg></g>'
    )


def _words(
    bar: Bar, wide: int, room: int, gap: int, letter: Callable[[int], str] | None
) -> Iterator[str]:
    """A letter for each token, or what the bar is: in it, after it, or shorter, never cut."""
    tone = "" if bar.step is None else f" t t{bar.step % COLOURS}"
    tone = " t tg" if bar.look == "gone" else tone
    size = bar.end - bar.start
    if letter is not None and len(bar.tokens) == size and size:
        for i, token in enumerate(bar.tokens):
            x = f"{100 * (i + 0.5) / size:.4g}%"
            yield f'<text class="m{tone}" x="{x}" y="12">{escape(letter(token))}</text>'
        return
    found = {
        screen: _fitting(bar.text, pixels * size / wide, pixels * (room - size) / wide - gap)
        for screen, pixels in SCREENS.items()
    }
    alike = len(set(found.values())) == 1
    for screen, (text, inside) in found.items():
        if text and not (alike and screen == "onwide"):
            only = "" if alike else f" {screen}"
            x = 'x="4"' if inside else f'x="100%" dx="{gap}"'
            look = f"{tone if inside else ' in'}{only}".strip()
            yield f'<text class="{look}" {x} y="12">{escape(text)}</text>'


def _fitting(text: str, bar: float, after: float) -> tuple[str, bool]:
    """A text and whether it stands in its bar: as it is or its first word, else nothing."""
    for each in (text, text.replace(":", " ").split(" ", maxsplit=1)[0]):
        need = LETTER * len(each) + 4
        if need + 4 <= bar or need <= after:
            return each, need + 4 <= bar
    return "", True


def axis_svg(wide: int) -> str:
    """The scale of positions."""
    step = next(each for each in _ROUND if wide / each <= 8)
    marks = []
    for at in range(0, wide, step):
        x = share(at, wide)
        marks.append(f'<line class="ax" x1="{x}" x2="{x}" y1="0" y2="4"/>')
        if at + step / 2 < wide:
            marks.append(f'<text class="x" x="{x}" dx="2" y="14">{at}</text>')
    return f'<line class="ax" x1="0" x2="100%" y1="0" y2="0"/>{"".join(marks)}'


_ROUND: Final = tuple(digit * 10**power for power in range(9) for digit in (1, 2, 5))


def _tops_of(picture: Picture) -> tuple[list[int], int]:
    heads = dict(picture.headings)
    tops, y = [], 4
    for i in range(len(picture.rows)):
        y += HEADING if i in heads else 0
        tops.append(y)
        y += LINE
    return tops, y + AXIS


def body(picture: Picture, uid: str, *, letter: Callable[[int], str] | None = None) -> str:
    """Headings, rows, axis and arrows."""
    tops, high = _tops_of(picture)
    heads = dict(picture.headings)
    gutter = GUTTER if picture.arrows else 0
    across = f'x="{gutter}%" width="{100 - gutter}%"'
    parts = [patterns(uid)]
    for i, (row, top) in enumerate(zip(picture.rows, tops, strict=True)):
        if i in heads:
            tone = "h bad" if "WRONG" in heads[i] else "h"
            parts.append(
                f'<text class="{tone}" x="{gutter}%" y="{top - 7}">{escape(heads[i])}</text>'
            )
        inner = row_svg(row, picture.positions, uid, letter)
        parts.append(f'<svg class="r" y="{top}" {across} height="{LINE}">{inner}</svg>')
    parts.append(
        f'<svg y="{high - AXIS}" {across} height="{AXIS}">{axis_svg(picture.positions)}</svg>'
    )
    parts += [_arrow(each, tops, gutter) for each in picture.arrows]
    return "".join(parts)


def _arrow(arrow: Arrow, tops: list[int], gutter: int) -> str:
    """From the beginning of the checkpoint, down the gutter, to the memory that it went into."""
    top, bottom = (tops[each] + LABEL + HIGH // 2 for each in (arrow.from_row, arrow.to_row))
    tone, x = (" wrong" if arrow.wrong else ""), f"{gutter / 3:.4g}%"
    lines = (
        f'x1="{gutter}%" x2="{x}" y1="{top}" y2="{top}"',
        f'x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"',
        f'x1="{x}" x2="{gutter}%" y1="{bottom}" y2="{bottom}"',
    )
    drawn = "".join(f'<line class="arrow{tone}" {each}/>' for each in lines)
    tip = f'<path class="tip{tone}" d="M0 0l-8 -5v10z"/>'
    head = f'<svg x="{gutter}%" y="{bottom}" overflow="visible">{tip}</svg>'
    return f"<g><title>{escape(arrow.label)}</title>{drawn}{head}</g>"


def inline(picture: Picture, uid: str, *, letter: Callable[[int], str] | None = None) -> str:
    """A drawing for a page that has `STYLE`: as wide as there is room."""
    _, high = _tops_of(picture)
    return (
        f'<svg class="cs-pic" role="img" aria-labelledby="{uid}t {uid}d" width="100%"'
        f' height="{high}" xmlns="http://www.w3.org/2000/svg">'
        f'<title id="{uid}t">{escape(picture.title)}</title>'
        f'<desc id="{uid}d">{escape(picture.about)}</desc>'
        f"{body(picture, uid, letter=letter)}</svg>"
    )


def standalone(
    picture: Picture, *, width: int = 760, letter: Callable[[int], str] | None = None
) -> str:
    """A drawing as a file, on a ground of its own."""
    _, high = _tops_of(picture)
    edge = 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="cs-pic" role="img" aria-labelledby="t d"'
        f' width="{width}" height="{high + 2 * edge}" viewBox="0 0 {width} {high + 2 * edge}">'
        f'<title id="t">{escape(picture.title)}</title><desc id="d">{escape(picture.about)}</desc>'
        f"<style>{STYLE}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="var(--ground)"/>'
        f'<svg x="{edge}" y="{edge}" width="{width - 2 * edge}" height="{high}" overflow="visible">'
        f"{body(picture, '', letter=letter)}</svg></svg>\n"
    )
