"""The ledger of one request: what was equal, what stayed usable, and which rule changed it."""

from typing import Any

from cachesim.engines.events import Loss
from cachesim.units import Count


class Ledger:
    """Holds the running number of reusable tokens; every change goes through a named rule.

    `equal - usable` is the sum over `losses` at any moment, because nothing else can move the
    number: the explanation of a miss adds up by construction.
    """

    __slots__ = ("equal", "equal_with", "losses", "usable")

    def __init__(self, equal: Count = Count(0), equal_with: str = "nothing") -> None:
        self.equal = equal
        self.equal_with = equal_with
        self.usable = equal
        self.losses: tuple[Loss, ...] = ()

    def apply(self, rule: str, usable: int, **detail: Any) -> None:  # noqa: ANN401 - JSON values
        """A rule decided that `usable` tokens remain; an unchanged number leaves no entry."""
        after = Count(usable)
        if after != self.usable:
            self.losses += (Loss(rule=rule, before=self.usable, after=after, detail=detail),)
            self.usable = after
