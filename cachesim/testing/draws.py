"""Where chance comes from: one small protocol, fed by a seed or by Hypothesis.

Whatever is generated asks for choices through it, so that the plain seeded search and the public
strategies draw from the same generator. Smaller answers are simpler ones: 0, the lower bound, the
first of several.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Draws(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""
        ...

    def one_of(self, choices: Sequence[T]) -> T:
        """One of several."""
        ...

    def tokens(self, count: int, low: int, high: int) -> tuple[int, ...]:
        """`count` numbers from `low` to `high`."""
        ...


class Seeded:
    """Choices from a seed: the same seed, the same choices."""

    def __init__(self, seed: object) -> None:
        self._chance = Random(str(seed))

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        return self._chance.randint(low, high)

    def one_of(self, choices: Sequence[T]) -> T:
        """One of several."""
        return self._chance.choice(choices)

    def tokens(self, count: int, low: int, high: int) -> tuple[int, ...]:
        """`count` numbers."""
        return tuple(self._chance.choices(range(low, high + 1), k=count))


class Drawn:
    """Choices that Hypothesis makes, and later shrinks."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """A number from `low` to `high`."""
        number: int = self._draw(st.integers(low, high))
        return number

    def one_of(self, choices: Sequence[T]) -> T:
        """One of several; Hypothesis shrinks toward the first."""
        chosen: T = self._draw(st.sampled_from(choices))
        return chosen

    def tokens(self, count: int, low: int, high: int) -> tuple[int, ...]:
        """`count` numbers, from few draws: a start and a step, for long runs shrink badly."""
        start, step = self.integer(low, high), self.integer(0, 1)
        return tuple(low + (start - low + step * i) % (high - low + 1) for i in range(count))
