"""Rows of a padded batch: the fold of the tokens, and what upstream's layers make of the rest."""

from typing import Any

import numpy as np
import pytest

from cachesim.model.arithmetic import ArithmeticName, Network, PlainStore
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.model.store import CHUNK, Padding, Ubatch
from cachesim.model.trace import Traced
from cachesim.units import Array

PAST, RESTS = 9, (7, 3)
KINDS = ("recurrent", "hybrid-delta", "hybrid-swa")
ARITHMETICS: tuple[ArithmeticName, ...] = ("float", "ring")


def states(network: Network, store: PlainStore) -> list[Array]:
    """All recurrent states, set by set."""
    return [
        store.states(shape.layer).copy() for shape in network.shapes if shape.place == "recurrent"
    ]


def fed(network: Network, counts: tuple[int, ...], padding: Padding | None) -> list[Array]:
    """The states after a past and a rest, as rows of one batch or each for itself."""
    store = PlainStore(network, sets=len(counts))
    random = np.random.default_rng(1)
    past = random.integers(20, 60, (2, PAST))[: len(counts)]
    rests = random.integers(20, 60, (2, max(RESTS)))
    rests = rests[2 - len(counts) :] if len(counts) == 1 and counts[0] == RESTS[1] else rests
    length = max(counts)
    for start, tokens in ((0, past), (PAST, rests[: len(counts), :length])):
        width = tokens.shape[1]
        network.run(
            Ubatch(
                tokens=tokens.reshape(-1),
                positions=np.tile(np.arange(start, start + width), len(counts)),
                sets=len(counts),
                padding=padding if start else None,
            ),
            store,
        )
    return states(network, store)


def recurrent(kind: str, arithmetic: ArithmeticName) -> Network:
    """A network of recurrent layers alone: sets share no attention."""
    spec = tiny(kind, vocabulary=64)
    layers = tuple(each for each in spec.layers if each in {"ssm", "delta", "conv"}) * 2
    return build(tiny(kind, vocabulary=64, layers=layers), arithmetic)


def real() -> Array:
    return np.arange(max(RESTS)) < np.array(RESTS)[:, None]


ENDS = np.array(RESTS)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_layer_that_is_right_keeps_the_states_of_the_tokens_bit_for_bit(
    kind: str, arithmetic: ArithmeticName, chunked: bool
) -> None:
    network = recurrent(kind, arithmetic)
    padding = Padding(real=real(), conv_ends=ENDS, chunked=chunked, scan_ends=ENDS)
    together = fed(network, (max(RESTS), max(RESTS)), padding)

    unpadded = Padding(real=np.ones((2, RESTS[1]), bool), conv_ends=None)
    alone = fed(network, (RESTS[1], RESTS[1]), unpadded)
    for layer, expected in zip(together, alone, strict=True):
        assert np.array_equal(expected[1], layer[1])


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fields",
    [
        {"conv_ends": None, "chunked": False},
        {"conv_ends": ENDS, "chunked": True, "scan_ends": None},
        {"conv_ends": ENDS, "chunked": True, "scan_ends": ENDS, "scan_decays": True},
    ],
    ids=["convolution", "lost", "decays"],
)
def test_each_fault_spoils_the_shorter_row_alone(
    kind: str, arithmetic: ArithmeticName, fields: dict[str, Any]
) -> None:
    network = recurrent(kind, arithmetic)
    right = fed(network, (7, 7), Padding(real=real(), conv_ends=ENDS, chunked=True, scan_ends=ENDS))
    wrong = fed(network, (7, 7), Padding(real=real(), **fields))
    spoilt = [not np.array_equal(one[1], two[1]) for one, two in zip(right, wrong, strict=True)]

    assert all(np.array_equal(one[0], two[0]) for one, two in zip(right, wrong, strict=True))
    concerned = kind == "recurrent" or fields["conv_ends"] is None
    assert any(spoilt) == concerned


def test_a_chunk_that_ends_in_padding_keeps_only_what_decayed() -> None:
    network = recurrent("recurrent", "ring")
    padding = Padding(real=real(), conv_ends=ENDS, chunked=True, scan_ends=None)
    ending = padding.endings(1)[0]

    assert [0, 1, 2] == ending.lost.tolist()
    assert [] == ending.folded.tolist()
    assert not ending.plain(fresh=True)
    assert padding.endings(0)[0].plain(fresh=False)
    assert network.spec.layers == ("ssm",) * 4


def test_rows_behind_the_end_come_in_without_decay_where_the_mask_lets_them() -> None:
    everything = Padding(
        real=np.ones((1, 6), bool), conv_ends=np.array([4]), chunked=True, scan_ends=np.array([4])
    )

    assert [4, 5] == everything.endings(0)[0].undecayed.tolist()


def test_chunks_end_where_the_scan_ends_them() -> None:
    count = CHUNK + 10
    padding = Padding(real=np.ones((1, count), bool), chunked=True, scan_ends=np.array([CHUNK - 1]))
    first, second = padding.endings(0)

    assert [CHUNK - 1] == first.undecayed.tolist()
    assert second.keeps_former


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({"conv_ends": ENDS, "chunked": True, "scan_ends": ENDS}, PAST + 3),
        ({"conv_ends": ENDS, "chunked": True, "scan_ends": None}, PAST),
        ({"conv_ends": ENDS, "chunked": True, "scan_ends": ENDS, "scan_decays": True}, PAST + 7),
        ({"conv_ends": None}, PAST + 7),
    ],
    ids=["right", "lost", "decays", "convolution"],
)
def test_the_ledger_says_what_the_state_holds(fields: dict[str, Any], holds: int) -> None:
    network = Traced(recurrent("recurrent", "ring"))
    marks = fed(network, (7, 7), Padding(real=real(), **fields))[-1]

    assert PAST + 7 == len(network.history(int(marks[0, 0])))
    assert holds == len(network.history(int(marks[1, 0])))
