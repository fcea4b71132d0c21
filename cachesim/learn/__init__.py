"""Executable lessons: prose and code in one file each, every number computed.

`texts/` holds them, as Markdown. A block of Python is run, and its output shown below; `{{ ... }}`
in a sentence is computed too. The exercises at the end hold their own answers as code.
"""

from cachesim.learn.lesson import (
    ExecutedExercise,
    ExecutedLesson,
    ExecutedPart,
    Lesson,
    Mark,
    Question,
    execute,
    is_right,
    lesson,
    lessons,
    mark,
    questions,
)
from cachesim.learn.page import page

__all__ = [
    "ExecutedExercise", "ExecutedLesson", "ExecutedPart", "Lesson", "Mark", "Question",
    "execute", "is_right", "lesson", "lessons", "mark", "page", "questions",
]  # fmt: skip
