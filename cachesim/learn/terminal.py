"""A lesson in a terminal: wrapped prose, highlighted code, indented output."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from cachesim.learn.drawing import Boxes, Drawn
from cachesim.learn.lesson import (
    EXERCISES,
    ExecutedExercise,
    ExecutedLesson,
    ExecutedPart,
    Lesson,
    Mark,
    Question,
    questions,
)

_EMPHASIS: Final = re.compile(r"(\*\*|\*)(\w[^*`]*?)\1")
_ITEM: Final = re.compile(r"^(-|\d+\.) ", re.MULTILINE)


def contents(lessons: Iterable[Lesson]) -> RenderableType:
    """The list of lessons."""
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(justify="right", style="name")
    table.add_column(overflow="fold")
    for lesson in lessons:
        table.add_row(
            str(lesson.number), Group(Text(lesson.title, style="name"), Text(lesson.about))
        )
    hint = "cachesim learn 4 shows the fourth lesson; cachesim learn 4 --check marks your answers"
    return Group(table, Text(""), Text(hint, style="quiet"))


def whole(lesson: ExecutedLesson) -> RenderableType:
    """A lesson from its title to its last question, without answers."""
    source = lesson.lesson
    lines: list[RenderableType] = [
        _headed(f"{source.number}. {source.title}", line="="),
        Text(source.about, style="quiet"),
        Text(""),
        *_spaced(lesson.parts),
        _headed(EXERCISES),
        Text(""),
        *_spaced(lesson.shared),
    ]
    for number, exercise in enumerate(lesson.exercises, 1):
        lines += question_of(number, exercise)
    example = " ".join("?" * questions(lesson))
    lines += [Text(f"To have them marked: cachesim learn {source.number} --check {example}")]
    return Group(*lines)


def shared(lesson: ExecutedLesson) -> list[RenderableType]:
    """Names shared by all exercises."""
    return list(_spaced(lesson.shared))


def question_of(number: int, exercise: ExecutedExercise) -> list[RenderableType]:
    """A question."""
    return [
        Text(f"Exercise {number}: {exercise.title}", style="name"),
        Text(""),
        *_spaced(exercise.question),
    ]


def marked(number: int, each: Mark) -> RenderableType:
    """A marked exercise: the given answer, the result, the explanation."""
    answers, given = ", ".join(each.exercise.answers), ", ".join(each.given)
    title = f"Exercise {number}: {each.exercise.title}: "
    if each.is_open:
        return Group(Text(f"{title}not answered", style="lost"), Text(""))
    if each.is_right:
        verdict = Text(f"{title}right, {answers}", style="right")
    else:
        verdict = Text(f"{title}wrong, you answered {given}; it is {answers}", style="wrong")
    parts = (each.exercise.run, *each.exercise.explanation)
    hint = each.exercise.hint if not each.is_right else ""
    return Group(verdict, *([Text(f"Hint: {hint}")] if hint else []), Text(""), *_spaced(parts))


def until_questions(lesson: ExecutedLesson) -> Iterator[tuple[RenderableType, Question | None]]:
    """A lesson in parts, each up to a question to be answered first."""
    source = lesson.lesson
    held: list[ExecutedPart] = []
    title = _headed(f"{source.number}. {source.title}", line="=")
    before: list[RenderableType] = [title, Text(source.about, style="quiet"), Text("")]
    for part in lesson.parts:
        if part.question is None:
            held.append(part)
            continue
        yield Group(*before, *_spaced(held)), part.question
        held, before = [], []
    yield Group(*before, *_spaced(held)), None


def _spaced(parts: Iterable[ExecutedPart]) -> Iterator[RenderableType]:
    for part in parts:
        match part.source.kind:
            case "question":
                yield Text(f"Before it runs: {part.text}", style="name")
            case "picture" | "control":
                shown = part.shown
                if isinstance(shown, Boxes | Drawn):
                    yield Padding(Text(shown.text(), style="computed"), (0, 0, 0, 2))
                elif shown is not None:
                    yield Text(f"{shown.label}:", style="name")
                    for value, text, _ in shown.shown:
                        yield Padding(Text(f"{value:>4}  {text}"), (0, 0, 0, 2))
            case "heading":
                yield _headed(part.text.lstrip("# "))
            case "prose":
                yield _prose(part.text)
            case "console":
                yield Padding(Text(part.text), (0, 0, 0, 4))
            case _:
                code = Syntax(part.text, "python", theme="ansi_dark", word_wrap=True)
                yield Padding(code, (0, 0, 0, 4))
                if part.output:
                    yield Text("")
                    yield Padding(Text(part.output, style="computed"), (0, 0, 0, 2))
        yield Text("")


def _headed(text: str, *, line: str = "-") -> Text:
    return Text(f"{text}\n{line * len(text)}", style="name")


def _prose(text: str) -> RenderableType:
    """A wrapped paragraph; list items have hanging marks."""
    plain = _EMPHASIS.sub(r"\2", text)
    if not _ITEM.match(plain):
        return Text(" ".join(plain.split()))
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    marks = list(_ITEM.finditer(plain))
    for mark, end in zip(marks, [*(match.start() for match in marks[1:]), len(plain)], strict=True):
        table.add_row(mark[1], Text(" ".join(plain[mark.end() : end].split())))
    return table
