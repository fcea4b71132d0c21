"""Whether the books that the cells of an attention stream keep agree with the cells themselves."""

import numpy as np

from cachesim.engines.llamacpp.memory.cells import EMPTY, Cells
from cachesim.errors import ContractError
from cachesim.units import Array, Integers


def check(cells: Cells) -> None:
    """Compare the counts and tracks with the cells themselves."""
    if cells.used != np.count_nonzero(cells.pos != EMPTY):
        msg = f"used is {cells.used}, but the cells disagree"
        raise ContractError(msg)
    if np.count_nonzero(cells.owners != _bit_counts(cells.bits)):
        msg = "owner counts differ from the bit sets"
        raise ContractError(msg)
    if np.count_nonzero(cells.pos[cells.end :] != EMPTY):
        msg = f"a cell from {cells.end} on is in use"
        raise ContractError(msg)
    if not cells.shared and np.count_nonzero(cells.owners > 1):
        msg = "a cell has several sequences, but none is said to be shared"
        raise ContractError(msg)
    marked = (cells.owners | cells.shift) != 0
    if np.count_nonzero(marked & (cells.pos == EMPTY)):
        msg = "an empty cell has sequences or a shift"
        raise ContractError(msg)
    if not cells.has_shift and np.count_nonzero(cells.shift):
        msg = "a shift is pending but not flagged"
        raise ContractError(msg)
    for seq in cells.tracks:
        _check_track(cells, seq)


def _check_track(cells: Cells, seq: int) -> None:
    track = cells.tracks[seq]
    if track.stale:
        return
    members = cells.members(seq)
    held = np.sort(cells.pos[members])
    low, high = (int(held[0]), int(held[-1])) if held.size else (EMPTY, EMPTY)
    if (track.lo, track.hi) != (low, high):
        msg = f"sequence {seq} is at {low}..{high}, but its track disagrees"
        raise ContractError(msg)
    if track.count + track.spare.size != held.size:
        msg = f"sequence {seq} has {held.size} cells, but its track disagrees"
        raise ContractError(msg)
    if track.irregular or not held.size:
        return
    lie = track.cells_in(low, high + 1)
    if (cells.pos[lie] != held).any() or not members[lie].all():
        msg = f"the track of sequence {seq} names the wrong cells"
        raise ContractError(msg)
    behind = lie[held >= track.straight_from()]
    if np.unique(behind - cells.pos[behind]).size > 1:
        msg = f"the track of sequence {seq} calls a bent run of cells straight"
        raise ContractError(msg)


def _bit_counts(bits: Array) -> Integers:
    seen = np.flatnonzero(bits.any(axis=0))  # most cells are empty
    octets = np.ascontiguousarray(bits[:, seen].T).view(np.uint8)
    counts = np.zeros(bits.shape[1], np.int64)
    counts[seen] = np.unpackbits(octets, axis=1).sum(axis=1)
    return counts
