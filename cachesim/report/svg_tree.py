"""The lines of a tree in a picture: from a parent's end down to its children, and what ends there.

A filled circle is something to resume from, an empty dashed one stands where that is missing, a
crossed one where it is wrong; the strip under a bar is the node's window.
"""

from typing import Final

from cachesim.report.picture_bars import Branch

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
    """Where a label stands: in a tree above its bar, and towards the side where there is room."""
    if branch is None:
        return 'class="l" x="0" y="10"'
    level = 100 * branch.start / wide
    if level <= FARTHEST:
        return f'class="l in" x="{level:.5g}%" dx="{0 if branch.root else 4}" y="10"'
    end = max(100 * branch.end / wide, 100 - FARTHEST)
    return f'class="l in" x="{end:.5g}%" text-anchor="end" y="10"'


def branch_svg(branch: Branch, wide: int) -> str:
    """What joins a row to its parent's and its children's, drawn below the bars."""
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
    """What stands on a bar or beside it: the strip of a window, the mark at the end."""
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
