"""Execution of a lesson: its code runs in order, and its sentences get their numbers."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cachesim.errors import ContractError, InputError
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


# -- the check of an exercise ----------------------------------------------------------------------

SAME: Final = {"y": "yes", "true": "yes", "n": "no", "false": "no"}
NUMBERS: Final = tuple(
    "zero one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905 - a list is longer
)
"""Words for an answer; `docs/static/lessons.js` has the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A marked exercise; `given` may be shorter than the answers."""

    exercise: ExecutedExercise
    given: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """True if every answer was given and is right."""
        return tuple(map(_plain, self.given)) == tuple(map(_plain, self.exercise.answers))

    @property
    def is_open(self) -> bool:
        """True if no answer was given."""
        return not self.given


def questions(lesson: ExecutedLesson) -> int:
    """Number of answers of a lesson."""
    return sum(len(each.answers) for each in lesson.exercises)


def mark(lesson: ExecutedLesson, given: Sequence[str]) -> tuple[Mark, ...]:
    """Assign the answers to the exercises, in order."""
    most = questions(lesson)
    if len(given) > most:
        titles = "; ".join(f"{each.title} ({len(each.answers)})" for each in lesson.exercises)
        msg = (
            f"lesson {lesson.lesson.number} asks for {most} answers and {len(given)} were given; "
            f"its questions are: {titles}"
        )
        raise InputError(msg)
    return tuple(_marks(lesson, tuple(given)))


def _marks(lesson: ExecutedLesson, given: tuple[str, ...]) -> Iterator[Mark]:
    for exercise in lesson.exercises:
        count = len(exercise.answers)
        yield Mark(exercise=exercise, given=given[:count])
        given = given[count:]


def is_right(given: str, answer: str) -> bool:
    """True if an answer equals the run's result."""
    return _plain(given) == _plain(answer)


def _plain(word: str) -> str:
    """Normalised answer: `True` is `yes`, `007`, `7.0` and `seven` are `7`, `--a-flag` `a_flag`."""
    word = word.strip("`'\",;. \t\n").lower()
    if word.startswith("--"):  # a flag, as it is typed or as an option is named
        word = word.removeprefix("--").replace("-", "_")
    if word in NUMBERS:
        return str(NUMBERS.index(word))
    whole = re.fullmatch(r"(-?[0-9]+)(\.0*)?", word)
    return str(int(whole[1])) if whole else SAME.get(word, word)
