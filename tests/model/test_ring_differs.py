"""The exact twin differs where any token, cell or state does, and where a context was shifted."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ring_kit import NETWORKS, ONE_LAYER, PROMPT, cold, every_network, feed

from cachesim.model.arithmetic import Network, PlainStore
from cachesim.model.build import build
from cachesim.model.presets import PRESETS
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Lane, Lanes, Ubatch
from cachesim.units import Array


class Cells:
    """One sequence whose cells a test may move, drop and forge."""

    planes = 1

    def __init__(self, network: Network) -> None:
        self.keys: dict[int, Array] = {s.layer: np.zeros((0, 1), np.uint64) for s in network.shapes}
        self.values = dict(self.keys)
        self.positions: dict[int, Array] = {s.layer: np.zeros(0, np.int64) for s in network.shapes}
        self.rows = {s.layer: np.zeros((1, s.row), np.uint64) for s in network.shapes}
        self.next: Array = np.zeros(0, np.int64)

    def feed(self, network: Network, ids: Sequence[int], first: int) -> Array:
        self.next = np.arange(first, first + len(ids))
        return network.run(Ubatch(tokens=np.array(ids), positions=self.next), self).logits

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        self.keys[layer] = np.concatenate([self.keys[layer], keys])
        self.values[layer] = np.concatenate([self.values[layer], values])
        self.positions[layer] = np.concatenate([self.positions[layer], self.next])
        lane = Lane(
            rows=np.arange(len(keys)),
            keys=self.keys[layer],
            values=self.values[layer],
            positions=self.positions[layer],
            low=np.zeros_like(self.next),
            high=self.next,
        )
        return (lane,)

    def states(self, layer: int) -> Array:
        return self.rows[layer]

    def keep_states(self, layer: int, states: Array) -> None:
        self.rows[layer] = states[:, 0]


# --- different -------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@every_network
@given(st.lists(st.integers(0, 511), min_size=2, max_size=60, unique=True), st.data())
def test_replacing_dropping_or_swapping_any_token_changes_the_last_word(
    network: Network, ids: list[int], data: st.DataObject
) -> None:
    last = cold(network, ids)[-1]
    i = data.draw(st.integers(0, len(ids) - 2))
    j = data.draw(st.integers(i + 1, len(ids) - 1))
    swapped = list(ids)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    replaced = [*ids[:i], (ids[i] + 1) % 512, *ids[i + 1 :]]

    for changed in (swapped, replaced, ids[:i] + ids[i + 1 :]):
        assert not np.array_equal(last, cold(network, changed)[-1])


@pytest.mark.parametrize("spec", PRESETS.values(), ids=PRESETS.keys())
def test_the_farthest_token_that_can_matter_changes_the_last_word(spec: ModelSpec) -> None:
    network = build(spec, "ring")
    ids = list(range(300, 500))
    reach = spec.reach or len(ids)

    near, far = list(ids), list(ids)
    near[-reach] = 265
    far[: len(ids) - reach] = [265] * (len(ids) - reach)

    assert not np.array_equal(cold(network, ids)[-1], cold(network, near)[-1])
    assert np.array_equal(cold(network, ids)[-1], cold(network, far)[-1])


def test_the_order_of_sets_matters() -> None:
    network = NETWORKS["hybrid"]
    both = np.array([*PROMPT[:5], *PROMPT[5:10]])
    other = np.array([*PROMPT[5:10], *PROMPT[:5]])
    positions = np.tile(np.arange(5), 2)

    runs = [
        network.run(
            Ubatch(tokens=ids, positions=positions, sets=2), PlainStore(network, sets=2)
        ).logits
        for ids in (both, other)
    ]

    assert not np.array_equal(runs[0], runs[1])
    assert np.array_equal(runs[0], np.roll(runs[1], 5, axis=0))


def drop(cells: Cells, layer: int) -> None:
    for kept in (cells.keys, cells.values, cells.positions):
        kept[layer] = np.delete(kept[layer], 7, axis=0)


def double(cells: Cells, layer: int) -> None:
    for kept in (cells.keys, cells.values, cells.positions):
        kept[layer] = np.concatenate([kept[layer], kept[layer][7:8]])


def forge_key(cells: Cells, layer: int) -> None:
    cells.keys[layer][7] += np.uint64(1 << 63)


def forge_value(cells: Cells, layer: int) -> None:
    cells.values[layer][7] += np.uint64(1 << 63)


def exchange_values(cells: Cells, layer: int) -> None:
    cells.values[layer][[7, 8]] = cells.values[layer][[8, 7]]


def hide(cells: Cells, layer: int) -> None:
    cells.positions[layer][7] = 1000


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("fault", [drop, double, forge_key, forge_value, exchange_values, hide])
def test_one_wrong_cell_in_any_layer_changes_the_next_word(
    fault: Callable[[Cells, int], None], layer: int
) -> None:
    network = NETWORKS["attention"]
    cells = Cells(network)
    cells.feed(network, PROMPT, 0)

    fault(cells, layer)

    answer = cells.feed(network, [400], len(PROMPT))
    assert not np.array_equal(cold(network, [*PROMPT, 400])[-1:], answer)


@every_network
def test_one_wrong_bit_in_any_state_changes_the_next_word(network: Network) -> None:
    expected = cold(network, [*PROMPT, 400])[-1:]
    for shape in network.shapes:
        for word in range(shape.row):
            store = PlainStore(network)
            feed(network, store, PROMPT)
            wrong = store.states(shape.layer).copy()
            wrong[0, word] ^= np.uint64(1 << 63)
            store.keep_states(shape.layer, wrong[:, None])

            answer = feed(network, store, [400], len(PROMPT)).logits

            assert not np.array_equal(expected, answer)


def test_a_conv_layer_keeps_nothing_but_its_last_inputs() -> None:
    network = build(ModelSpec(layers=("conv",), conv_size=4), "ring")

    one = cold(network, [1, 2, 3, 4, 5, 6])
    other = cold(network, [9, 9, 3, 4, 5, 6])

    assert np.array_equal(one[-1], other[-1])
    assert not np.array_equal(one[-2], other[-2])


# --- context shift ---------------------------------------------------------------------------


def shifted(network: Network, *, rotate: bool) -> Array:
    """Ten tokens leave the front, the others move up, and one more is asked for."""
    cells = Cells(network)
    cells.feed(network, PROMPT, 0)
    for layer, keys in cells.keys.items():
        shifts = np.full(len(PROMPT) - 10, -10)
        cells.keys[layer] = network.rotate(layer, keys[10:], shifts) if rotate else keys[10:]
        cells.values[layer] = cells.values[layer][10:]
        cells.positions[layer] = cells.positions[layer][10:] - 10
    return cells.feed(network, [400], len(PROMPT) - 10)


def test_rotated_keys_of_a_single_layer_are_those_of_the_shifted_text() -> None:
    expected = cold(ONE_LAYER, [*PROMPT[10:], 400])[-1:]

    assert np.array_equal(expected, shifted(ONE_LAYER, rotate=True))
    assert not np.array_equal(expected, shifted(ONE_LAYER, rotate=False))


def test_a_shift_shows_above_the_first_layer_where_words_were_computed_among_others() -> None:
    network = NETWORKS["attention"]
    expected = cold(network, [*PROMPT[10:], 400])[-1:]

    assert not np.array_equal(expected, shifted(network, rotate=True))


@given(st.lists(st.integers(-5000, 5000), min_size=1, max_size=5))
def test_rotations_add_up_and_undo_each_other(shifts: list[int]) -> None:
    keys = np.arange(3, dtype=np.uint64)[:, None]
    step_by_step = keys
    for shift in shifts:
        step_by_step = ONE_LAYER.rotate(0, step_by_step, np.full(3, shift))

    at_once = ONE_LAYER.rotate(0, keys, np.full(3, sum(shifts)))

    assert np.array_equal(at_once, step_by_step)
    assert np.array_equal(keys, ONE_LAYER.rotate(0, at_once, np.full(3, -sum(shifts))))


def test_without_rope_a_rotation_does_nothing() -> None:
    network = build(ModelSpec(layers=("attention",), rope="none"), "ring")
    keys = np.arange(3, dtype=np.uint64)[:, None]

    assert np.array_equal(keys, network.rotate(0, keys, np.full(3, 11)))
