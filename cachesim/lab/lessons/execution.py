"""Execution of a lesson: its code runs in order, and its sentences get their numbers."""

import io
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cachesim.errors import ContractError
from cachesim.lab.lessons.drawing import Boxes, Control, Drawn
from cachesim.lab.lessons.lesson import Exercise, Lesson, Part

_SLOT: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question before a run: its text, a hint, and the run's result."""

    text: str
    hint: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedPart:
    """A part with its output, or with its numbers filled in."""

    source: Part
    text: str
    output: str = ""
    shown: Boxes | Drawn | Control | None = None
    question: Question | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedExercise:
    """An exercise with its computed answers."""

    title: str
    question: tuple[ExecutedPart, ...]
    hint: str
    run: ExecutedPart
    answers: tuple[str, ...]
    explanation: tuple[ExecutedPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedLesson:
    """An executed lesson."""

    lesson: Lesson
    parts: tuple[ExecutedPart, ...]
    shared: tuple[ExecutedPart, ...]
    exercises: tuple[ExecutedExercise, ...]


@cache
def execute(lesson: Lesson) -> ExecutedLesson:
    """Execute a lesson from its first block of code to its last answer."""
    names: dict[str, Any] = {"__name__": "lesson"}
    return ExecutedLesson(
        lesson=lesson,
        parts=_execute_parts(lesson, lesson.parts, names),
        shared=_execute_parts(lesson, lesson.shared, names),
        exercises=tuple(_exercise(lesson, each, names) for each in lesson.exercises),
    )


def _exercise(lesson: Lesson, exercise: Exercise, names: dict[str, Any]) -> ExecutedExercise:
    question = _execute_parts(lesson, exercise.question, names)
    names.pop("answer", None)
    run = _execute(lesson, exercise.answer, names)
    answer = names.get("answer")
    if answer is None:
        msg = f"{lesson.file}:{exercise.answer.line}: this code must set `answer`"
        raise ContractError(msg)
    many = answer if isinstance(answer, tuple | list) else (answer,)
    return ExecutedExercise(
        title=exercise.title,
        question=question,
        hint=exercise.hint,
        run=run,
        answers=tuple(str(each) for each in many),
        explanation=_execute_parts(lesson, exercise.explanation, names),
    )


def _execute_parts(
    lesson: Lesson, parts: tuple[Part, ...], names: dict[str, Any]
) -> tuple[ExecutedPart, ...]:
    """Execute each part in order; a question is answered by the code after it."""
    found: list[ExecutedPart] = []
    waiting: list[int] = []
    for part in parts:
        if part.kind == "question":
            waiting.append(len(found))
            found.append(ExecutedPart(source=part, text=part.text))
            continue
        found.append(_execute(lesson, part, names))
        if part.kind == "code":
            for at in waiting:
                found[at] = _question_of(lesson, found[at].source, names)
            waiting.clear()
    if waiting:
        msg = f"{lesson.file}: a question must stand before the code that answers it"
        raise ContractError(msg)
    return tuple(found)


def _question_of(lesson: Lesson, part: Part, names: dict[str, Any]) -> ExecutedPart:
    body, equals, expression = part.text.rpartition("\n= ")
    if not equals:
        msg = f"{lesson.file}:{part.line}: a question ends with a line `= expression`"
        raise ContractError(msg)
    text, _, hint = body.partition("\nHint: ")
    answer = str(eval(expression, names))
    question = Question(text=" ".join(text.split()), hint=" ".join(hint.split()), answer=answer)
    return ExecutedPart(source=part, text=question.text, question=question)


def _execute(lesson: Lesson, part: Part, names: dict[str, Any]) -> ExecutedPart:
    if part.kind in {"picture", "control"}:
        names.pop(part.kind, None)
        exec(compile("\n" * (part.line - 1) + part.text, lesson.file, "exec"), names)
        shown = names.get(part.kind)
        if not isinstance(shown, Boxes | Drawn | Control):
            msg = f"{lesson.file}:{part.line}: this code must set `{part.kind}`"
            raise ContractError(msg)
        return ExecutedPart(source=part, text="", shown=shown)
    if part.kind in {"code", "answer"}:
        printed = io.StringIO()
        # blank lines first: a traceback then names the line of the lesson's own file
        code = compile("\n" * (part.line - 1) + part.text, lesson.file, "exec")
        with redirect_stdout(printed):
            exec(code, names)
        return ExecutedPart(source=part, text=part.text, output=printed.getvalue().rstrip("\n"))

    def filled(slot: re.Match[str]) -> str:
        return str(eval(slot[1].strip(), names))

    return ExecutedPart(source=part, text=_SLOT.sub(filled, part.text))
