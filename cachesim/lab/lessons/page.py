"""A lesson as a Markdown page of the documentation."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from cachesim.lab.lessons.drawing import Boxes, Control, Drawn
from cachesim.lab.lessons.lesson import EXERCISES
from cachesim.lab.lessons.telling import Asked, Told, ToldExercise, ToldLesson

_CODE: Final = re.compile(r"`([^`]+)`")


def page(lesson: ToldLesson) -> str:
    """The whole page; answers and explanations are collapsed."""
    source = lesson.lesson
    blocks = [f"# {source.number}. {source.title}", f"*{source.about}*"]
    terminal = f"In the terminal: `cachesim learn {source.number}`."
    blocks += [f"{terminal} The code can be changed and run on this page."]
    blocks += list(_revealed(lesson.parts))
    check = f"In the terminal: `cachesim learn {source.number} --check`."
    blocks += [f"## {EXERCISES}", check]
    blocks += list(_blocks(lesson.shared))
    for exercise in lesson.exercises:
        blocks += list(_exercise(exercise))
    return "\n\n".join(blocks) + "\n"


def _exercise(exercise: ToldExercise) -> Iterator[str]:
    yield f"### {exercise.title}"
    yield from _blocks(exercise.question)
    yield _form(exercise.answers, exercise.hint)
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
            yield _shown(told.shown, f"p{number}", told.part.text)
        else:
            yield from _blocks((told,))
    if is_folded:
        yield "</details>"


def _question(asks: Asked) -> str:
    """A form: a number to predict, a hint, and the result."""
    return _form((asks.answer,), asks.hint, asks.question)


def _form(answers: Sequence[str], hint: str, question: str = "") -> str:
    """A field for each answer; a wrong answer shows the hint, a second one the result."""
    many = len(answers) > 1
    fields = " ".join(
        f"<label>{f'Answer {number}' if many else 'Your answer'} "
        '<input size="8" autocomplete="off" autocapitalize="off"></label>'
        for number in range(1, len(answers) + 1)
    )
    asked = f"<p><strong>Before it runs:</strong> {_marked(question)}</p>" if question else ""
    shown = f'<p class="hint" hidden>Hint: {_marked(hint)}</p>' if hint else ""
    more = '<button type="button" class="more">Hint</button>' if hint else ""
    return (
        f'<form class="ask" data-answers="{escape(json.dumps(answers))}">{asked}'
        f'<p>{fields} <button type="submit">Check</button> {more}</p>{shown}'
        '<p class="said" role="status"></p></form>'
    )


def _marked(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _shown(shown: Boxes | Drawn | Control, uid: str, code: str) -> str:
    """A picture; or one for each value of a control, selected by a script."""
    if not isinstance(shown, Control):
        figure = f'<figure class="memory" id="{uid}" data-code="{_attribute(code)}">'
        return f"{figure}{shown.svg(uid)}{_link(shown.link)}</figure>"
    first = "".join(
        f'<figure class="memory" data-value="{escape(value)}"{" hidden" if i else ""}>'
        f"<figcaption>{escape(shown.label)}: {escape(value)}; {escape(said)}</figcaption>"
        f"{picture.svg(f'{uid}v{i}')}{_link(picture.link)}</figure>"
        for i, (value, said, picture) in enumerate(shown.shown)
    )
    most = len(shown.shown) - 1
    return (
        f'<div class="sweep"><label>Change it: {escape(shown.label)} '
        f'<input type="range" min="0" max="{most}" value="0"></label>{first}</div>'
    )


def _attribute(code: str) -> str:
    """Code as an HTML attribute, without blank lines, which end HTML in Markdown."""
    return escape(code).replace("\n", "&#10;")


def _link(fragment: str) -> str:
    """The link to the playground, if it can open the run."""
    address = f"../../playground/index.html#{fragment}"
    return f'<p><a href="{address}">Playground</a></p>' if fragment else ""


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
