"""`cachesim learn`: lessons in the terminal, with marked exercises."""

import sys
from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.errors import InputError
from cachesim.learn import (
    ExecutedExercise,
    ExecutedLesson,
    Question,
    execute,
    is_right,
    lesson,
    lessons,
    mark,
    terminal,
)
from cachesim.report.consoles import notes, results, show


def learn_command(
    number: Annotated[int | None, Parameter(help="The number of a lesson.")] = None,
    *answers: Annotated[str, Parameter(help="With --check: your answers, in order.")],
    check: Annotated[bool, Parameter(help="Ask the exercises, or mark the answers given.")] = False,
    whole: Annotated[
        bool, Parameter(name="--all", help="Print the whole lesson without questions.")
    ] = False,
) -> int:
    """Take a lesson: predict a result, then run its code.

    Without a number the lessons are listed. If the output is a pipe, no question is asked.

    Example: cachesim learn 4 --check 1 2 3
    """
    if number is None:
        if check:
            raise InputError("name the lesson to mark, as in cachesim learn 4 --check")
        show(results(), terminal.contents(lessons()))
        return AS_EXPECTED
    if answers and not check:
        msg = f"to have answers marked write cachesim learn {number} --check {' '.join(answers)}"
        raise InputError(msg)
    asked = lesson(number)
    with notes().status(f"running lesson {number}"):
        chosen = execute(asked)
    if not check and not whole and sys.stdin.isatty() and sys.stdout.isatty():
        return _play(chosen)
    if not check:
        show(results(), terminal.whole(chosen))
        return AS_EXPECTED
    if not answers and sys.stdin.isatty():
        return _talk(chosen)
    given = answers or (sys.stdin.read(),)
    return _mark(chosen, tuple(word for words in given for word in words.replace(",", " ").split()))


def _play(chosen: ExecutedLesson) -> int:
    """Show a lesson, and wait before each run for the reader's prediction."""
    screen, right, n_questions = results(), 0, 0
    for piece, question in terminal.until_questions(chosen):
        show(screen, piece)
        if question is None:
            continue
        prediction = _predicted(question)
        if prediction is None:
            return AS_EXPECTED
        n_questions += 1
        if prediction and question.hint and not is_right(prediction, question.answer):
            notes().print(f"Not yet. Hint: {question.hint}")
            prediction = _predicted(question) or prediction
        right += is_right(prediction, question.answer)
        word = "yes" if is_right(prediction, question.answer) else f"the run says {question.answer}"
        show(screen, Text(f"{prediction or 'no answer'}: {word}", style="name"), Text(""))
    if n_questions:
        show(screen, f"{right} of {n_questions} predicted")
    show(screen, f"exercises: cachesim learn {chosen.lesson.number} --check")
    return AS_EXPECTED


def _predicted(question: Question) -> str | None:
    """The reader's prediction; `?` prints the hint, end of input ends the lesson."""
    notes().print(Text(f"Before it runs: {question.text}", style="name"))
    while True:
        sys.stderr.write("your answer (? for a hint, Enter to see): ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return None
        if line.strip() != "?":
            return line.strip()
        notes().print(question.hint or "there is no hint here")


def _mark(chosen: ExecutedLesson, answers: tuple[str, ...]) -> int:
    if not answers:
        msg = "there are no answers to mark: give them as arguments, or one per line on stdin"
        raise InputError(msg)
    marks = mark(chosen, answers)
    show(results(), *(terminal.marked(i, mark) for i, mark in enumerate(marks, 1)))
    return _summed_up(mark.is_right for mark in marks)


def _talk(chosen: ExecutedLesson) -> int:
    screen, right = results(), []
    show(screen, *terminal.shared(chosen))
    for number, exercise in enumerate(chosen.exercises, 1):
        show(screen, *terminal.question_of(number, exercise))
        alone = ExecutedLesson(lesson=chosen.lesson, parts=(), shared=(), exercises=(exercise,))
        result = mark(alone, _answers(exercise))[0]
        if exercise.hint and not result.is_right and not result.is_open:
            notes().print(f"Not yet. Hint: {exercise.hint}")
            result = mark(alone, _answers(exercise) or list(result.given))[0]
        show(screen, Text(""), terminal.marked(number, result))
        right.append(result.is_right)
    return _summed_up(right)


def _answers(exercise: ExecutedExercise) -> list[str]:
    count = len(exercise.answers)
    ask = "your answer" if count == 1 else f"your {count} answers, with spaces between"
    wanted = f"{ask} (? for a hint): "
    while True:
        sys.stderr.write(wanted)
        sys.stderr.flush()
        line = sys.stdin.readline()
        words = line.replace(",", " ").split()
        if words == ["?"]:
            notes().print(exercise.hint or "there is no hint here")
        elif not line or len(words) in {0, count}:
            return words
        else:
            answers = "answer" if count == 1 else "answers"
            notes().print(f"{count} {answers} wanted, not {len(words)}")


def _summed_up(right: Iterable[bool]) -> int:
    marks = list(right)
    show(results(), f"{sum(marks)} of {len(marks)} exercises right")
    return AS_EXPECTED if all(marks) else NOT_AS_EXPECTED
