"""The exact twin is equal where it must be, and keeps the rest of a network's protocol."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ring_kit import LAYERS, NETWORKS, ONE_LAYER, PROMPT, cold, every_network, feed

from cachesim.errors import ContractError, PositionError, TokenError
from cachesim.model.arithmetic import Network, PlainStore
from cachesim.model.build import build
from cachesim.model.ring import DIGIT, Pass, Powers, PrefixSums, fold, inverse, mix, powers, salt
from cachesim.model.spec import ModelSpec
from cachesim.model.store import ABSENT, Lane, Lanes, Ubatch
from cachesim.typed import there_is
from cachesim.units import Array

networks = st.sampled_from(sorted(NETWORKS)).map(NETWORKS.__getitem__)
tokens = st.lists(st.integers(0, 511), min_size=1, max_size=80)


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


@given(networks, tokens, st.integers(0, 1000) | st.integers(65_500, 70_000))
def test_only_relative_positions_count(network: Network, ids: list[int], base: int) -> None:
    moved = feed(network, PlainStore(network), ids, base).logits

    assert np.array_equal(cold(network, ids), moved)


class Scrambled(PlainStore):
    """Lanes in an order of their own, with garbage where no key lies."""

    def __init__(self, network: Network, seed: int) -> None:
        super().__init__(network)
        self._chance = np.random.default_rng(seed)

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
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


@given(st.lists(st.integers(0, 30), max_size=60), st.booleans(), st.sampled_from([1, 4]), st.data())
def test_each_row_adds_up_the_cells_between_its_bounds_on_any_lane(
    held: list[int], in_order: bool, rows: int, data: st.DataObject
) -> None:
    chance = np.random.default_rng(len(held))
    bound = st.lists(st.integers(-2, 33), min_size=rows, max_size=rows)
    positions = np.array(sorted(held) if in_order else held, np.int64)
    positions[chance.random(len(held)) < 0.1] = ABSENT
    cells = chance.integers(0, 1 << 63, (2, len(held)), np.uint64)
    lane = Lane(
        rows=np.arange(rows),
        keys=cells[0][:, None],
        values=cells[1][:, None],
        positions=positions,
        low=np.array(data.draw(bound)),
        high=np.array(data.draw(bound)),
    )

    products = dict(enumerate((cells[0] * cells[1]).tolist()))
    expected = [
        sum(products[i] for i in np.flatnonzero((low <= positions) & (positions <= high))) % 2**64
        for low, high in zip(lane.low, lane.high, strict=True)
    ]

    assert expected == PrefixSums(lane).sums(*cells).tolist()


class Shuffled(PlainStore):
    """Lanes that name their rows in an order of their own."""

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        return tuple(
            lane._replace(rows=lane.rows[::-1], low=lane.low[::-1], high=lane.high[::-1])
            for lane in super().attend(layer, keys, values)
        )


@pytest.mark.parametrize("store", [PlainStore, Shuffled])
@given(networks, st.lists(st.integers(0, 511), min_size=12, max_size=12), st.data())
def test_however_few_rows_are_asked_for_they_are_those_of_all(
    store: type[PlainStore], network: Network, ids: list[int], data: st.DataObject
) -> None:
    sets = data.draw(st.sampled_from([1, 2, 3, 12]))
    asked = data.draw(st.lists(st.integers(0, 11), max_size=7))
    ubatch = Ubatch(tokens=np.array(ids), positions=np.tile(np.arange(12 // sets), sets), sets=sets)
    some = ubatch._replace(outputs=np.array(asked, np.int64))

    of_all = network.run(ubatch, store(network, sets=sets)).logits

    assert np.array_equal(of_all[asked], network.run(some, store(network, sets=sets)).logits)


@given(networks, tokens, st.booleans())
def test_a_token_that_nobody_asks_about_is_kept_like_others(
    network: Network, ids: list[int], asks: bool
) -> None:
    store = PlainStore(network)
    for place, each in enumerate(ids):
        outputs = None if asks else np.zeros(0, np.int64)
        network.run(
            Ubatch(tokens=np.array([each]), positions=np.array([place]), outputs=outputs), store
        )

    answer = feed(network, store, [400], len(ids)).logits

    assert np.array_equal(cold(network, [*ids, 400])[-1:], answer)


def test_lanes_with_the_same_positions_and_bounds_are_looked_at_once() -> None:
    keys, other = np.zeros((2, 3, 1), np.uint64)
    ends = np.arange(3)
    lane = Lane(rows=ends, keys=keys, values=keys, positions=ends, low=ends, high=ends)
    ubatch = Ubatch(tokens=ends, positions=ends)
    run = Pass(ubatch, PlainStore(build(ModelSpec(layers=("attention",)), "ring")), powers(1), 0)

    assert run.sums(lane) is run.sums(lane._replace(keys=other))
    assert run.sums(lane) is not run.sums(lane._replace(low=ends.copy()))


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


def test_words_are_equal_or_they_are_not() -> None:
    words = np.array([[1], [2]], np.uint64)
    far = words + np.array([[0], [1 << 63]], np.uint64)

    found = [ONE_LAYER.difference(words, each) for each in (words.copy(), far, words[:1], words.T)]

    assert [0.0, 1.0, 1.0, 1.0] == found


def test_different_seeds_are_different_networks() -> None:
    other = build(ModelSpec(layers=LAYERS["hybrid"], window=5, seed=1), "ring")

    assert not np.isin(cold(other, PROMPT), cold(NETWORKS["hybrid"], PROMPT)).any()


def test_a_companion_reads_hidden_words_and_next_tokens() -> None:
    network = build(ModelSpec(layers=("ssm", "attention"), mtp_depth=1), "ring")
    companion = there_is(network.companion())
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


@pytest.mark.thorough
def test_a_million_tokens_go_through_at_once_and_in_pieces_alike() -> None:
    network = build(ModelSpec(layers=("ssm", "attention", "delta", "window"), window=64), "ring")
    ids = np.arange(1_000_001) * 7919 % 512
    store = PlainStore(network)
    feed(network, store, ids[:500_000].tolist())

    pieces = feed(network, store, ids[500_000:].tolist(), 500_000).logits

    assert np.array_equal(cold(network, ids.tolist())[500_000:], pieces)


# The arithmetic under ring, against plain Python integers.

WORD = 1 << 64
words = st.integers(0, WORD - 1)
odd_words = words.map(lambda word: word | 1)


@given(odd_words)
def test_an_inverse_multiplies_to_one(word: int) -> None:
    odd = np.array([word], np.uint64)

    assert np.array_equal([1], odd * inverse(odd))


@given(odd_words, st.lists(st.integers(0, (1 << DIGIT) - 1), min_size=1))
def test_powers_of_one_digit_go_up_and_down(base: int, exponents: list[int]) -> None:
    tables, short = Powers(base), np.array(exponents)

    assert tables(short).tolist() == tables.up(short).tolist()
    assert tables(-short).tolist() == tables.down(short).tolist()


@given(odd_words, st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1))
def test_powers_are_powers(base: int, exponents: list[int]) -> None:
    expected = [pow(base, exponent, WORD) for exponent in exponents]

    assert expected == Powers(base)(np.array(exponents)).tolist()


@given(words, st.lists(st.tuples(odd_words, words), min_size=1))
def test_a_folded_chain_is_the_chain_step_by_step(start: int, steps: list[tuple[int, int]]) -> None:
    expected, state = [], start
    for gate, given_word in steps:
        state = (gate * state + given_word) % WORD
        expected.append(state)

    gates, inputs = (np.array([column], np.uint64) for column in zip(*steps, strict=True))
    assert [expected] == fold(np.array([start], np.uint64), gates, inputs).tolist()


@given(st.lists(words, unique=True))
def test_mixing_is_one_to_one(each: list[int]) -> None:
    assert len(each) == len(set(mix(np.array(each, np.uint64)).tolist()))


def test_salts_depend_on_seed_and_name_alone() -> None:
    assert salt(0, "a", 2).tolist() == salt(0, "a", 2).tolist()
    assert 6 == len(
        {*salt(0, "a", 2).tolist(), *salt(1, "a", 2).tolist(), *salt(0, "b", 2).tolist()}
    )
