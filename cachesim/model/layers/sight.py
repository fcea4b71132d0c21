"""What the rows of a lane see, worked out once for all layers that show the same lane.

q   queries taken at once      b   blocks of 64 positions in the lane
"""

from dataclasses import dataclass

from cachesim.model.store import Lane
from cachesim.units import Array, Integers


@dataclass(frozen=True, slots=True)
class Glance:
    """Some rows of a lane: the blocks in which they see anything, and what they must not see."""

    some: slice  # of the lane's rows
    blocks: slice  # of the lane's blocks
    hidden: tuple[tuple[slice, Array], ...]  # blocks among those, and a mask (blocks, q, 1, 64)


class Sights:
    """The glances of one ubatch: a store that shows one lane to many layers is looked at once."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._seen: dict[tuple[int, int, int], tuple[Lane, tuple[Glance, ...]]] = {}
        self._masks: dict[tuple[int, int, int], tuple[Lane, Array]] = {}

    def of(self, lane: Lane, group: int, block: int) -> tuple[Glance, ...]:
        """How to go through a lane whose queries come in groups, block by block."""
        key = (id(lane.positions), id(lane.low), id(lane.high))
        known = self._seen.get(key)
        if known is None:  # the lane is kept, so that no other can take its arrays' ids
            queries = max(1, self._rows // group)
            positions = lane.positions.reshape(-1, block)
            starts = range(0, len(lane.low), queries)
            glances = [glance(positions, lane, slice(s, s + queries)) for s in starts]
            known = self._seen[key] = (lane, tuple(glances))
        return known[1]

    def mask(self, lane: Lane, block: int) -> Array:
        """What the only query of a lane must not see, block by block: (b, 1, 1, block)."""
        key = (id(lane.positions), id(lane.low), id(lane.high))
        known = self._masks.get(key)
        if known is None:
            hidden = lane.positions > lane.high
            hidden |= lane.positions < lane.low
            known = self._masks[key] = (lane, hidden.reshape(-1, 1, 1, block))
        return known[1]


def glance(positions: Integers, lane: Lane, some: slice) -> Glance:
    """Look at the blocks of positions (b, 64) with some rows of the lane."""
    low, high = lane.low[some], lane.high[some]
    if len(low) == 1:
        hidden = (positions > high[0]) | (positions < low[0])
        return Glance(some, slice(None), ((slice(None), hidden[:, None, None]),))
    seen = (positions <= high.max()) & (positions >= low.min())
    blocks = seen.any(axis=1).nonzero()[0]
    sight = slice(int(blocks[0]), int(blocks[-1]) + 1) if len(blocks) else slice(0, 1)
    near = positions[sight]
    partly = ((near > high.min()) | (near < low.max())).any(axis=1).nonzero()[0]
    masks = []
    for block in partly.tolist():
        mask = (near[block] > high[:, None]) | (near[block] < low[:, None])
        masks.append((slice(block, block + 1), mask[None, :, None]))
    return Glance(some, sight, tuple(masks))
