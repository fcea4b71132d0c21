"""Splits of batches, and the optional fields of a batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.llamacpp.memory.batch import Batch, Splitter, Ubatch
from cachesim.engines.llamacpp.memory.context import BatchAllocr, Refusal, hash_set_order
from cachesim.engines.llamacpp.memory.rules import B9509, B11434
from cachesim.errors import UpstreamAbort
from tests.engines.llamacpp.memory.bench import Nothing, runs


def splitter(text: str) -> Splitter:
    batch = runs(text)
    assert batch.positions is not None
    assert batch.seqs is not None
    return Splitter(batch.positions, batch.seqs, (False,) * len(batch))


def told(pieces: list[Ubatch] | None) -> str:
    """`s0x5 (4+4)`: one set and its tokens, or several of equal length."""
    assert pieces is not None
    words = []
    for piece in pieces:
        ids = [piece.set_ids(k)[0] for k in range(piece.n_seqs)]
        if len(ids) == 1:
            words.append(f"s{ids[0]}x{piece.n_seq_tokens}")
        else:
            words.append("(" + "+".join([str(piece.n_seq_tokens)] * len(ids)) + ")")
    return " ".join(words)


@pytest.mark.parametrize(
    ("batch", "sequential", "keep", "expected"),
    [
        ("0:0+17", True, 3, "s0x8 s0x6 s0x3"),
        ("0:0+10", True, 3, "s0x7 s0x3"),
        ("0:0+9", True, 3, "s0x6 s0x3"),
        ("0:0+11", True, 3, "s0x8 s0x3"),
        ("0:0+5 1:0+9", True, 3, "s0x5 s1x6 s1x3"),
        ("0:0+2 1:0+2 2:0+20", True, 3, "(2+2+2) s2x8 s2x7 s2x3"),
        ("0:0+5 1:0+9", True, 0, "(4+4) (1+1) s1x4"),
        ("0:0+5 2:0+5", True, 0, "s0x5 s2x5"),
        ("0:0+5 2:0+5", False, 0, "(4+4) (1+1)"),
        ("1:0+3 0:0+3", True, 0, "s1x3 s0x3"),
    ],
)
def test_equal_splits(batch: str, sequential: bool, keep: int, expected: str) -> None:
    split = splitter(batch)
    assert expected == told(
        split.cut(lambda: split.equal(8, sequential=sequential, keep_tail=keep))
    )


def test_a_tail_as_long_as_the_ubatch_aborts() -> None:
    split = splitter("0:0+2")
    with pytest.raises(UpstreamAbort, match="n_ubatch > n_keep_tail"):
        split.equal(3, sequential=True, keep_tail=3)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(4, 9),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_token_lands_in_exactly_one_ubatch(
    parts: list[tuple[int, int]], n_ubatch: int, keep: int, sequential: bool
) -> None:
    split = splitter(" ".join(f"{s}:{9 * i}+{n}" for i, (s, n) in enumerate(parts)))
    pieces = split.cut(lambda: split.equal(n_ubatch, sequential=sequential, keep_tail=keep))

    assert pieces is not None
    assert list(range(len(split))) == sorted(row for piece in pieces for row in piece.rows)
    last: dict[int, Ubatch] = {}
    for piece in pieces:
        assert piece.n_tokens == piece.n_seqs * piece.n_seq_tokens
        last |= dict.fromkeys(piece.ids, piece)
    for seq, piece in last.items():
        total = sum(n for s, n in parts if s == seq)
        assert piece.n_seq_tokens >= min(keep, total)


@pytest.mark.parametrize(
    ("ids", "order"),
    [
        ((0, 1), (1, 0)),
        ((3, 1, 2), (2, 1, 3)),
        ((0, 13), (13, 0)),
        ((0, 1, 13), (1, 13, 0)),
        ((5, 5), (5,)),
        (tuple(range(13)), tuple(reversed(range(13)))),
        (tuple(range(14)), (13, *range(13))),
    ],
)
def test_small_hash_sets_come_out_reversed(ids: tuple[int, ...], order: tuple[int, ...]) -> None:
    assert order == hash_set_order(ids)


class After(Nothing):
    """A memory whose sequences end at given positions."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends = ends

    def seq_pos_max(self, seq: int) -> int:
        return self.ends.get(seq, -1)


def test_missing_fields_continue_sequence_0_and_ask_for_the_last_output() -> None:
    allocr = BatchAllocr(B11434, n_seq_max=2, unified=True, vocabulary=512)
    split = allocr.init(Batch(tokens=(7, 8, 9)), After({0: 4}))

    assert not isinstance(split, Refusal)
    assert ([5, 6, 7], ((0,),) * 3) == (list(split.positions), split.seqs)
    assert split.outputs == (False, False, True)


@pytest.mark.parametrize(
    ("rules", "positions"), [(B9509, (0, 1, 1)), (B11434, (0, 0, 1))], ids=["b9509", "b11434"]
)
def test_missing_positions_of_coupled_tokens(rules: object, positions: tuple[int, ...]) -> None:
    assert rules in {B9509, B11434}
    allocr = BatchAllocr(
        B9509 if rules is B9509 else B11434, n_seq_max=2, unified=True, vocabulary=512
    )
    split = allocr.init(Batch(tokens=(7, 8, 9), seqs=((0, 1), (0,), (1,))), Nothing())

    assert not isinstance(split, Refusal)
    assert positions == split.positions
