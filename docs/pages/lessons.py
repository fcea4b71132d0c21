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
from cachesim.report.svg import LINE, bar_kinds, hatches, legend_high, legend_svg, row_svg
from cachesim.report.texts import Bar
from pages.tables import linked

NAMED: Final = re.compile(r"\b(ik_llama\.cpp|llama\.cpp|mlx-lm) #\d+(?:, #\d+)*")
"""Issues as sentences name them: `llama.cpp #20225, #22384`."""


def pages() -> dict[str, Callable[[], str]]:
    """One page for each lesson, under the name of its file."""
    return {f"lessons/{lesson.file}": partial(_page, lesson) for lesson in all_lessons()}


_executed = cache(execute)


def _page(lesson: Lesson) -> str:
    """A page; one that asks before it shows a picture opens with the bars of its first run."""
    done = _executed(lesson)
    title, about, terminal, rest = page(done).split("\n\n", 3)
    first = next(part for part in done.parts if part.question or part.shown)
    opening = (
        [] if first.shown else [f'<figure class="memory">{_bars(lesson, numbers=False)}</figure>']
    )
    text = "\n\n".join([title, about, *opening, terminal, rest])
    return NAMED.sub(lambda found: linked(found[0], found[1]), text)


ROWS: Final = 3
"""Most requests of a lesson's picture in the index."""
GAP: Final = 6
"""Pixels between the bars and their legend."""
LETTER: Final = 0.022
"""Share of a card's width that a letter takes."""


def unbroken(title: str) -> str:
    """A title whose flags keep to one line: a browser breaks them at each hyphen."""
    return re.sub(r"--[a-z-]+", r'<span style="white-space: nowrap">\g<0></span>', escape(title))


def index() -> str:
    """A card for each lesson: requests of its first picture of a run, and its title as a link."""
    cards = [_card(lesson) for lesson in all_lessons()]
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


def _card(lesson: Lesson) -> str:
    return (
        f'<div class="card">{_bars(lesson, numbers=True)}'
        f'<p><a href="_generated/lessons/{lesson.file.removesuffix(".md")}.html">'
        f"{lesson.number}. {unbroken(lesson.title)}</a></p></div>"
    )


def _bars(lesson: Lesson, *, numbers: bool) -> str:
    """Requests of the first run; without numbers where a question is going to ask for them."""
    rows = _asked(first_picture(_executed(lesson)))[:ROWS]
    wide = max(bar.end for row in rows for bar in row.bars)
    uid, top = f"lesson{lesson.number}", LINE * len(rows)
    drawn = "".join(
        f'<svg class="r" y="{LINE * i}" width="100%" height="{LINE}">'
        f"{row_svg(_short(row, wide, numbers=numbers), wide, uid)}</svg>"
        for i, row in enumerate(rows)
    )
    told = ". ".join(f"{row.label}: {', '.join(bar.text for bar in row.bars)}" for row in rows)
    kinds = bar_kinds(rows)
    high = 0 if numbers else GAP + legend_high(kinds)
    legend = "" if numbers else f'<svg y="{top + GAP}" width="100%">{legend_svg(kinds, uid)}</svg>'
    name = told if numbers else "requests of this lesson"
    return (
        f'<svg class="cs-pic" role="img" aria-label="{escape(name)}" width="100%"'
        f' height="{top + high}">{hatches(uid)}{drawn}{legend}</svg>'
    )


def _short(row: Row, wide: int, *, numbers: bool) -> Row:
    """A row for a narrow picture: a bar that is too short for its words has their number."""

    def words(bar: Bar) -> str:
        room = (bar.end - bar.start) / wide / LETTER
        fitting = (bar.text, bar.text.partition(" ")[0], "") if numbers else ("",)
        return next(text for text in fitting if len(text) <= room)

    bars = tuple(replace(bar, text=words(bar)) for bar in row.bars)
    return replace(row, label=row.label.partition(":")[0], bars=bars)
