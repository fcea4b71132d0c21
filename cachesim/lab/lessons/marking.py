"""Comparison of a reader's predictions with the run's results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cachesim.errors import InputError
from cachesim.lab.lessons.execution import ExecutedExercise, ExecutedLesson

SAME: Final = {"y": "yes", "true": "yes", "n": "no", "false": "no"}
"""Synonyms of an answer; `docs/static/lessons.js` has the same."""


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
        msg = (
            f"lesson {lesson.lesson.number} asks for {most} answers and {len(given)} were given; "
            f"its questions are: {_listed(lesson)}"
        )
        raise InputError(msg)
    return tuple(_marks(lesson, tuple(given)))


def _marks(lesson: ExecutedLesson, given: tuple[str, ...]) -> Iterator[Mark]:
    for exercise in lesson.exercises:
        count = len(exercise.answers)
        yield Mark(exercise=exercise, given=given[:count])
        given = given[count:]


def _listed(lesson: ExecutedLesson) -> str:
    return "; ".join(f"{each.title} ({len(each.answers)})" for each in lesson.exercises)


def is_right(given: str, answer: str) -> bool:
    """True if an answer equals the run's result."""
    return _plain(given) == _plain(answer)


def _plain(word: str) -> str:
    """Normalised answer: `Yes,`, `y` and `True` are `yes`, and `007` is `7`."""
    word = word.strip().strip("`'\",;.").lower()
    return str(int(word)) if word.lstrip("-").isdecimal() else SAME.get(word, word)
