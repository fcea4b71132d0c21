"""The port's cells and prefix match against the slow forms of the same rules, call by call."""

import cProfile
import pstats
import random

import numpy as np
import pytest

from cachesim.engines.ik_llama.context import Cells
from cachesim.engines.ik_llama.slot import common_prefix, without_reasoning
from cachesim.units import Pos, SeqId, Token
from tests.engines.ik_llama.plain_memory import PlainCells, plain_prefix, plain_reasoning

KINDS = ("dense", "hybrid", "recurrent")
SEQS = 3


def state(cells: Cells) -> tuple[int, int, list[tuple[int, list[int], int, int]]]:
    rows = [
        (
            int(cells.pos[i]),
            [seq for seq in range(SEQS) if int(cells.held[i]) >> seq & 1],
            int(cells.shift[i]),
            int(cells.born[i]),
        )
        for i in range(cells.size)
    ]
    return cells.head, cells.used, rows


def plain_state(cells: PlainCells) -> tuple[int, int, list[tuple[int, list[int], int, int]]]:
    rows = [(cell.pos, sorted(cell.seqs), cell.shift, cell.born) for cell in cells.cells]
    return cells.head, cells.used, rows


class Pair:
    """Both tables, and the same random calls on each."""

    def __init__(self, seed: int, kind: str) -> None:
        self.rng = random.Random(seed)
        size = SEQS if kind == "recurrent" else self.rng.choice([8, 12, 24])
        self.kind = kind
        self.ours = Cells(size, recurrent=kind == "recurrent", hybrid=kind == "hybrid")
        self.plain = PlainCells(size, kind)
        self.ends = [0] * SEQS

    def decode(self) -> tuple[object, object]:
        rng, count = self.rng, self.rng.randint(1, 6)
        seqs = sorted(rng.choices(range(SEQS), k=count))
        positions = []
        for seq in seqs:
            positions.append(self.ends[seq])
            self.ends[seq] += 1
        if self.kind == "recurrent":
            for seq, pos in zip(seqs, positions, strict=True):
                self.ours.place_recurrent(SeqId(seq), Pos(pos))
                self.plain.place_recurrent(seq, pos)
            return None, None
        found = self.ours.find_slot(count), self.plain.find_slot(count)
        if found[0] is not None and found[0] == found[1]:
            self.ours.place(found[0], np.array(positions), [SeqId(seq) for seq in seqs])
            self.plain.place(found[0], positions, seqs)
            if rng.random() < 0.9:  # a restore moves the head itself
                self.ours.advance(count)
                self.plain.advance(count)
        else:
            for seq in seqs:
                self.ends[seq] -= 1
        return found

    def remove(self) -> tuple[object, object]:
        rng = self.rng
        seq, edge = rng.randrange(SEQS + 1), rng.randint(-1, 9)  # one more than a table has
        p0, p1 = rng.choice([(edge, -1), (edge, edge + rng.randint(0, 4)), (-1, -1), (-1, edge)])
        found = self.ours.seq_rm(SeqId(seq), p0, p1), self.plain.seq_rm(seq, p0, p1)
        if seq < SEQS:
            self.ends[seq] = self.plain.seq_pos_max(seq) + 1 if self.plain.of(seq) else 0
        return found

    def move(self) -> tuple[object, object]:
        rng = self.rng
        seq, p0, delta = rng.randrange(SEQS), rng.randint(0, 6), -rng.randint(1, 5)
        p1 = p0 + rng.randint(0, 8)
        self.ours.seq_add(SeqId(seq), p0, p1, delta)
        self.plain.seq_add(seq, p0, p1, delta)
        self.ends[seq] = self.plain.seq_pos_max(seq) + 1 if self.plain.of(seq) else 0
        return None, None

    def look(self) -> tuple[object, object]:
        ours, plain, seqs = self.ours, self.plain, [SeqId(seq) for seq in range(SEQS)]
        return (
            [(ours.seq_pos_min(s), ours.seq_pos_max(s), ours.of(s).tolist()) for s in seqs],
            [(plain.seq_pos_min(s), plain.seq_pos_max(s), plain.of(s)) for s in seqs],
        )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_leaves_the_cells_as_the_slow_table_has_them(kind: str) -> None:
    refused = 0
    for seed in range(120):
        pair = Pair(seed, kind)
        calls = [pair.decode, pair.decode, pair.decode, pair.remove]
        calls += [pair.move] if kind == "dense" else []
        for _ in range(25):
            expected, actual = pair.rng.choice(calls)()[::-1]
            refused += actual in (False, None) and kind != "dense"
            assert expected == actual
            assert plain_state(pair.plain) == state(pair.ours)
            ours, plain = pair.look()
            assert plain == ours
            pair.ours.check_integrity()
        if seed % 10 == 0:
            pair.ours.clear()
            pair.plain.clear()
            assert plain_state(pair.plain) == state(pair.ours)
    assert refused or kind == "dense"


PIECES = ("a", "b", "ab", "ba", " ", "\n", " a", "a ", "b\n", "aba", "\r", "  ")


def test_the_common_prefix_is_that_of_the_slow_search() -> None:
    rng = random.Random(5)
    moved = 0
    for _ in range(8000):
        left, right = ([*rng.choices(PIECES, k=rng.randint(0, 6))] for _ in range(2))
        shared = rng.choices(PIECES, k=rng.randint(0, 3))
        left, right = shared + left, shared + right
        tokens = [[Token(PIECES.index(text)) for text in texts] for texts in (left, right)]
        for exact in (True, False):
            expected = plain_prefix(left, right, exact=exact)
            moved += expected[0] != expected[1]
            found = common_prefix(*tokens, PIECES.__getitem__, exact=exact)
            assert (expected, left, right, exact) == (tuple(found), left, right, exact)
    assert moved > 500


TAGS = ("<t>", "</t>")
TEXTS = ("a", "<t>", "</t>", "<", "t>", "</", "b<t>", "</t>c", "t>d")


def test_reasoning_blocks_go_token_by_token() -> None:
    rng = random.Random(6)
    dropped = 0
    for _ in range(4000):
        texts = rng.choices(TEXTS, k=rng.randint(1, 12))
        expected = plain_reasoning(texts, *TAGS)
        tokens = [Token(TEXTS.index(text)) for text in texts]
        found = without_reasoning(tokens, TAGS, TEXTS.__getitem__)
        assert (expected, texts) == ([TEXTS[token] for token in found], texts)
        dropped += len(expected) < len(texts)
    assert dropped > 500


def test_a_search_in_a_full_table_calls_as_much_for_many_cells_as_for_few() -> None:
    """Upstream tests the run behind each taken cell; a call of NumPy for each took ten seconds."""

    def calls(size: int) -> int:
        cells, work = Cells(size, recurrent=False, hybrid=False), cProfile.Profile()
        cells.place(0, np.arange(size), [SeqId(0)] * size)
        assert work.runcall(cells.find_slot, 1) is None
        return int(pstats.Stats(work).total_calls)  # type: ignore[attr-defined]

    assert calls(64) == calls(4096)
