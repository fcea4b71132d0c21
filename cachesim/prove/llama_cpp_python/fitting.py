"""Which scenarios the real `Llama` class can run, and of which the answer is judged."""

from typing import Final

from cachesim.scenario.format import Scenario, Step

ACTIONS: Final = ("slot-save", "slot-save", "slot-restore", "slot-restore", "slot-erase", "restart")


def fits(scenario: Scenario) -> bool:
    """True if each step is a call of the class, after the one before."""
    return all(step.do in {"complete", *ACTIONS} and not step.turns for step in scenario.step)


def shows(_: Step) -> bool:
    """True: any answer can be compared with that of a fresh instance."""
    return True
