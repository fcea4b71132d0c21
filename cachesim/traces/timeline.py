"""What a server holds while a trace is played: some moments of it, evenly spread.

    requests     1  2  3  4            at first every one
                 2  4  6  8            once there are too many, every second, and so on

How long a trace is need not be known before it ends, and a timeline of any trace is short.
"""

from dataclasses import dataclass, field
from typing import Any, Final

MOMENTS: Final = 32
"""At most so many are kept, and half of them at least once so many requests were played."""


@dataclass(slots=True)
class Timeline:
    """Bytes by kind, after some of the requests."""

    every: int = 1
    moments: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    def wants(self, requests: int) -> bool:
        """Whether the moment after so many requests is one of them."""
        return requests % self.every == 0

    def add(self, requests: int, held: dict[str, int]) -> None:
        """Keep a moment; where there are too many, every second one goes."""
        self.moments.append((requests, held))
        if len(self.moments) > MOMENTS:
            self.every *= 2
            self.moments = [each for each in self.moments if each[0] % self.every == 0]

    def as_dict(self) -> dict[str, Any]:
        """The requests, and for each kind that was ever held the bytes after each of them."""
        kinds = dict.fromkeys(kind for _, held in self.moments for kind in held)
        columns = {kind: [held.get(kind, 0) for _, held in self.moments] for kind in kinds}
        shown = {kind: column for kind, column in columns.items() if any(column)}
        return {"requests": [requests for requests, _ in self.moments], **shown}
