"""Cells beside a naive model: plain lists walked cell by cell, as upstream does it."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.llamacpp.memory import cells as cells_module
from cachesim.engines.llamacpp.memory.attention import MARGIN, plan_lanes
from cachesim.engines.llamacpp.memory.batch import Splitter
from cachesim.engines.llamacpp.memory.cells import (
    EMPTY,
    NO_WINDOW,
    Cells,
    SlotInfo,
    Streams,
    WindowMask,
    apply_ubatch,
    find_slot,
    prepare,
)
from cachesim.engines.llamacpp.memory.rules import B11434
from cachesim.errors import ContractError
from cachesim.model.store import ABSENT, BLOCK
from cachesim.typed import of_kind, there_is

SIZE = 24
SEQUENCES = 3


class Naive:
    """The same cache as lists; every operation is a walk over all cells."""

    def __init__(self, mask: WindowMask) -> None:
        self.mask = mask
        self.pos = [-1] * SIZE
        self.seqs: list[set[int]] = [set() for _ in range(SIZE)]
        self.head = 0

    def positions(self, seq: int) -> list[int]:
        return [p for p, owners in zip(self.pos, self.seqs, strict=True) if seq in owners]

    def ends(self, seq: int) -> tuple[int, int]:
        held = self.positions(seq)
        return min(held, default=-1), max(held, default=-1)

    def find(self, n: int) -> list[int] | None:
        used = sum(p >= 0 for p in self.pos)
        head = 0 if self.head > used + 2 * n else self.head
        order = [*range(head, SIZE), *range(head)]
        found = [c for c in order if self.usable(c)][:n]
        return found if len(found) == n else None

    def usable(self, cell: int) -> bool:
        if self.pos[cell] < 0:
            return True
        if len(self.seqs[cell]) != 1:
            return False
        (owner,) = self.seqs[cell]
        return self.mask.hides(self.pos[cell], self.ends(owner)[1] + 1)

    def remove(self, seq: int, p0: int, p1: int) -> None:
        freed = []
        for cell in range(SIZE):
            if p0 <= self.pos[cell] < p1 and seq in self.seqs[cell]:
                self.seqs[cell].discard(seq)
                if not self.seqs[cell]:
                    self.pos[cell] = -1
                    freed.append(cell)
        if freed:
            self.head = min(self.head, freed[0])

    def write(self, seq: int, start: int, n: int) -> bool:
        found = self.find(n)
        if found is None:
            return False
        lost: dict[int, int] = {}
        for i, cell in enumerate(found):
            for owner in self.seqs[cell]:
                lost[owner] = max(lost.get(owner, -1), self.pos[cell])
            self.pos[cell], self.seqs[cell] = start + i, {seq}
        for owner, highest in lost.items():
            low = self.ends(owner)[0]
            if low <= highest:
                self.remove(owner, max(low, 0), highest + 1)
        self.head = found[-1] + 1
        return True

    def copy(self, src: int, dst: int, p0: int, p1: int) -> None:
        for cell in range(SIZE):
            if p0 <= self.pos[cell] < p1 and src in self.seqs[cell]:
                self.seqs[cell].add(dst)

    def keep(self, seq: int) -> None:
        freed = [c for c in range(SIZE) if self.seqs[c] and seq not in self.seqs[c]]
        for cell in range(SIZE):
            self.seqs[cell] &= {seq}
            if cell in freed:
                self.pos[cell] = -1
        if freed:
            self.head = min(self.head, freed[0])

    def shift(self, seq: int, p0: int, p1: int, delta: int) -> None:
        freed = []
        for cell in range(SIZE):
            if p0 <= self.pos[cell] < p1 and seq in self.seqs[cell]:
                self.pos[cell] += delta
                if self.pos[cell] < 0:
                    self.pos[cell], self.seqs[cell] = -1, set()
                    freed.append(cell)
        self.head = freed[0] if freed else 0


MASKS = [
    WindowMask(),
    WindowMask(kind="standard", n_swa=4),
    WindowMask(kind="chunked", n_swa=4),
    WindowMask(kind="symmetric", n_swa=4),
]
ids = st.integers(0, SEQUENCES - 1)
places = st.integers(0, 30)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), ids, st.integers(1, 7)),
    st.tuples(st.just("write"), ids, st.just(1)),
    st.tuples(st.just("again"), ids, places),
    st.tuples(st.just("remove"), ids, places, places),
    st.tuples(st.just("copy"), ids, ids, places, places),
    st.tuples(st.just("keep"), ids),
    st.tuples(st.just("shift"), ids, places, places, st.integers(-5, 5)),
)


def write(streams: Streams, naive: Naive, seq: int, start: int, n: int) -> None:
    positions = tuple(range(start, start + n))
    ubatch = there_is(Splitter(positions, ((seq,),) * n, (False,) * n).simple(n))
    slot = find_slot(streams, ubatch)
    expected = naive.find(n)
    assert expected == (None if slot is None else list(slot.cells[0]))
    assert (slot is not None) == naive.write(seq, start, n)
    if slot is not None:
        apply_ubatch(streams, slot, ubatch)
        check_lanes(streams, seq, start)


def check_lanes(streams: Streams, seq: int, start: int) -> None:
    """A lane's order: aligned blocks by position, doubles behind them in cell order."""
    ubatch = there_is(Splitter((start,), ((seq,),), (True,)).simple(1))
    (plan,) = plan_lanes(streams, ubatch)
    rows = range(10_000)[plan.picked] if isinstance(plan.picked, slice) else plan.picked.tolist()
    cells = streams.cells[0]
    frame = plan.frame
    assert len(frame.positions) % BLOCK == 0
    assert len(frame.positions) < 10 * BLOCK
    low, high = int(frame.low[0]), int(frame.high[0])
    shown = [
        (int(pos), row - MARGIN)
        for pos, row in zip(frame.positions, rows, strict=True)
        if pos != ABSENT and low <= pos <= high
    ]
    held = [
        (int(cells.pos[c]), c)
        for c in range(cells.pos.size)
        if cells.has(c, seq) and low <= cells.pos[c] <= high
    ]
    assert sorted(held) == sorted(shown)
    first = dict(reversed(held))
    regular = [(pos, cell) for pos, cell in sorted(first.items())]
    assert regular == shown[: len(regular)]
    assert [pair for pair in held if pair not in regular] == shown[len(regular) :]


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.kind)
@given(steps=st.lists(OPERATIONS, max_size=25), least=st.sampled_from([2, SIZE]))
def test_cells_do_what_a_walk_over_all_of_them_does(
    mask: WindowMask, steps: list[tuple[object, ...]], least: int
) -> None:
    with patch.object(cells_module, "_LEAST", least):
        streams = Streams(B11434, n_seq_max=SEQUENCES, unified=True, size=SIZE, mask=mask)
    naive = Naive(mask)

    for step in steps:
        match step:
            case "write", int(seq), int(n):
                write(streams, naive, seq, naive.ends(seq)[1] + 1, n)
            case "again", int(seq), int(pos):  # a position that may be there already
                write(streams, naive, seq, pos, 1)
            case "remove", int(seq), int(p0), int(p1):
                streams.seq_rm(seq, p0, p1)
                naive.remove(seq, p0, p1)
            case "copy", int(src), int(dst), int(p0), int(p1):
                streams.share(src, dst, p0, p1)
                naive.copy(src, dst, p0, p1)
            case "keep", int(seq):
                streams.seq_keep(seq)
                naive.keep(seq)
            case "shift", int(seq), int(p0), int(p1), int(delta):
                streams.seq_add(seq, p0, p1, delta)
                if delta and p0 != p1:
                    naive.shift(seq, p0, p1, delta)
        streams.check_integrity()
        cells = streams.cells[0]
        held = cells.pos.size
        assert naive.pos == cells.pos.tolist() + [EMPTY] * (SIZE - held)
        assert [cells.seqs_of(c) for c in range(held)] == [sorted(s) for s in naive.seqs[:held]]
        assert naive.head == streams.heads[0]
        for seq in range(SEQUENCES):
            assert naive.ends(seq) == (cells.pos_min(seq), cells.pos_max(seq))
            held = [c for c, seqs in enumerate(naive.seqs) if seq in seqs]
            assert cells.select(seq, 2, 9).tolist() == [c for c in held if 2 <= naive.pos[c] < 9]


