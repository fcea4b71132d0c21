"""Everything that a server held when a request arrived, and what each rule made of it.

A request could have reused the best of all slots and prompt-cache entries. Each branch of the
slot choice rules some of them out; where that lowers the best there is, the ledger learns which
rule it was.
"""

from collections.abc import Mapping
from typing import Any

from cachesim.engines.causes import Cause
from cachesim.engines.ledger import Ledger
from cachesim.units import Count


class Holdings:
    """What could be reused, by holder: an elimination that leaves one."""

    __slots__ = ("_common", "ledger")

    def __init__(self, common: Mapping[object, tuple[str, Count]]) -> None:
        """`common` says for every holder its name and how much it shares with the prompt."""
        self._common = {holder: count for holder, (_, count) in common.items()}
        name, equal = max(common.values(), key=lambda each: each[1], default=("nothing", Count(0)))
        self.ledger = Ledger(equal, name if equal > 0 else "nothing")

    def common(self, holder: object) -> Count:
        """How much a holder shares with the prompt; nothing once it is ruled out."""
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
