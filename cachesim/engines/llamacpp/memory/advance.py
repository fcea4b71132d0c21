"""Tokens put into a memory without a network: whole runs at once, where that comes to the same.

    seq 0   [ held ........... )[ count new tokens )
            0                  start

What a memory decides with is which positions a sequence holds and how many cells are taken. Without
a window neither depends on which cells a ubatch finds, so a run may take them all at once. With a
window the old cells go as new tokens come, so the tokens are placed ubatch by ubatch.
"""

from dataclasses import dataclass

from cachesim.engines.llamacpp.memory.attention import AttentionCache
from cachesim.engines.llamacpp.memory.batch import Ubatch
from cachesim.engines.llamacpp.memory.find_slot import (
    apply_ubatch,
    fill_straight,
    free_cells,
    prepare,
)
from cachesim.engines.llamacpp.memory.hybrid import parts_of
from cachesim.engines.llamacpp.memory.module import Memory
from cachesim.engines.llamacpp.memory.recurrent import RecurrentMemory
from cachesim.engines.llamacpp.memory.streams import Streams
from cachesim.engines.llamacpp.memory.window import WindowPair


@dataclass(frozen=True, slots=True)
class Advance:
    """So many tokens more for one sequence, from a position on."""

    seq: int
    start: int
    count: int


def advance(memory: Memory, runs: list[Advance], n_ubatch: int) -> bool:
    """Take the runs in; False where the general way must be gone, and nothing was changed."""
    if any(memory.seq_pos_max(run.seq) + 1 != run.start for run in runs):
        return False
    if len({run.seq for run in runs}) < len(runs):
        return False
    attention, recurrent = parts_of(memory)
    if recurrent is not None and not _is_plain(recurrent, runs):
        return False
    if attention is not None and not _put(attention, runs, n_ubatch):
        return False
    if recurrent is not None:
        for run in runs:
            recurrent.cells.find_slot(_last_token(run))
    return True


def _is_plain(memory: RecurrentMemory, runs: list[Advance]) -> bool:
    cells = memory.cells
    return memory.n_rs_seq == 0 and all(
        0 <= run.seq < memory.size
        and (cells.tail[run.seq] < 0 or len(cells.seqs[cells.tail[run.seq]]) == 1)
        for run in runs
    )


def _last_token(run: Advance) -> Ubatch:
    """The run as its last token alone: a state only remembers where it stands."""
    return Ubatch(
        rows=(0,),
        n_seqs=1,
        n_seq_tokens=1,
        positions=(run.start + run.count - 1,),
        seqs=((run.seq,),),
    )


def _put(memory: AttentionCache | WindowPair, runs: list[Advance], n_ubatch: int) -> bool:
    if isinstance(memory, AttentionCache):
        if memory.mask.kind != "none" or not _has_room(memory.streams, runs):
            return False
        _fill(memory.streams, runs)
        return True
    if len(memory.swa.streams) > 1 or len(runs) > 1 or not _has_room(memory.streams, runs):
        return False
    pieces = _pieces(runs[0], n_ubatch)
    slots = prepare(memory.swa.streams, pieces)
    if slots is None:
        return False
    _fill(memory.streams, runs)
    for slot, piece in zip(slots, pieces, strict=True):
        apply_ubatch(memory.swa.streams, slot, piece)
    return True


def _has_room(streams: Streams, runs: list[Advance]) -> bool:
    if streams.unified:
        return sum(run.count for run in runs) <= free_cells(streams, 0)
    return all(run.count <= free_cells(streams, run.seq) for run in runs)


def _fill(streams: Streams, runs: list[Advance]) -> None:
    for run in runs:
        fill_straight(streams, 0 if streams.unified else run.seq, run.seq, run.start, run.count)


def _pieces(run: Advance, n_ubatch: int) -> list[Ubatch]:
    pieces = []
    for at in range(0, run.count, n_ubatch):
        count = min(n_ubatch, run.count - at)
        first = run.start + at
        pieces.append(
            Ubatch(
                rows=tuple(range(count)),
                n_seqs=1,
                n_seq_tokens=count,
                positions=tuple(range(first, first + count)),
                seqs=((run.seq,),) * count,
            )
        )
    return pieces
