"""A number, and how it is known."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

How: TypeAlias = Literal["printed", "computed", "bounded", "assumed", "unknown"]
"""In the log itself; worked out from what is; within bounds that the log gives; taken for granted
because the log is silent; not to be had."""


@dataclass(frozen=True, slots=True)
class Known:
    """A number of a request or a server, and where it comes from."""

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
    """The log says so."""
    return Known(value, "printed")


def computed(value: int) -> Known:
    """It follows from what the log says."""
    return Known(value, "computed")


def bounded(value: int, low: int, high: int) -> Known:
    """The log leaves a few; one of them was chosen."""
    return computed(value) if low == high else Known(value, "bounded", low, high)
