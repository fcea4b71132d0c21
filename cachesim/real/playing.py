"""What the commands of all real engines share: where they print, and how they play a scenario."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rich.console import Console
from rich.table import Table

from cachesim.real.environment import Environment, EnvironmentUnavailableError
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import load_all


class Compared(Protocol):
    """One step, as the real engine and the simulator played it."""

    @property
    def agrees(self) -> bool:
        """True when both say the same."""
        ...


R = TypeVar("R", bound=str)
S = TypeVar("S", bound=Compared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Generic[R, S]):
    """How one engine plays a scenario."""

    releases_of: Callable[[Scenario], Sequence[R]]
    environment_for: Callable[[R], Environment]
    play: Callable[[Scenario, R], Sequence[S]]
    table: Callable[[str, R, Sequence[S]], Table]

    def play_named(self, name: str) -> int:
        """Play what a name stands for on every release that it names; the exit status."""
        return max(self._play(scenario) for _, scenario in load_all([name]))

    def _play(self, scenario: Scenario) -> int:
        agree = True
        for release in self.releases_of(scenario):
            try:
                self.environment_for(release).ready()
            except EnvironmentUnavailableError as error:
                return not_compared(error)
            steps = self.play(scenario, release)
            console().print(self.table(scenario.name, release, steps))
            agree = agree and all(step.agrees for step in steps)
        return 0 if agree else 1


def not_compared(error: EnvironmentUnavailableError) -> int:
    """Say loudly that a real engine is not there; the exit status."""
    console(stderr=True).print(f"NOT COMPARED: {error}", markup=False)
    return 1


def console(*, stderr: bool = False) -> Console:
    """Where results go, or what is said beside them; never wrapped in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=not stream.isatty())