def test_far_apart_positions_take_no_long_lanes() -> None:
    streams = Streams(B11434, n_seq_max=1, unified=True, size=8, mask=WindowMask())
    naive = Naive(WindowMask())
    for start in (3, 1_000_000_000, 2_000_000_000):
        ubatch = there_is(Splitter((start,), ((0,),), (True,)).simple(1))
        slot = there_is(find_slot(streams, ubatch))
        apply_ubatch(streams, slot, ubatch)

    check_lanes(streams, 0, 2_000_000_000)
    assert (3, 2_000_000_000) == (streams.pos_min(0), streams.pos_max(0))
    assert naive.pos[0] == -1


def test_a_wrong_book_is_noticed() -> None:
    def filled() -> Streams:
        streams = Streams(B11434, n_seq_max=2, unified=True, size=8, mask=WindowMask())
        ubatch = there_is(Splitter((0, 1), ((0,), (0,)), (True, True)).simple(2))
        slot = of_kind(SlotInfo, find_slot(streams, ubatch))
        apply_ubatch(streams, slot, ubatch)
        assert (0, 1) == (streams.pos_min(0), streams.pos_max(0))
        streams.check_integrity()
        return streams

    def used(cells: Cells) -> None:
        cells.used += 1

    def owners(cells: Cells) -> None:
        cells.owners[0] = 2

    def ghost(cells: Cells) -> None:
        cells.shift[5] = 1

    def shift(cells: Cells) -> None:
        cells.shift[0] = 1

    def moved(cells: Cells) -> None:
        cells.pos[1] = 7

    def ends(cells: Cells) -> None:
        cells.spans[0] = (0, 2, None)

    def row(cells: Cells) -> None:
        cells.spans[0] = (0, 1, 3)

    for damage in (used, owners, ghost, shift, moved, ends, row):
        streams = filled()
        damage(streams.cells[0])
        with pytest.raises(ContractError):
            streams.check_integrity()
    streams = filled()
    streams.heads[0] = 99
    with pytest.raises(ContractError):
        streams.check_integrity()


@pytest.mark.parametrize("longest", [4, 2])
def test_a_dry_run_gives_a_stream_the_head_of_its_lists_number(longest: int) -> None:
    streams = Streams(B11434, n_seq_max=3, unified=False, size=SIZE, mask=NO_WINDOW)
    streams.heads = [1, 0, 2]
    split = Splitter((0, 1, 2, 3), ((2,),) * 4, (False,) * 4)
    pieces = there_is(split.cut(lambda: split.equal(longest, sequential=True)))

    slots = there_is(prepare(streams, pieces))

    assert [2, 3, 4, 5] == [cell for slot in slots for cell in slot.cells[0]]
    assert [1, 0, 1] == streams.heads
    assert [0, 0, 0] == [cells.used for cells in streams.cells]
