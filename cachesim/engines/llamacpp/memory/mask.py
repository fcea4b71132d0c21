"""The mask of a sliding window, and the interval of positions that a query sees."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from cachesim.model.store import FAR
from cachesim.units import Array, Integers

WindowType: TypeAlias = Literal["none", "standard", "chunked", "symmetric"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowMask:
    """A window's type and length (`swa_type`, `n_swa`)."""

    kind: WindowType = "none"
    n_swa: int = 0

    def hides(self, key: int, query: int) -> bool:
        """True if the window hides key position `key` from query position `query`.

        Follows `llama_hparams::is_masked_swa`. Trap: cell search asks it with pos_max + 1, saving
        with pos_max, so one position can be both saved and up for reuse.
        """
        match self.kind:
            case "standard":
                return query - key >= self.n_swa
            case "chunked":
                return key < query // self.n_swa * self.n_swa
            case "symmetric":
                return abs(query - key) > self.n_swa // 2
            case _:
                return False

    def hides_each(self, keys: Array, query: int) -> Array:
        """`hides` for many keys at once."""
        hidden: Array = np.zeros(keys.shape, dtype=np.bool_)
        match self.kind:
            case "standard":
                hidden = query - keys >= self.n_swa
            case "chunked":
                hidden = keys < query // self.n_swa * self.n_swa
            case "symmetric":
                hidden = np.abs(query - keys) > self.n_swa // 2
        return hidden

    def interval(self, queries: Integers, *, causal: bool = True) -> tuple[Integers, Integers]:
        """The lowest and highest position that each query sees, both included.

        The predicate alone hides the future only in the symmetric case; causality does the rest.
        """
        high = queries if causal else np.full_like(queries, FAR)
        match self.kind:
            case "standard":
                return queries - self.n_swa + 1, high
            case "chunked":
                return queries // self.n_swa * self.n_swa, high
            case "symmetric":
                half = self.n_swa // 2
                return queries - half, np.minimum(high, queries + half)
            case _:
                return np.zeros(len(queries), np.int64), high


NO_WINDOW: Final = WindowMask()
"""The mask of a cache without window: nothing is hidden."""
