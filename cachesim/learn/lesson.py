"""A lesson's source, and its execution: code runs in order, and sentences get their numbers.

The source is Markdown, parsed into headings, prose, code and exercises.

# Title                     the first paragraph says what the lesson is about
```python                   shown and run
```python picture           draws: run, its picture shown, its code not
```python control           the same, with a number that a reader changes
```question                 asked before the code that follows is run: the question, perhaps
                            a line `Hint: ...`, and at its end `= expression`
```python answer            the answers of an exercise: run, and shown only then
```console                  a command for the reader to try, shown and not run
## Predict, run, explain    from here on each `###` is an exercise: a question, its
                            perhaps a paragraph `Hint: ...`, its answer, and, after the
                            answer, the explanation; what stands before the first holds
                            for all of them
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias

from cachesim.errors import ContractError, InputError
from cachesim.learn.drawing import Boxes, Control, Drawn

EXERCISES: Final = "Predict, run, explain"
"""The heading of the exercises."""
HINT: Final = "Hint: "

_FENCE: Final = re.compile(r"```(?P<words>.*)")
_NUMBER: Final = re.compile(r"(?P<number>\d+)-.*\.md")

Kind: TypeAlias = Literal[
    "heading", "prose", "code", "answer", "console", "picture", "control", "question"
]

_KINDS: Final[dict[str, Kind]] = {
    "python": "code",
    "python answer": "answer",
    "python picture": "picture",
    "python control": "control",
    "question": "question",
    "console": "console",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a lesson; `line` is its first line in the file."""

    kind: Kind
    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A question, the code that answers it, and the explanation."""

    title: str
    question: tuple[Part, ...]
    hint: str
    answer: Part
    explanation: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A parsed lesson file."""

    number: int
    file: str
    title: str
    about: str
    parts: tuple[Part, ...]  # from the second paragraph on
    shared: tuple[Part, ...]  # what holds for all exercises
    exercises: tuple[Exercise, ...]


def lessons() -> tuple[Lesson, ...]:
    """All lessons, in order."""
    return tuple(_read(number) for number in sorted(_names()))


def lesson(number: int) -> Lesson:
    """Lesson by its number."""
    if number not in _names():
        known = ", ".join(str(name) for name in sorted(_names()))
        raise InputError(f"there is no lesson {number}; there are {known}")
    return _read(number)


@cache
def _names() -> dict[int, str]:
    found = (
        _NUMBER.fullmatch(path.name) for path in files(__package__).joinpath("texts").iterdir()
    )
    return {int(match["number"]): match.string for match in found if match}


@cache
def _read(number: int) -> Lesson:
    name = _names()[number]
    text = files(__package__).joinpath("texts", name).read_text(encoding="utf-8")
    return parsed(text, number=number, file=name)


def parsed(text: str, *, number: int, file: str) -> Lesson:
    """A lesson parsed from its text."""
    parts = list(parts_of(text))
    if len(parts) < 2 or not parts[0].text.startswith("# ") or parts[1].kind != "prose":
        msg = f"{file} must begin with a title and with a paragraph that says what it is about"
        raise ContractError(msg)
    end = next((i for i, part in enumerate(parts) if part.text == f"## {EXERCISES}"), len(parts))
    return Lesson(
        number=number,
        file=file,
        title=parts[0].text.removeprefix("# "),
        about=" ".join(parts[1].text.split()),
        parts=tuple(parts[2:end]),
        shared=tuple(takewhile(lambda part: part.kind != "heading", parts[end + 1 :])),
        exercises=tuple(_exercises(parts[end + 1 :], file)),
    )


def parts_of(text: str) -> Iterator[Part]:
    """Headings, paragraphs and blocks of code, in order."""
    lines = iter(enumerate(text.splitlines(), 1))
    held: list[str] = []
    start = 0
    for number, line in lines:
        fence = _FENCE.fullmatch(line)
        if held and (fence or not line.strip()):
            yield Part(kind="prose", text="\n".join(held), line=start)
            held = []
        if fence:
            body = []
            for _, inner in lines:
                if inner == "```":
                    break
                body.append(inner)
            yield Part(kind=_KINDS[fence["words"]], text="\n".join(body), line=number + 1)
        elif line.startswith("#"):
            yield Part(kind="heading", text=line, line=number)
        elif line.strip():
            start = start if held else number
            held.append(line)
    if held:
        yield Part(kind="prose", text="\n".join(held), line=start)


def _exercises(parts: list[Part], file: str) -> Iterator[Exercise]:
    starts = [i for i, part in enumerate(parts) if part.kind == "heading"]
    for start, stop in zip(starts, [*starts[1:], len(parts)], strict=True):
        body = parts[start + 1 : stop]
        answers = [i for i, part in enumerate(body) if part.kind == "answer"]
        if len(answers) != 1:
            msg = f"{file}: exercise {parts[start].text!r} needs one answer, it has {len(answers)}"
            raise ContractError(msg)
        at = answers[0]
        hints = [part.text for part in body[:at] if part.text.startswith(HINT)]
        yield Exercise(
            title=parts[start].text.removeprefix("### "),
            question=tuple(part for part in body[:at] if not part.text.startswith(HINT)),
            hint=" ".join(" ".join(hints).removeprefix(HINT).split()),
            answer=body[at],
            explanation=tuple(body[at + 1 :]),
        )


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
        exercises=tuple(_exercise(lesson, exercise, names) for exercise in lesson.exercises),
    )


def _exercise(lesson: Lesson, exercise: Exercise, names: dict[str, Any]) -> ExecutedExercise:
    question = _execute_parts(lesson, exercise.question, names)
    names.pop("answer", None)
    run = _execute(lesson, exercise.answer, names)
    answer = names.get("answer")
    if answer is None:
        raise ContractError(f"{lesson.file}:{exercise.answer.line}: this code must set `answer`")
    many = answer if isinstance(answer, tuple | list) else (answer,)
    return ExecutedExercise(
        title=exercise.title,
        question=question,
        hint=exercise.hint,
        run=run,
        answers=tuple(str(number) for number in many),
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
        raise ContractError(f"{lesson.file}: a question must stand before the code that answers it")
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
            raise ContractError(f"{lesson.file}:{part.line}: this code must set `{part.kind}`")
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
    return sum(len(exercise.answers) for exercise in lesson.exercises)


def mark(lesson: ExecutedLesson, given: Sequence[str]) -> tuple[Mark, ...]:
    """Assign the answers to the exercises, in order."""
    most = questions(lesson)
    if len(given) > most:
        titles = "; ".join(
            f"{exercise.title} ({len(exercise.answers)})" for exercise in lesson.exercises
        )
        raise InputError(
            f"lesson {lesson.lesson.number} asks for {most} answers and {len(given)} were given; "
            f"its questions are: {titles}"
        )
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
