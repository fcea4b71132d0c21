"""The exact twin: equal where it must be, different where anything at all is different."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.errors import ContractError, PositionError, TokenError
from cachesim.model.arithmetic import Network, Output
from cachesim.model.build import build
from cachesim.model.plain import PlainStore
from cachesim.model.presets import PRESETS
from cachesim.model.ring_layers import masked_sums, running_sums
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.model.store import ABSENT, Lane, Store, Ubatch, Window
from cachesim.units import Array

LAYERS: dict[str, tuple[LayerKind, ...]] = {
    "attention": ("attention", "attention", "attention"),
    "window": ("window", "attention", "window"),
    "ssm": ("ssm", "ssm"),
    "delta": ("delta", "delta"),
    "conv": ("conv", "conv", "attention"),
    "hybrid": ("ssm", "attention", "ssm", "delta", "window"),
}
NETWORKS = {
    name: build(ModelSpec(layers=layers, window=5), "ring") for name, layers in LAYERS.items()
}
ONE_LAYER = build(ModelSpec(layers=("attention",)), "ring")
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS.keys())

networks = st.sampled_from(sorted(NETWORKS)).map(NETWORKS.__getitem__)
tokens = st.lists(st.integers(0, 511), min_size=1, max_size=80)
PROMPT = tuple(range(300, 340))


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

    def attend(self, layer: int, keys: Array, values: Array) -> Window:
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


def feed(network: Network, store: Store, ids: Sequence[int], first: int = 0) -> Output:
    positions = np.arange(first, first + len(ids))
    return network.run(Ubatch(tokens=np.array(ids), positions=positions), store)


def cold(network: Network, ids: Sequence[int]) -> Array:
    return feed(network, PlainStore(network), ids).logits


# --- equal -----------------------------------------------------------------------------------


@given(networks, tokens, st.data())
def test_any_cut_of_a_prompt_gives_the_same_words(
    network: Network, ids: list[int], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(ids)))) | {0, len(ids)})
    store = PlainStore(network, planes=data.draw(st.integers(1, 4)))

    pieces = [feed(network, store, ids[a:b], a).logits for a, b in pairwise(cuts)]

    assert np.array_equal(cold(network, ids), np.concatenate(pieces))


@given(networks, st.lists(st.integers(0, 511), min_size=12, max_size=12), st.integers(1, 4))
def test_sequences_that_share_an_ubatch_do_not_touch_each_other(
    network: Network, ids: list[int], sets: int
) -> None:
    count = 12 // sets
    positions = np.tile(np.arange(count), sets)
    ubatch = Ubatch(tokens=np.array(ids), positions=positions, sets=sets)

    together = network.run(ubatch, PlainStore(network, sets=sets)).logits

    alone = [cold(network, ids[s * count : (s + 1) * count]) for s in range(sets)]
    assert np.array_equal(np.concatenate(alone), together)


@given(networks, tokens, st.integers(0, 1000))
def test_only_relative_positions_count(network: Network, ids: list[int], base: int) -> None:
    moved = feed(network, PlainStore(network), ids, base).logits

    assert np.array_equal(cold(network, ids), moved)


class Scrambled(PlainStore):
    """Lanes in an order of their own, with garbage where no key lies."""

    def __init__(self, network: Network, seed: int) -> None:
        super().__init__(network)
        self._chance = np.random.default_rng(seed)

    def attend(self, layer: int, keys: Array, values: Array) -> Window:
        return tuple(self._scramble(lane) for lane in super().attend(layer, keys, values))

    def _scramble(self, lane: Lane) -> Lane:
        garbage = self._chance.integers(0, 1 << 62, (7, 1), np.uint64)
        positions = np.concatenate([lane.positions, np.full(7, ABSENT)])
        order = self._chance.permutation(len(positions))
        return Lane(
            rows=lane.rows,
            keys=np.concatenate([lane.keys, garbage])[order],
            values=np.concatenate([lane.values, garbage])[order],
            positions=positions[order],
            low=lane.low,
            high=lane.high,
        )


@given(networks, tokens, st.integers(0, 99))
def test_it_does_not_matter_where_cells_lie(network: Network, ids: list[int], seed: int) -> None:
    scrambled = feed(network, Scrambled(network, seed), ids).logits

    assert np.array_equal(cold(network, ids), scrambled)


@given(st.lists(st.integers(0, 30), max_size=60), st.booleans(), st.data())
def test_masked_and_running_sums_agree_on_any_lane(
    held: list[int], in_order: bool, data: st.DataObject
) -> None:
    chance = np.random.default_rng(len(held))
    bound = st.lists(st.integers(-2, 33), min_size=4, max_size=4)
    positions = np.array(sorted(held) if in_order else held, np.int64)
    positions[chance.random(len(held)) < 0.1] = ABSENT
    cells = chance.integers(0, 1 << 63, (len(held), 1), np.uint64)
    lane = Lane(
        rows=np.arange(4),
        keys=cells,
        values=cells,
        positions=positions,
        low=np.array(data.draw(bound)),
        high=np.array(data.draw(bound)),
    )

    assert np.array_equal(masked_sums(cells[:, 0], lane), running_sums(cells[:, 0], lane))


@every_network
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_planes_are_the_states_after_each_of_the_last_tokens(network: Network, count: int) -> None:
    kept: dict[int, Array] = {}

    class Planes(PlainStore):
        def keep_states(self, layer: int, states: Array) -> None:
            kept[layer] = states
            super().keep_states(layer, states)

    store = Planes(network, planes=4)
    feed(network, store, PROMPT[:3])
    feed(network, store, PROMPT[3 : 3 + count], 3)

    for layer, states in kept.items():
        assert states.shape[1] == min(count, 4)
        for plane in range(states.shape[1]):
            shorter = PlainStore(network)
            feed(network, shorter, PROMPT[: 3 + count - plane])
            assert np.array_equal(shorter.states(layer), states[:, plane])


# --- different -------------------------------------------------------------------------------


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


# --- the rest of the protocol ----------------------------------------------------------------


def test_only_rows_asked_for_come_back_and_hidden_words_of_all_for_an_mtp_head() -> None:
    network = build(ModelSpec(layers=("ssm", "attention"), mtp_depth=1), "ring")
    ubatch = Ubatch(
        tokens=np.array(PROMPT), positions=np.arange(len(PROMPT)), outputs=np.array([3, 39])
    )

    output = network.run(ubatch, PlainStore(network))

    assert np.array_equal(cold(network, PROMPT)[[3, 39]], output.logits)
    assert output.hidden is not None
    assert (len(PROMPT), 1) == output.hidden.shape
    assert NETWORKS["hybrid"].run(ubatch, PlainStore(NETWORKS["hybrid"])).hidden is None


@given(st.integers(0, (1 << 64) - 1))
def test_sampled_tokens_are_those_the_float_network_emits(word: int) -> None:
    small = build(ModelSpec(layers=("ssm",), vocabulary=7), "ring")
    row = np.array([word], np.uint64)

    assert 265 <= ONE_LAYER.sample(row) <= 511
    assert 0 <= small.sample(row) < 7


def test_different_seeds_are_different_networks() -> None:
    other = build(ModelSpec(layers=LAYERS["hybrid"], window=5, seed=1), "ring")

    assert not np.isin(cold(other, PROMPT), cold(NETWORKS["hybrid"], PROMPT)).any()


def test_a_companion_reads_hidden_words_and_next_tokens() -> None:
    network = build(ModelSpec(layers=("ssm", "attention"), mtp_depth=1), "ring")
    companion = network.companion()
    assert companion is not None
    hidden = feed(network, PlainStore(network), PROMPT[:-1]).hidden

    def guess(hidden: Array, ids: Sequence[int]) -> Array:
        ubatch = Ubatch(tokens=np.array(ids), positions=np.arange(1, len(PROMPT)), hidden=hidden)
        return companion.run(ubatch, PlainStore(companion)).logits[-1]

    right = guess(hidden, PROMPT[1:])
    stale = hidden.copy()
    stale[2] += np.uint64(1)
    assert not np.array_equal(right, guess(stale, PROMPT[1:]))
    assert not np.array_equal(right, guess(hidden, (*PROMPT[1:-1], 7)))
    assert [("attention", (1,))] == [(s.place, s.key) for s in companion.shapes]
    assert companion.companion() is None
    with pytest.raises(ContractError, match="one hidden word with each of 1 tokens"):
        feed(companion, PlainStore(companion), [1])
    assert ONE_LAYER.companion() is None


def test_what_no_network_can_run_is_refused() -> None:
    store = PlainStore(ONE_LAYER)

    with pytest.raises(TokenError, match="token 512 is"):
        feed(ONE_LAYER, store, [1, 512])
    with pytest.raises(TokenError, match="token -1 is"):
        feed(ONE_LAYER, store, [-1])
    with pytest.raises(TokenError, match="without tokens"):
        feed(ONE_LAYER, store, [])
    with pytest.raises(PositionError, match="position -3 is"):
        feed(ONE_LAYER, store, [1], -3)
    with pytest.raises(PositionError, match="position 2147483648 is"):
        feed(ONE_LAYER, store, [1], 1 << 31)
    feed(ONE_LAYER, store, [1], (1 << 31) - 1)


def test_a_million_tokens_go_through_at_once_and_in_pieces_alike() -> None:
    network = build(ModelSpec(layers=("ssm", "attention", "delta", "window"), window=64), "ring")
    ids = np.arange(1_000_001) * 7919 % 512
    store = PlainStore(network)
    feed(network, store, ids[:500_000].tolist())

    pieces = feed(network, store, ids[500_000:].tolist(), 500_000).logits

    assert np.array_equal(cold(network, ids.tolist())[500_000:], pieces)
