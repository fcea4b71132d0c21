"""A lesson's source: Markdown, parsed into headings, prose, code and exercises.

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

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Final, Literal, TypeAlias

from cachesim.errors import ContractError, InputError

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
        known = ", ".join(str(each) for each in sorted(_names()))
        msg = f"there is no lesson {number}; there are {known}"
        raise InputError(msg)
    return _read(number)


@cache
def _names() -> dict[int, str]:
    found = (
        _NUMBER.fullmatch(each.name) for each in files(__package__).joinpath("texts").iterdir()
    )
    return {int(each["number"]): each.string for each in found if each}


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
        hints = [each.text for each in body[:at] if each.text.startswith(HINT)]
        yield Exercise(
            title=parts[start].text.removeprefix("### "),
            question=tuple(each for each in body[:at] if not each.text.startswith(HINT)),
            hint=" ".join(" ".join(hints).removeprefix(HINT).split()),
            answer=body[at],
            explanation=tuple(body[at + 1 :]),
        )
