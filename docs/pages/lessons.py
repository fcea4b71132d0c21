"""The lessons as pages, executed again so that every number is current, and their index."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from html import escape
from typing import Final

from cachesim.learn import ExecutedLesson, Lesson, execute, page
from cachesim.learn import lessons as all_lessons
from cachesim.learn.drawing import Boxes, Control, Drawn
from cachesim.report.picture import Picture, Row
from cachesim.report.svg import LINE, hatches, row_svg
from cachesim.report.texts import Bar
from pages.tables import linked

NAMED: Final = re.compile(r"\b(ik_llama\.cpp|llama\.cpp|mlx-lm) #\d+(?:, #\d+)*")
"""Issues as sentences name them: `llama.cpp #20225, #22384`."""


def pages() -> dict[str, Callable[[], str]]:
    """One page for each lesson, under the name of its file."""
    return {f"lessons/{lesson.file}": partial(_page, lesson) for lesson in all_lessons()}


_executed = cache(execute)


def _page(lesson: Lesson) -> str:
    return NAMED.sub(lambda found: linked(found[0], found[1]), page(_executed(lesson)))


ROWS: Final = 3
"""Most requests of a lesson's picture in the index."""
LETTER: Final = 0.022
"""Share of a card's width that a letter takes."""


def index() -> str:
    """A card for each lesson: requests of its first picture of a run, and its title as a link."""
    cards = [_card(lesson, first_picture(_executed(lesson))) for lesson in all_lessons()]
    return '<div class="cards lessons">\n' + "\n".join(cards) + "\n</div>\n"


def first_picture(lesson: ExecutedLesson) -> Picture:
    """The first run of several requests that a lesson draws; of a control, its first value."""
    shown: list[Drawn | Boxes] = []
    for part in lesson.parts:
        match part.shown:
            case Control() as control:
                shown += [picture for _, _, picture in control.shown]
            case Drawn() | Boxes() as one:
                shown.append(one)
    return next(
        each.picture for each in shown if isinstance(each, Drawn) and len(_asked(each.picture)) > 1
    )


def _asked(picture: Picture) -> list[Row]:
    return [row for row in picture.rows if row.kind == "request"]


def _card(lesson: Lesson, picture: Picture) -> str:
    rows = _asked(picture)[:ROWS]
    wide = max(bar.end for row in rows for bar in row.bars)
    uid = f"lesson{lesson.number}"
    drawn = "".join(
        f'<svg class="r" y="{LINE * i}" width="100%" height="{LINE}">'
        f"{row_svg(_short(row, wide), wide, uid)}</svg>"
        for i, row in enumerate(rows)
    )
    told = ". ".join(f"{row.label}: {', '.join(bar.text for bar in row.bars)}" for row in rows)
    return (
        f'<div class="card"><svg class="cs-pic" role="img" aria-label="{escape(told)}"'
        f' width="100%" height="{LINE * len(rows)}">{hatches(uid)}{drawn}</svg>'
        f'<p><a href="_generated/lessons/{lesson.file.removesuffix(".md")}.html">'
        f"{lesson.number}. {escape(lesson.title)}</a></p></div>"
    )


def _short(row: Row, wide: int) -> Row:
    """A row for a narrow picture: a bar that is too short for its words has their number."""

    def words(bar: Bar) -> str:
        room = (bar.end - bar.start) / wide / LETTER
        fitting = (bar.text, bar.text.partition(" ")[0], "")
        return next(text for text in fitting if len(text) <= room)

    bars = tuple(replace(bar, text=words(bar)) for bar in row.bars)
    return replace(row, label=row.label.partition(":")[0], bars=bars)
