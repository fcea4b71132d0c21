"""A number with its source."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

How: TypeAlias = Literal["printed", "computed", "bounded", "assumed", "unknown"]
"""Printed in the log; computed from printed numbers; within bounds of the log; assumed where the
log has nothing; unknown.
"""


@dataclass(frozen=True, slots=True)
class Known:
    """A number of a request or a server, with its source."""

    value: int | None
    how: How
    low: int | None = None
    high: int | None = None

    @property
    def is_sure(self) -> bool:
        return self.how in {"printed", "computed"}

    def as_dict(self) -> dict[str, object]:
        """JSON of the number's source."""
        if self.how != "bounded":
            return {"how": self.how}
        return {"how": self.how, "low": self.low, "high": self.high}


UNKNOWN = Known(None, "unknown")


def printed(value: int) -> Known:
    """A number printed in the log."""
    return Known(value, "printed")


def computed(value: int) -> Known:
    """A number computed from the log."""
    return Known(value, "computed")


def bounded(value: int, low: int, high: int) -> Known:
    """A number within the log's bounds."""
    return computed(value) if low == high else Known(value, "bounded", low, high)
