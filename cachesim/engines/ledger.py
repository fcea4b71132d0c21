"""The ledger of one request: what matched, what stayed usable, and which cause changed it."""

from typing import Any

from cachesim.engines.causes import Cause, Loss
from cachesim.units import Count


class Ledger:
    """Holds the running number of reusable tokens; every change goes through a declared cause.

    `equal - usable` is the sum over `losses` at any moment, because nothing else can move the
    number: the explanation of a miss adds up by construction.
    """

    __slots__ = ("equal", "equal_with", "losses", "usable")

    def __init__(self, equal: Count = Count(0), equal_with: str = "nothing") -> None:
        self.equal = equal
        self.equal_with = equal_with
        self.usable = equal
        self.losses: tuple[Loss, ...] = ()

    def apply(self, cause: Cause, usable: int, **detail: Any) -> None:
        """Only `usable` tokens remain, and why; an unchanged number leaves no entry.

        `detail` holds the numbers of the test that was made, one for each field of the cause.
        """
        after = Count(usable)
        if after != self.usable:
            self.losses += (Loss(cause=cause, before=self.usable, after=after, detail=detail),)
            self.usable = after
