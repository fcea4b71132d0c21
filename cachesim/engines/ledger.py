"""The ledger of one request: what matched, what stayed usable, and which cause changed it."""

from collections.abc import Mapping
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


class Holdings:
    """The reusable tokens by holder: an elimination that leaves one.

    A request could have reused the best of all slots and prompt-cache entries. Each branch of the
    slot choice rules some of them out; where that lowers the best there is, the ledger learns which
    rule it was.
    """

    __slots__ = ("_common", "ledger")

    def __init__(self, common: Mapping[object, tuple[str, Count]]) -> None:
        """`common` says for every holder its name and how much it shares with the prompt."""
        self._common = {holder: count for holder, (_, count) in common.items()}
        name, equal = max(common.values(), key=lambda each: each[1], default=("nothing", Count(0)))
        self.ledger = Ledger(equal, name if equal > 0 else "nothing")

    def common(self, holder: object) -> Count:
        """The number of tokens that a holder shares with the prompt; 0 once it is ruled out."""
        return self._common.get(holder, Count(0))

    def rule_out(self, holder: object, cause: Cause, **detail: Any) -> None:
        """A branch decided against a holder."""
        if self._common.pop(holder, 0) >= self.ledger.usable > 0:
            self.ledger.apply(cause, max(self._common.values(), default=0), **detail)

    def takes_over(self, holder: object, other: object) -> None:
        """A holder got what another one had."""
        self._common[holder] = self._common.pop(other, Count(0))

    def settle_on(self, holder: object, cause: Cause, **detail: Any) -> None:
        """Only one is left; whatever is still in the race goes by one cause."""
        for other in [each for each in self._common if each is not holder]:
            self.rule_out(other, cause, **detail)
