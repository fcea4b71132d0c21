"""The interface of caches for the network while a ubatch goes through it.

    T   rows (tokens) of the ubatch          S   sequence sets in it, T/S rows each
    n   keys a lane holds                    q   rows of one lane

Attention never reads cells. It reads lanes: the keys that the rows of one sequence may attend to,
in an order independent of the cells' indices. Entry `i` of a lane's regular part belongs to
position `base + i`; `base` and the lane's length are multiples of `BLOCK`, so that the partial sums
of a query do not depend on the batch. A position without a cell is marked `ABSENT` and weighs an
exact zero. Keys that share a position with an earlier cell (memories allow it) follow in further
blocks, in cell order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from cachesim.units import Array, Integers

BLOCK: Final = 64
"""Keys per block; blocks are aligned to positions."""

ABSENT: Final = np.iinfo(np.int64).max
"""The position written where a lane holds no key: no query reaches it."""

CHUNK: Final = 256
"""Rows that a chunked scan takes at once (`ssm_attn`'s `step`)."""

FAR: Final = int(ABSENT) - 1
"""A `high` bound for queries that attend to later positions (non-causal calls)."""


class Lane(NamedTuple):
    """The keys that some rows of a ubatch may attend to, in position order.

    Row `rows[i]` sees the keys whose position is in `[low[i], high[i]]`, both ends included:
    causality, sliding and chunked windows are all such intervals.
    """

    rows: Integers  # (q,) rows of the ubatch
    keys: Array  # (n, *key shape), already rotated to their positions
    values: Array  # (n, *value shape)
    positions: Integers  # (n,), ABSENT where there is no key
    low: Integers  # (q,)
    high: Integers  # (q,)


Lanes: TypeAlias = Iterable[Lane]
"""Keys visible to each query of a ubatch; every row is in exactly one lane.

Read them once: a store may pick them as they are asked for.
"""


class Frame(NamedTuple):
    """A lane before the keys and values of a layer are put into it."""

    rows: Integers
    positions: Integers
    low: Integers
    high: Integers

    @classmethod
    def of_run(cls, start: int, end: int, window: int = 0, *, chunked: bool = False) -> "Frame":
        """The rows `[start, end)` of a sequence that holds every position up to them.

        |    not visible   |  visible | rows | ABSENT |
                         first      start   end   whole blocks
        """
        high = np.arange(start, end, dtype=np.int64)
        low = lowest(high, window, chunked=chunked)
        first = int(low[0]) // BLOCK * BLOCK
        positions = np.arange(first, -(-end // BLOCK) * BLOCK, dtype=np.int64)
        positions[end - first :] = ABSENT
        return cls(np.arange(end - start), positions, low, high)

    def lane(self, keys: Array, values: Array) -> Lane:
        """The lane of a layer whose keys and values are at the frame's positions."""
        return Lane(self.rows, keys, values, self.positions, self.low, self.high)


def lowest(queries: Integers, window: int, *, chunked: bool = False) -> Integers:
    """The first position that each query sees; a window of 0 is none."""
    if not window:
        return np.zeros(len(queries), np.int64)
    if chunked:
        return queries // window * window
    return np.maximum(queries - window + 1, 0)


def grown(held: Array, rows: int) -> Array:
    """The rows with zeros behind them, up to a number of rows."""
    longer = np.zeros((rows, *held.shape[1:]), held.dtype)
    longer[: len(held)] = held
    return longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """The rows of a padded batch that recurrent layers take for tokens, and those they keep.

        set s    t t t t 0 0      `real`: what goes into the state; other rows put zeros into the
                         ^        convolution; the ends are where a layer believes tokens to end

    What a chunked scan makes of padding is upstream's own business, and not always right.
    """

    real: Array  # (S, L), True where a row goes into the state
    conv_ends: Integers | None = None  # (S,) the convolution keeps the rows before; None: the end
    chunked: bool = False  # a chunked scan (ssm), with the fields below
    scan_ends: Integers | None = None  # (S,) the row whose sums it takes; None: the chunk's last
    scan_decays: bool = False  # rows that are not real let the former state decay

    def of_convolution(self) -> "Padding":
        """The padding of a layer of a convolution alone: rows behind its end are not kept."""
        if self.conv_ends is None:
            return self
        kept = np.arange(self.real.shape[1]) < self.conv_ends[:, None]
        return replace(self, real=self.real & kept)

    def endings(self, one: int) -> "tuple[Ending, ...]":
        """The endings of a set, chunk by chunk; a scan without chunks has one."""
        count = self.real.shape[1]
        size = CHUNK if self.chunked else count
        return tuple(
            self._ending(one, start, min(start + size, count)) for start in range(0, count, size)
        )

    def _ending(self, one: int, start: int, stop: int) -> "Ending":
        rows = np.arange(start, stop)
        real = self.real[one, start:stop]
        tokens, others = rows[real], rows[~real]
        if not self.chunked:
            return Ending(rows=rows, folded=tokens)
        last = len(rows) - 1
        if self.scan_ends is not None:
            left = int(self.scan_ends[one]) - start
            if left < 0:
                return Ending(rows=rows, folded=tokens, keeps_former=True)
            last = min(max(min(left, CHUNK) - 1, 0), last)
        within = tokens <= start + last
        return Ending(
            rows=rows,
            folded=tokens[within] if real[last] else tokens[:0],
            undecayed=tokens[~within] if real[last] else tokens[:0],
            lost=tokens[:0] if real[last] else tokens,
            fading=others if self.scan_decays else others[:0],
        )


def _no_rows() -> Integers:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The rows of a chunk by their part in the state that is kept after it.

    The plain fold of its tokens is kept unless some are lost, some come in without decay, or
    padding lets the former state fade.
    """

    rows: Integers
    folded: Integers  # one after the other, as they should be
    undecayed: Integers = field(default_factory=_no_rows)  # added as they are
    lost: Integers = field(default_factory=_no_rows)  # tokens that nothing is kept of
    fading: Integers = field(default_factory=_no_rows)  # padding that lets the former state decay
    keeps_former: bool = False  # nothing of the chunk is kept

    def plain(self, *, fresh: bool) -> bool:
        """True if the fold of all tokens is kept; a fresh state has nothing that could fade."""
        odd = len(self.undecayed) + len(self.lost) + (0 if fresh else len(self.fading))
        return not odd and not self.keeps_former


class Ubatch(NamedTuple):
    """The piece of a batch that goes through the network at once.

    `sets` runs of `len(tokens) // sets` rows each; each run belongs to one recurrent state.
    Attention alone does not care for runs (a simple split mixes sequences freely).
    """

    tokens: Integers  # (T,)
    positions: Integers  # (T,) what keys and queries are rotated to
    sets: int = 1
    outputs: Integers | None = None  # rows whose logits are wanted; None: all of them
    padding: Padding | None = None  # rows that are no tokens for recurrent layers
    hidden: Array | None = None  # (T, width), for companions that read the target's last states


class Store(Protocol):
    """The interface of caches for the network while a ubatch goes through it."""

    @property
    def planes(self) -> int:
        """The number of trailing states that `keep_states` takes, at least 1."""
        ...

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        """Put the ubatch's keys (T, ...) and values (T, ...) into cells, and return the lanes."""
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
