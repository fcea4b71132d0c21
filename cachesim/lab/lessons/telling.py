"""Execution of a lesson: its code runs in order, and its sentences get their numbers."""

import io
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cachesim.errors import ContractError
from cachesim.lab.lessons.drawing import Boxes, Control, Drawn
from cachesim.lab.lessons.lesson import Exercise, Lesson, Passage

_SLOT: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question before a run: its text, a hint, and the run's result."""

    question: str
    hint: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A part with its output, or with its numbers filled in."""

    part: Passage
    text: str
    output: str = ""
    shown: Boxes | Drawn | Control | None = None
    asks: Asked | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldExercise:
    """An exercise with its computed answers."""

    title: str
    question: tuple[Told, ...]
    hint: str
    run: Told
    answers: tuple[str, ...]
    explanation: tuple[Told, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldLesson:
    """An executed lesson."""

    lesson: Lesson
    parts: tuple[Told, ...]
    shared: tuple[Told, ...]
    exercises: tuple[ToldExercise, ...]


@cache
def told(lesson: Lesson) -> ToldLesson:
    """Execute a lesson from its first block of code to its last answer."""
    names: dict[str, Any] = {"__name__": "lesson"}
    return ToldLesson(
        lesson=lesson,
        parts=_told(lesson, lesson.parts, names),
        shared=_told(lesson, lesson.shared, names),
        exercises=tuple(_exercise(lesson, each, names) for each in lesson.exercises),
    )


def _exercise(lesson: Lesson, exercise: Exercise, names: dict[str, Any]) -> ToldExercise:
    question = _told(lesson, exercise.question, names)
    names.pop("answer", None)
    run = _tell(lesson, exercise.answer, names)
    answer = names.get("answer")
    if answer is None:
        msg = f"{lesson.file}:{exercise.answer.line}: this code must set `answer`"
        raise ContractError(msg)
    many = answer if isinstance(answer, tuple | list) else (answer,)
    return ToldExercise(
        title=exercise.title,
        question=question,
        hint=exercise.hint,
        run=run,
        answers=tuple(str(each) for each in many),
        explanation=_told(lesson, exercise.explanation, names),
    )


def _told(lesson: Lesson, parts: tuple[Passage, ...], names: dict[str, Any]) -> tuple[Told, ...]:
    """Execute each part in order; a question is answered by the code after it."""
    found: list[Told] = []
    waiting: list[int] = []
    for part in parts:
        if part.kind == "question":
            waiting.append(len(found))
            found.append(Told(part=part, text=part.text))
            continue
        found.append(_tell(lesson, part, names))
        if part.kind == "code":
            for at in waiting:
                found[at] = _asked(lesson, found[at].part, names)
            waiting.clear()
    if waiting:
        msg = f"{lesson.file}: a question must stand before the code that answers it"
        raise ContractError(msg)
    return tuple(found)


def _asked(lesson: Lesson, part: Passage, names: dict[str, Any]) -> Told:
    text, equals, expression = part.text.rpartition("\n= ")
    if not equals:
        msg = f"{lesson.file}:{part.line}: a question ends with a line `= expression`"
        raise ContractError(msg)
    question, _, hint = text.partition("\nHint: ")
    answer = str(eval(expression, names))
    asks = Asked(question=" ".join(question.split()), hint=" ".join(hint.split()), answer=answer)
    return Told(part=part, text=asks.question, asks=asks)


def _tell(lesson: Lesson, part: Passage, names: dict[str, Any]) -> Told:
    if part.kind in {"picture", "control"}:
        names.pop(part.kind, None)
        exec(compile("\n" * (part.line - 1) + part.text, lesson.file, "exec"), names)
        shown = names.get(part.kind)
        if not isinstance(shown, Boxes | Drawn | Control):
            msg = f"{lesson.file}:{part.line}: this code must set `{part.kind}`"
            raise ContractError(msg)
        return Told(part=part, text="", shown=shown)
    if part.kind in {"code", "answer"}:
        printed = io.StringIO()
        # blank lines first: a traceback then names the line of the lesson's own file
        code = compile("\n" * (part.line - 1) + part.text, lesson.file, "exec")
        with redirect_stdout(printed):
            exec(code, names)
        return Told(part=part, text=part.text, output=printed.getvalue().rstrip("\n"))

    def filled(slot: re.Match[str]) -> str:
        return str(eval(slot[1].strip(), names))

    return Told(part=part, text=_SLOT.sub(filled, part.text))
