"""The plain store: what each token sees of a history that only grows."""

import numpy as np
import pytest

from cachesim.model.arithmetic import PlainStore
from cachesim.model.build import build
from cachesim.model.spec import ModelSpec
from cachesim.model.store import ABSENT, BLOCK
from cachesim.units import Array

NETWORK = build(ModelSpec(layers=("attention", "window", "ssm"), window=3), "ring")


def cells(count: int, first: int = 0) -> Array:
    return np.arange(first, first + count, dtype=np.uint64)[:, None]


def test_each_token_sees_itself_and_all_before() -> None:
    store = PlainStore(NETWORK)
    store.attend(0, cells(2), cells(2))

    (lane,) = store.attend(0, cells(2, 2), cells(2, 2))

    assert [2, 3] == lane.high.tolist()
    assert [0, 0] == lane.low.tolist()
    assert [0, 1, 2, 3, ABSENT] == lane.positions[:5].tolist()
    assert [0, 1, 2, 3] == lane.keys[:4, 0].tolist()


def test_a_window_counts_the_query_itself() -> None:
    (lane,) = PlainStore(NETWORK).attend(1, cells(5), cells(5))

    assert [0, 0, 0, 1, 2] == lane.low.tolist()


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("cut", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_lanes_are_whole_blocks_by_position_and_reach_down_to_what_is_seen(
    layer: int, cut: int
) -> None:
    store = PlainStore(NETWORK)
    store.attend(layer, cells(cut), cells(cut))

    (lane,) = store.attend(layer, cells(1, cut), cells(1, cut))

    base = lane.positions[0]
    assert 0 == len(lane.positions) % BLOCK == base % BLOCK
    assert base <= lane.low[0]
    held = lane.positions != ABSENT
    assert np.arange(base, cut + 1).tolist() == lane.positions[held].tolist()
    assert lane.positions[held].tolist() == lane.keys[held][:, 0].tolist()


def test_sets_have_lanes_of_their_own() -> None:
    first, second = PlainStore(NETWORK, sets=2).attend(0, cells(4), cells(4))

    assert ([0, 1], [2, 3]) == (first.rows.tolist(), second.rows.tolist())
    assert [0, 1] == first.keys[:2, 0].tolist()
    assert [2, 3] == second.keys[:2, 0].tolist()
    assert [0, 1] == second.high.tolist()


def test_states_begin_at_zero_and_the_newest_plane_is_kept() -> None:
    store = PlainStore(NETWORK, planes=2)
    row = NETWORK.shapes[2].row
    assert not store.states(2).any()

    store.keep_states(2, np.stack([np.full((1, row), 7), np.full((1, row), 6)], axis=1))

    assert (store.states(2) == 7).all()
