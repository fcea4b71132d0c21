"""What happens to replicas during a trace: one dies, is drained, or joins.

die:2@600    at 600 s of the trace replica 2 is gone, with its cache and its requests
drain:2@600  it takes no further requests, and finishes those that it has
join:2@900   it is there from 900 s on, with an empty cache
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

from cachesim.lab.traces.fleet.router import RouterError

What: TypeAlias = Literal["die", "drain", "join"]

FORM: Final = re.compile(r"(die|drain|join):(\d{1,4})@(\d{1,9}(?:\.\d{1,6})?)")


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A change of a replica, at a time in seconds of the trace."""

    time: float
    replica: int
    what: What

    def as_text(self) -> str:
        """The change as a user writes it."""
        return f"{self.what}:{self.replica}@{self.time:g}"


def changes_of(texts: Sequence[str], replicas: int) -> tuple[Change, ...]:
    """Changes in the order of their times; a replica that joins first is not there before."""
    found = []
    for text in texts:
        read = FORM.fullmatch(text)
        if read is None:
            msg = f"change {text!r} is none; write die:2@600, drain:2@600 or join:2@600 (seconds)"
            raise RouterError(msg)
        if int(read[2]) >= replicas:
            msg = f"change {text!r}: there is no replica {read[2]}; they are 0 to {replicas - 1}"
            raise RouterError(msg)
        found.append(Change(float(read[3]), int(read[2]), cast("What", read[1])))
    return tuple(sorted(found))
