"""A lesson as a Markdown page of the documentation."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from cachesim.learn.drawing import Boxes, Control, Drawn
from cachesim.learn.lesson import EXERCISES, ExecutedExercise, ExecutedLesson, ExecutedPart

_CODE: Final = re.compile(r"`([^`]+)`")


def page(lesson: ExecutedLesson) -> str:
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


def _exercise(exercise: ExecutedExercise) -> Iterator[str]:
    yield f"### {exercise.title}"
    yield from _blocks(exercise.question)
    yield _form(exercise.answers, exercise.hint)
    yield "<details>\n<summary>The answer, and why</summary>"
    yield f"**{', '.join(exercise.answers)}**"
    yield from _blocks((exercise.run, *exercise.explanation))
    yield "</details>"


def _revealed(parts: Sequence[ExecutedPart]) -> Iterator[str]:
    is_folded = False
    for number, part in enumerate(parts):
        if part.question is not None or part.source.kind == "heading":
            if is_folded:
                yield "</details>"
            is_folded = part.question is not None
        if part.question is not None:
            yield _form((part.question.answer,), part.question.hint, part.question.text)
            yield '<details class="reveal">\n<summary>Run it</summary>'
        elif part.shown is not None:
            yield _shown(part.shown, f"p{number}", part.source.text)
        else:
            yield from _blocks((part,))
    if is_folded:
        yield "</details>"


def _form(answers: Sequence[str], hint: str, question: str = "") -> str:
    many = len(answers) > 1
    fields = " ".join(
        f"<label>{f'Answer {number}' if many else 'Your answer'} "
        '<input size="8" autocomplete="off" autocapitalize="off"></label>'
        for number in range(1, len(answers) + 1)
    )
    label = f"<p><strong>Before it runs:</strong> {_marked(question)}</p>" if question else ""
    shown = f'<p class="hint" hidden>Hint: {_marked(hint)}</p>' if hint else ""
    more = '<button type="button" class="more">Hint</button>' if hint else ""
    return (
        f'<form class="ask" data-answers="{escape(json.dumps(answers))}">{label}'
        f'<p>{fields} <button type="submit">Check</button> {more}</p>{shown}'
        '<p class="said" role="status"></p></form>'
    )


def _marked(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _shown(shown: Boxes | Drawn | Control, uid: str, code: str) -> str:
    """A picture; or one for each value of a control, selected by a script."""
    if not isinstance(shown, Control):
        attribute = escape(code).replace("\n", "&#10;")  # blank lines end HTML in Markdown
        figure = f'<figure class="memory" id="{uid}" data-code="{attribute}">'
        return f"{figure}{shown.svg(uid)}{_link(shown.link)}</figure>"
    first = "".join(
        f'<figure class="memory" data-value="{escape(value)}"{" hidden" if i else ""}>'
        f"<figcaption><b>{escape(value)}</b>: {escape(said)}</figcaption>"
        f"{picture.svg(f'{uid}v{i}')}{_link(picture.link)}</figure>"
        for i, (value, said, picture) in enumerate(shown.shown)
    )
    most = len(shown.shown) - 1
    return (
        f'<div class="sweep"><label>Change it: {escape(shown.label)} '
        f'<input type="range" min="0" max="{most}" value="0"></label>{first}</div>'
    )


def _link(fragment: str) -> str:
    address = f"../../playground/index.html#{fragment}"
    return f'<p><a href="{address}">In the playground</a></p>' if fragment else ""


def _blocks(parts: Iterable[ExecutedPart]) -> Iterator[str]:
    for part in parts:
        if part.source.kind in {"heading", "prose"}:
            yield part.text
            continue
        if part.source.kind == "console":
            yield f"```console\n{part.text}\n```"
            continue
        yield f"```python\n{part.text}\n```"
        if part.output:
            yield f"```text\n{part.output}\n```"
