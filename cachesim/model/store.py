"""What the network needs of a cache while one ubatch goes through it.

    T   rows (tokens) of the ubatch          S   sequence sets in it, T/S rows each
    n   keys a lane holds                    q   rows of one lane

Attention never sees cells. It sees lanes: the keys that the rows of one sequence may look at,
already brought into an order that does not depend on where the cells lie. Entry `i` of a lane's
regular part belongs to position `base + i`; `base` and the lane's length are multiples of
`BLOCK`, so that every query meets the same partial sums whether it came alone or in a crowd. A
position that nobody holds is marked `ABSENT` and weighs an exact zero. Keys that share a position
with an earlier cell (memories allow it) follow in further blocks, in cell order.
"""

from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np

from cachesim.units import Array, Integers

BLOCK: Final = 64
"""Keys per block; blocks are aligned to positions."""

ABSENT: Final = np.iinfo(np.int64).max
"""The position written where a lane holds no key: no query reaches it."""

FAR: Final = int(ABSENT) - 1
"""A `high` bound for queries that may look into the future (calls without causality)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The keys that some rows of an ubatch may look at, in position order.

    Row `rows[i]` sees the keys whose position lies in `[low[i], high[i]]`, both ends included:
    causality, sliding and chunked windows are all such intervals.
    """

    rows: Integers  # (q,) rows of the ubatch
    keys: Array  # (n, *key shape), already rotated to their positions
    values: Array  # (n, *value shape)
    positions: Integers  # (n,), ABSENT where no key lies
    low: Integers  # (q,)
    high: Integers  # (q,)


Window: TypeAlias = tuple[Lane, ...]
"""What each query of an ubatch may look at: every row lies in exactly one lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ubatch:
    """The piece of a batch that goes through the network at once.

    `sets` runs of `len(tokens) // sets` rows each; each run belongs to one recurrent state.
    Attention alone does not care for runs (a simple split mixes sequences freely).
    """

    tokens: Integers  # (T,)
    positions: Integers  # (T,) what keys and queries are rotated to
    sets: int = 1
    outputs: Integers | None = None  # rows whose logits are wanted; None: all of them
    hidden: Array | None = None  # (T, width), for companions that read the target's last states


class Store(Protocol):
    """What the network needs of a cache while one ubatch goes through it."""

    @property
    def planes(self) -> int:
        """How many trailing states `keep_states` is to be given, at least 1."""
        ...

    def attend(self, layer: int, keys: Array, values: Array) -> Window:
        """Put the ubatch's keys (T, ...) and values (T, ...) where they belong, and look."""
        ...

    def states(self, layer: int) -> Array:
        """The state that each set starts from, (S, row)."""
        ...

    def keep_states(self, layer: int, states: Array) -> None:
        """Keep what each set ended with, (S, planes, row).

        Plane `j` is the state after the set's last token but `j`; there are
        `min(tokens per set, planes)` of them.
        """
        ...
