"""A lesson as a page of the documentation: the same steps, in Markdown."""

from collections.abc import Iterable, Iterator

from cachesim.lessons.lesson import EXERCISES
from cachesim.lessons.telling import Told, ToldExercise, ToldLesson


def page(lesson: ToldLesson) -> str:
    """The whole page; answers and explanations are folded away until a reader opens them."""
    source = lesson.lesson
    blocks = [f"# {source.number}. {source.title}", f"*{source.about}*"]
    terminal = f"In the terminal: `cachesim learn {source.number}`."
    blocks += [f"{terminal} Every number on this page was computed when the page was made."]
    blocks += list(_blocks(lesson.parts))
    blocks += [f"## {EXERCISES}", f"To be marked: `cachesim learn {source.number} --check`."]
    blocks += list(_blocks(lesson.shared))
    for exercise in lesson.exercises:
        blocks += list(_exercise(exercise))
    return "\n\n".join(blocks) + "\n"


def _exercise(exercise: ToldExercise) -> Iterator[str]:
    yield f"### {exercise.title}"
    yield from _blocks(exercise.question)
    yield "<details>\n<summary>The answer, and why</summary>"
    yield f"**{', '.join(exercise.answers)}**"
    yield from _blocks((exercise.run, *exercise.explanation))
    yield "</details>"


def _blocks(parts: Iterable[Told]) -> Iterator[str]:
    for told in parts:
        if told.part.kind in {"heading", "prose"}:
            yield told.text
            continue
        if told.part.kind == "console":
            yield f"```console\n{told.text}\n```"
            continue
        yield f"```python\n{told.text}\n```"
        if told.output:
            yield f"```text\n{told.output}\n```"
