"""What it means that a cache of somebody's own is right: laws, and the story of a broken one."""

from collections.abc import Callable, Sequence
from typing import Final, NoReturn, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")

EXAMPLES: Final = 300


class BrokenLawError(AssertionError):
    """A cache broke a law; the message tells the shortest way there that was found."""

    def __init__(self, law: str, why: str, story: Sequence[str]) -> None:
        steps = "\n".join(f"  {number}. {line}" for number, line in enumerate(story, 1))
        super().__init__(f"broken law: {law}\n{steps}\n  {why}")
        self.law = law
        self.why = why
        self.story = tuple(story)


class VacuousCheckError(AssertionError):
    """A check that could not have failed: nothing of what it is about ever happened."""


class Story:
    """What was done so far, in words, and the way to say that it broke a law."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tell(self, line: str) -> None:
        """One more thing was done."""
        self.lines.append(line)

    def broken(self, law: str, why: str) -> NoReturn:
        """The last thing done broke a law."""
        raise BrokenLawError(law, why, self.lines)


def hold(play: Callable[[T], None], ways: st.SearchStrategy[T], *, examples: int) -> None:
    """Play drawn ways until one breaks a law; Hypothesis makes that one as short as it can."""

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(ways)
    def run(way: T) -> None:
        play(way)

    run()
