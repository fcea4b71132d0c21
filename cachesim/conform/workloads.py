"""Fixed requests for each law, in tokens that a run gives names of the server's own.

A conversation is a few texts of drawn lengths. `sizes` are scaled to what the server and its model
take: a page of the cache decides where prompts have to part.

    extension   [S q1] [S q1 r1 q2] ...     each prompt continues the conversation
    edit        [S a b] [S a c]             a prompt parts from the one before
    two codes   [S A ask] [S B text] [S B ask]   the last must not answer with A
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final, TypeAlias

from cachesim.scenario.format import Step
from cachesim.testing.workloads import FIRST_WORD, LAST_WORD

Text: TypeAlias = tuple[int, ...]
Case: TypeAlias = tuple[str, tuple[Step, ...]]
"""The name of a workload, which begins with its law, and its steps."""


class Writer:
    """Texts and steps of one workload."""

    def __init__(self, name: str) -> None:
        self._chance = Random(name)
        self._steps: list[Step] = []

    def text(self, size: int) -> Text:
        return tuple(self._chance.randint(FIRST_WORD, LAST_WORD) for _ in range(max(1, size)))

    def ask(self, prompt: Text, reply: int = 2, *, beside: bool = False, slot: int = -1) -> Text:
        """Add a request; the conversation with its reply."""
        said, name = self.text(reply), f"r{len(self._steps)}"
        self._steps.append(
            Step(name=name, prompt=prompt, reply=said, with_previous=beside, slot=slot)
        )
        return prompt + said

    def leave(self, turns: int) -> None:
        """Let the client of the last request leave."""
        self._steps.append(Step(name=f"r{len(self._steps)}", do="cancel", turns=turns))

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._steps)


def _extension(to: Writer, size: int) -> None:
    held = to.text(size)
    for _ in range(5):
        held = to.ask(held) + to.text(max(2, size // 8))
    to.ask(held)


def _again(to: Writer, size: int) -> None:
    prompt = to.text(size)
    for _ in range(3):
        to.ask(prompt)


def _edit(to: Writer, size: int) -> None:
    prompt = to.text(size)
    to.ask(prompt)
    for kept in (size - 1, size - 2, 2 * size // 3, size // 4):
        to.ask(prompt[: max(1, kept)] + to.text(size - kept))
    to.ask(prompt)


def _cut(to: Writer, size: int) -> None:
    prompt = to.text(size)
    for part in (size, size // 2, size - 1, size // 3, size):
        to.ask(prompt[: max(1, part)])


def _fork(to: Writer, size: int) -> None:
    system = to.text(size)
    chats = [to.ask(system + to.text(size // 4)) for _ in range(3)]
    for _ in range(2):
        chats = [to.ask(chat + to.text(5)) for chat in chats]


def _codes(to: Writer, size: int) -> None:
    """Two conversations that part at a code; the second comes back after a long text."""
    for far in (2, size // 8, size // 2):
        rules, ask = to.text(6), to.text(2)
        one, other = to.text(far), to.text(far)
        to.ask(rules, 1)
        to.ask(rules + one + to.text(1) + ask, 1)
        to.ask(rules + other + to.text(3 * size), 1)
        to.ask(rules + other + ask, 1)
        to.ask(rules + one + ask, 1)


def _together(to: Writer, size: int) -> None:
    system = to.text(size)
    to.ask(system)
    for row in range(4):
        to.ask(system + to.text(3 + 5 * row), 3, beside=row > 0)
    for row in range(3):
        to.ask(to.text(size // (row + 1)), 3, beside=row > 0)


def _leaving(to: Writer, size: int) -> None:
    prompt = to.text(3 * size)
    for turns in (1, 3, 6):
        to.ask(prompt, 6)
        to.leave(turns)
        to.ask(prompt[: 2 * size])
        held = to.ask(prompt)
        to.ask(held + to.text(4))
        prompt = prompt[:size] + to.text(2 * size)


SHAPES: Final[dict[str, Sequence[Callable[[Writer, int], None]]]] = {
    "answer": (_extension, _again, _edit, _cut, _fork),
    "isolation": (_codes,),
    "company": (_together,),
    "cancel": (_leaving,),
}
"""Workloads by the law that they ask for."""

SIZES: Final = (12, 60, 250)
"""Tokens of a text: below, around and beyond what servers keep at a time."""


def cases(laws: Sequence[str], longest: int, page: int) -> Iterator[Case]:
    """The workloads of some laws, with prompts of at most `longest` tokens."""
    sizes = [*SIZES, *((page, 2 * page + 1) if page > 1 else ())]
    for law in laws:
        for shape in SHAPES.get(law, ()):
            for size in dict.fromkeys(sizes):
                name = f"{law}-{shape.__name__.strip('_')}-{size}"
                to = Writer(name)
                shape(to, size)
                steps = to.steps
                if max(len(step.ids) for step in steps) <= longest:
                    yield name, steps
