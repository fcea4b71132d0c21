"""Writes the lessons as notebooks: `python docs/make_notebooks.py FOLDER`, or `make notebooks`.

A cell of text has the numbers of the run, a cell of code is not run yet: the reader predicts first.
The answers of the exercises come in cells of their own.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cachesim.learn import Lesson, execute, lessons
from cachesim.learn.lesson import EXERCISES, ExecutedPart


def notebook(lesson: Lesson) -> dict[str, Any]:
    """A lesson in the notebook's format 4."""
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"language_info": {"name": "python"}},
        "cells": [_cell(*each, f"c{at}") for at, each in enumerate(_parts(lesson))],
    }


def _cell(kind: str, text: str, uid: str) -> dict[str, Any]:
    code = {"outputs": [], "execution_count": None} if kind == "code" else {}
    lines = text.splitlines(keepends=True)
    return {"cell_type": kind, "id": uid, "metadata": {}, "source": lines, **code}


def _parts(lesson: Lesson) -> Iterator[tuple[str, str]]:
    """Kind and text of each cell."""
    done = execute(lesson)
    yield "markdown", f"# {lesson.number}. {lesson.title}\n\n*{lesson.about}*"
    yield "markdown", "You need cachesim in this kernel: `pip install .` in its checkout."
    yield from _cells((*done.parts, *done.shared))
    yield "markdown", f"## {EXERCISES}"
    for each in done.exercises:
        yield "markdown", f"### {each.title}"
        yield from _cells(each.question)
        if each.hint:
            yield "markdown", f"*Hint: {each.hint}*"
        yield "markdown", "The next cell has the answer. Predict it first."
        yield from _cells((each.run, *each.explanation))


def _cells(parts: Iterable[ExecutedPart]) -> Iterator[tuple[str, str]]:
    for part in parts:
        kind = part.source.kind
        if part.question is not None:
            hint = f" *Hint: {part.question.hint}*" if part.question.hint else ""
            yield "markdown", f"**Before it runs:** {part.question.text}{hint}"
        elif kind in {"picture", "control"}:
            yield "code", f"{part.source.text}\n{kind}"
        elif kind == "console":
            yield "markdown", f"```\n{part.text}\n```"
        else:
            yield ("code" if kind in {"code", "answer"} else "markdown"), part.text


def main(folder: Path) -> None:
    """Write one file for each lesson."""
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in lessons():
        path = folder / f"{Path(lesson.file).stem}.ipynb"
        path.write_text(json.dumps(notebook(lesson), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
