"""The oracle's word on each step: whether the answer was right, and why not more was reused."""

from dataclasses import dataclass
from typing import Any

from cachesim.scenario.session import Record, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What verification adds to a step; all empty without it."""

    answer: str | None = None
    max_difference: float | None = None
    reuse: str | None = None
    explanation: dict[str, Any] | None = None


class Witness:
    """Holds every reply of a session against the cold recompute."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def judge(self, record: Record) -> Evidence:
        """The evidence on one step; a step without a reply has none."""
        return Evidence()
