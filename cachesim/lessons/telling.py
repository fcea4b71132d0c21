"""A lesson told: its code is run in order, and its sentences get their numbers."""

import io
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cachesim.errors import ContractError
from cachesim.lessons.lesson import Exercise, Lesson, Passage

_SLOT: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A part with what it printed, or with its numbers filled in."""

    part: Passage
    text: str
    output: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldExercise:
    """An exercise, its answers computed."""

    title: str
    question: tuple[Told, ...]
    run: Told
    answers: tuple[str, ...]
    explanation: tuple[Told, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldLesson:
    """A whole lesson, told."""

    lesson: Lesson
    parts: tuple[Told, ...]
    shared: tuple[Told, ...]
    exercises: tuple[ToldExercise, ...]


@cache
def told(lesson: Lesson) -> ToldLesson:
    """Run a lesson from its first block of code to its last answer."""
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
        run=run,
        answers=tuple(str(each) for each in many),
        explanation=_told(lesson, exercise.explanation, names),
    )


def _told(lesson: Lesson, parts: tuple[Passage, ...], names: dict[str, Any]) -> tuple[Told, ...]:
    return tuple(_tell(lesson, part, names) for part in parts)


def _tell(lesson: Lesson, part: Passage, names: dict[str, Any]) -> Told:
    """One part; code prints, prose is filled in with what the code before it found out."""
    if part.kind in {"code", "answer"}:
        printed = io.StringIO()
        # blank lines first: a traceback then names the line of the lesson's own file
        code = compile("\n" * (part.line - 1) + part.text, lesson.file, "exec")
        with redirect_stdout(printed):
            exec(code, names)  # noqa: S102 - our own lessons, shipped with the package
        return Told(part=part, text=part.text, output=printed.getvalue().rstrip("\n"))

    def filled(slot: re.Match[str]) -> str:
        return str(eval(slot[1].strip(), names))  # noqa: S307 - the same

    return Told(part=part, text=_SLOT.sub(filled, part.text))
