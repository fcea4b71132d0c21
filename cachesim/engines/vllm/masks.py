"""The blocks of a range that a hit can need (`reachable_block_mask`); None: all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Mask: TypeAlias = list[bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A range of a request's blocks, and the positions at which a hit can end."""

    start: int
    end: int
    block: int
    alignment: int  # tokens of which a hit is a multiple
    retention: int | None
    boundaries: Sequence[int] = ()
    final: int | None = None  # end of the request's last segment, in blocks


def window_mask(reach: Reach, needed: int, shift: int) -> Mask:
    """The `needed` blocks before each place where a hit can end; a drafter's are `shift` later."""
    size, mask = reach.block, [False] * (reach.end - reach.start)
    # Dense: hits end at every multiple of the alignment; sparse: of the interval; 0: nowhere but at
    # the boundaries below.
    segment = reach.alignment if reach.retention is None else reach.retention
    if segment:
        per_segment = segment // size
        # Windows reach back to the end before: every block is part of one.
        if needed >= per_segment:
            return None
        for i in range(reach.start, reach.end):
            if i >= shift and (i - shift) % per_segment >= per_segment - needed:
                mask[i - reach.start] = True
        # The last segment can be shorter than the others: a hit can also end at its end.
        if reach.final is not None and not shift and reach.final % per_segment:
            first = max(reach.final - reach.final % per_segment, reach.final - needed)
            for i in range(max(reach.start, first), min(reach.end, reach.final)):
                mask[i - reach.start] = True
    if reach.retention is not None:
        for boundary in reach.boundaries:
            # Hits are floored to the alignment: kept elsewhere, the window would never be asked
            # for.
            stop = boundary // reach.alignment * reach.alignment // size + shift
            for i in range(max(reach.start, stop - needed), min(reach.end, stop)):
                mask[i - reach.start] = True
    return mask


def state_mask(reach: Reach) -> Mask:
    """The states at the ends of segments and at boundaries.

    Follows `MambaManager.reachable_block_mask`.
    """
    # Dense: chunks that end often can fill most of the pool with states (#45845).
    if reach.retention is None:
        return None
    size, mask = reach.block, [False] * (reach.end - reach.start)
    if reach.retention:
        per_segment = reach.retention // size
        # An interval of one block keeps every state.
        if per_segment <= 1:
            return None
        first = (reach.start + per_segment) // per_segment * per_segment - 1
        for i in range(first - reach.start, len(mask), per_segment):
            mask[i] = True
    for boundary in reach.boundaries:
        # A state stands for its exact end: one block, where a window needs several.
        block = boundary // reach.alignment * reach.alignment // size - 1
        if reach.start <= block < reach.end:
            mask[block - reach.start] = True
    return mask
