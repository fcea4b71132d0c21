"""The first screen of the site: two chats in five frames, one slider and the fix, built in advance.

The page holds the frames of every position of the slider; `home.js` shows one of them. Without
JavaScript it shows the last one.
"""

import json
from html import escape
from typing import Final

from two_codes import DRAWN, LENGTHS, SHOWN, Told, told

from cachesim.report.svg import LINE, hatches, row_svg

UID: Final = "home"


def page() -> str:
    """The chats, the two rows of memory, the controls, and the frames as JSON: one line."""
    runs = [[told(length, fixed=fixed) for length in LENGTHS] for fixed in (False, True)]
    pool: dict[str, int] = {}
    stories = [
        [
            [
                [
                    moment.word,
                    moment.sentence,
                    moment.answered,
                    [pool.setdefault(row_svg(row, DRAWN, UID), len(pool)) for row in moment.rows],
                ]
                for moment in story.moments
            ]
            for story in of_fix
        ]
        for of_fix in runs
    ]
    replies = [[[story.reply, story.right] for story in of_fix] for of_fix in runs]
    data = json.dumps(
        {"lengths": LENGTHS, "stories": stories, "replies": replies, "pool": list(pool)},
        separators=(",", ":"),
    ).replace("</", "<\\/")
    first = runs[0][LENGTHS.index(SHOWN)]
    rights = [
        length for length, story in zip(LENGTHS, runs[0], strict=True) if story.reply == story.right
    ]
    return (
        f'<div class="first">{_chats(first)}'
        f'<p class="said" role="status">{escape(first.moments[-1].sentence)}</p>'
        f"{_memory(first)}{_controls(first, max(rights))}"
        f'<script type="application/json">{data}</script></div>\n'
    )


def _chats(story: Told) -> str:
    a, begins, asks = map(escape, story.chats)
    a = a.replace(story.told_a, f'<mark class="a">{story.told_a}</mark>')
    begins, asks = (
        chat.replace(story.right, f'<mark class="b">{story.right}</mark>')
        for chat in (begins, asks)
    )
    return (
        f'<div class="chats"><p class="a"><b>Chat A</b>{a}<span class="reply">{story.told_a}'
        f' <i class="ok">✓</i></span></p><p class="b"><b>Chat B</b>{begins}'
        f' <i>… <span class="long">{SHOWN}</span> more words</i><br>{asks}<span class="reply">'
        f'<span class="told">{story.reply} <i class="bad">✗ that is A\'s code,'
        f" B's is {story.right}</i></span></span></p></div>"
    )


def _memory(story: Told) -> str:
    rows = "".join(
        f'<svg class="r" y="{LINE * i}" width="100%" height="{LINE}">'
        f"{row_svg(row, DRAWN, UID)}</svg>"
        for i, row in enumerate(story.moments[-1].rows)
    )
    about = escape(" ".join(moment.sentence for moment in story.moments))
    return (
        f'<svg class="cs-pic" role="img" aria-label="{about}" width="100%" height="{2 * LINE}"'
        f' xmlns="http://www.w3.org/2000/svg">{hatches(UID)}{rows}</svg>'
    )


def _controls(story: Told, right: int) -> str:
    steps = "".join(
        f'<button type="button" data-frame="{i}">{i + 1} {escape(moment.word)}</button>'
        for i, moment in enumerate(story.moments)
    )
    return (
        f'<p class="frames" hidden><button type="button" class="play">▶ Play</button>{steps}</p>'
        '<p class="change" hidden><label>B sends <output>'
        f'{SHOWN}</output> more words <input type="range" min="0" max="{len(LENGTHS) - 1}"'
        f' value="{LENGTHS.index(SHOWN)}"></label>'
        f'<span class="hint">{right} or fewer: right</span>'
        '<label><input type="checkbox"> with the fix, which drops this checkpoint</label></p>'
    )
