"""A lesson as a page of the documentation: the same steps, in Markdown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from cachesim.lab.lessons.drawing import Control, Drawn
from cachesim.lab.lessons.lesson import EXERCISES
from cachesim.lab.lessons.telling import Asked, Told, ToldExercise, ToldLesson

_CODE: Final = re.compile(r"`([^`]+)`")


def page(lesson: ToldLesson) -> str:
    """The whole page; answers and explanations are folded away until a reader opens them."""
    source = lesson.lesson
    blocks = [f"# {source.number}. {source.title}", f"*{source.about}*"]
    terminal = f"In the terminal: `cachesim learn {source.number}`."
    blocks += [f"{terminal} Every number on this page was computed when the page was made."]
    blocks += list(_revealed(lesson.parts))
    blocks += [f"## {EXERCISES}", f"To be marked: `cachesim learn {source.number} --check`."]
    blocks += list(_blocks(lesson.shared))
    for exercise in lesson.exercises:
        blocks += list(_exercise(exercise))
    return "\n\n".join(blocks) + "\n"


def _exercise(exercise: ToldExercise) -> Iterator[str]:
    yield f"### {exercise.title}"
    yield from _blocks(exercise.question)
    yield "<details>\n<summary>The answer, and why</summary>"
    yield f"**{', '.join(exercise.answers)}**"
    yield from _blocks((exercise.run, *exercise.explanation))
    yield "</details>"


def _revealed(parts: Sequence[Told]) -> Iterator[str]:
    is_folded = False
    for number, told in enumerate(parts):
        if told.asks is not None or told.part.kind == "heading":
            if is_folded:
                yield "</details>"
            is_folded = told.asks is not None
        if told.asks is not None:
            yield _question(told.asks)
            yield '<details class="reveal">\n<summary>Run it</summary>'
        elif told.shown is not None:
            yield _shown(told.shown, f"p{number}")
        else:
            yield from _blocks((told,))
    if is_folded:
        yield "</details>"


def _question(asks: Asked) -> str:
    """A form: a number to commit to, a hint, and then the run."""
    hint = f'<p class="hint" hidden>{_marked(asks.hint)}</p>' if asks.hint else ""
    more = '<button type="button" class="more">Hint</button>' if asks.hint else ""
    return (
        f'<form class="ask" data-answer="{escape(asks.answer)}">'
        f"<p><strong>Before it runs:</strong> {_marked(asks.question)}</p>"
        '<p><label>Your answer <input size="8" autocomplete="off"></label> '
        f'<button type="submit">Commit</button> {more}</p>{hint}<p class="said" role="status"></p>'
        "</form>"
    )


def _marked(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _shown(shown: Drawn | Control, uid: str) -> str:
    """A picture; or one for each value of a control, of which a script shows the chosen one."""
    if isinstance(shown, Drawn):
        return f'<figure class="memory">{shown.svg(uid)}</figure>'
    first = "".join(
        f'<figure class="memory" data-value="{escape(value)}"{" hidden" if i else ""}>'
        f"<figcaption>{escape(shown.label)}: {escape(value)}; {escape(said)}</figcaption>"
        f"{picture.svg(f'{uid}v{i}')}</figure>"
        for i, (value, said, picture) in enumerate(shown.shown)
    )
    most = len(shown.shown) - 1
    return (
        f'<div class="sweep"><label>Change it: {escape(shown.label)} '
        f'<input type="range" min="0" max="{most}" value="0"></label>{first}</div>'
    )


def _blocks(parts: Iterable[Told]) -> Iterator[str]:
    for told in parts:
        if told.part.kind in {"heading", "prose"}:
            yield told.text
            continue
        if told.part.kind == "console":
            yield f"```console\n{told.text}\n```"
            continue
        yield f"```python\n{told.text}\n```"
        if told.output:
            yield f"```text\n{told.output}\n```"
