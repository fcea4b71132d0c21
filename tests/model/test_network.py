"""The float network: what it refuses, what it hands back, its companion, its liveliness."""

import platform
import subprocess
import sys

import numpy as np
import pytest
from scattered import Piece, ScatteredStore

from cachesim.errors import ContractError, PositionError, SpecError, TokenError
from cachesim.model.arithmetic import PlainStore
from cachesim.model.build import build
from cachesim.model.network import MOST_POSITION, FloatNetwork
from cachesim.model.presets import PRESETS, preset, tiny
from cachesim.model.spec import ModelSpec
from cachesim.model.store import ABSENT, BLOCK, Lanes, Store, Ubatch
from cachesim.typed import there_is
from cachesim.units import Array

NAMES = sorted(PRESETS)


def ubatch(tokens: list[int], first: int = 0, sets: int = 1) -> Ubatch:
    positions = np.arange(first, first + len(tokens))
    return Ubatch(tokens=np.array(tokens, dtype=np.int64), positions=positions, sets=sets)


def prompt(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(265, 512, count).tolist()


def logits(spec: ModelSpec, tokens: list[int]) -> Array:
    network = build(spec)
    return network.run(ubatch(tokens), PlainStore(network)).logits


@pytest.mark.parametrize(
    ("piece", "error", "words"),
    [
        (ubatch([3, 512]), TokenError, "token 512 is not in the vocabulary: write ids from 0 to"),
        (ubatch([-1]), TokenError, "token -1 is not"),
        (ubatch([]), TokenError, "without tokens"),
        (ubatch([3, 4, 5], sets=2), TokenError, "3 tokens do not fall into 2 sets"),
        (ubatch([3, 4], first=-2), PositionError, "position -2 is out of range"),
        (ubatch([3], MOST_POSITION + 1), PositionError, f"{MOST_POSITION + 1} is out of range"),
        (Ubatch(np.array([3]), np.array([0, 1])), PositionError, "2 positions for 1 tokens"),
    ],
)
def test_tokens_and_positions_that_cannot_be_are_refused(
    piece: Ubatch, error: type[Exception], words: str
) -> None:
    network = build(tiny("dense"))
    with pytest.raises(error, match=words):
        network.run(piece, PlainStore(network))


def test_an_arithmetic_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(SpecError, match="no arithmetic 'float32' for 'dense'; there are 'float'"):
        build(preset("dense"), "float32")  # type: ignore[arg-type]


def test_a_query_that_sees_no_key_is_a_broken_contract() -> None:
    network = build(tiny("dense"))

    class Blind(PlainStore):
        def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
            (lane,) = super().attend(layer, keys, values)
            lane.positions[:] = np.iinfo(np.int64).max
            return (lane,)

    with pytest.raises(ContractError, match="not finite"):
        network.run(ubatch([300]), Blind(network))


@pytest.mark.parametrize("name", NAMES)
def test_logits_come_for_the_rows_asked_for(name: str) -> None:
    network = build(tiny(name))
    tokens = prompt(9)
    whole = network.run(ubatch(tokens), PlainStore(network))
    asked = Ubatch(
        tokens=np.array(tokens), positions=np.arange(9), outputs=np.array([8, 2], dtype=np.int64)
    )

    some = network.run(asked, PlainStore(network))

    assert np.array_equal(whole.logits[[8, 2]], some.logits)


@pytest.mark.parametrize("name", NAMES)
def test_rows_nobody_asked_for_are_remembered_all_the_same(name: str) -> None:
    network = build(tiny(name))
    tokens = prompt(9)
    told = Ubatch(tokens=np.array(tokens[:8]), positions=np.arange(8), outputs=np.array([], int))
    asked = Ubatch(tokens=np.array(tokens[8:]), positions=np.array([8]))
    store = PlainStore(network)

    nothing = network.run(told, store).logits
    answer = network.run(asked, store).logits

    assert (0, 512) == nothing.shape
    assert np.array_equal(network.run(ubatch(tokens), PlainStore(network)).logits[8:], answer)


def test_hidden_rows_come_for_all_where_an_mtp_head_reads_them() -> None:
    asked = ubatch(prompt(9))._replace(outputs=np.array([8, 2]))
    network = build(tiny("hybrid-mtp"))

    whole = network.run(ubatch(prompt(9)), PlainStore(network)).hidden
    some = there_is(network.run(asked, PlainStore(network)).hidden)

    assert (9, 16) == some.shape
    assert np.array_equal(whole, some)


def test_without_an_mtp_head_nobody_is_handed_hidden_rows() -> None:
    network = build(tiny("hybrid"))

    assert network.run(ubatch(prompt(9)), PlainStore(network)).hidden is None


def test_sampling_is_greedy_and_ties_go_to_the_lowest_id() -> None:
    assert 2 == build(tiny("dense")).sample(np.array([0.0, 1.0, 3.0, 3.0]))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_decoding_yields_plain_tokens_only(name: str) -> None:
    assert (logits(preset(name), prompt(100)).argmax(axis=1) >= 265).all()


def test_difference_is_the_largest_distance() -> None:
    network = build(tiny("dense"))
    one = np.array([1.0, 2.0, 3.0])

    assert 0.0 == network.difference(one, one.copy())
    assert 0.5 == network.difference(one, one + np.array([0, -0.5, 0.25]))
    assert np.inf == network.difference(one, one[:2])


def test_equal_specs_share_a_network_and_equal_seeds_its_answers() -> None:
    spec = tiny("hybrid")

    assert build(spec) is build(tiny("hybrid"))
    fresh = FloatNetwork(spec)
    again = fresh.run(ubatch(prompt(5)), PlainStore(fresh)).logits
    assert np.array_equal(logits(spec, prompt(5)), again)
    assert not np.array_equal(again, logits(tiny("hybrid", seed=1), prompt(5)))


@pytest.mark.parametrize("name", ["dense", "swa"])
def test_rotated_keys_are_those_of_the_shifted_positions(name: str) -> None:
    """The first layer's keys know nothing but their token and their position."""
    network = build(preset(name))
    tokens = prompt(6)

    def first_keys(first: int) -> Array:
        store = Recorder(network)
        network.run(ubatch(tokens, first), store)
        return store.keys[0]

    shifts = np.full(6, -1000)
    assert np.allclose(first_keys(7), network.rotate(0, first_keys(1007), shifts), atol=1e-9)
    assert np.allclose(first_keys(1007), network.rotate(0, first_keys(7), -shifts), atol=1e-9)
    assert np.array_equal(first_keys(7), network.rotate(0, first_keys(7), np.zeros(6, np.int64)))


def test_without_rope_nothing_is_rotated() -> None:
    keys = np.random.default_rng(0).normal(size=(3, 2, 16))

    turned = build(preset("dense", rope="none")).rotate(0, keys, np.array([1, 2, 3]))

    assert np.array_equal(keys, turned)
    assert turned is not keys


class Recorder(PlainStore):
    """Remembers the keys that came in; positions are the ubatch's, from 0 for this store."""

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        self.keys = getattr(self, "keys", {}) | {layer: keys.copy()}
        return super().attend(layer, keys, values)


@pytest.mark.parametrize("name", ["recurrent", "hybrid-delta", "hybrid-swa"])
@pytest.mark.parametrize("length", [1, 3, 40, 70])
def test_planes_are_the_states_after_the_last_tokens(name: str, length: int) -> None:
    network = build(tiny(name))
    tokens = tuple(prompt(length))
    store = ScatteredStore(network, planes=4)

    store.play(Piece(0, (300,), 0))
    store.play(Piece(0, tokens, 1))

    for layer in tiny(name).recurrent_layers:
        planes = store.kept[layer][-1][0]
        assert min(4, length) == len(planes)
        for back, plane in enumerate(planes):
            shorter = ScatteredStore(network)
            shorter.play(Piece(0, (300, *tokens[: length - back]), 0))
            assert np.array_equal(shorter.kept[layer][-1][0, 0], plane)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "hybrid-swa"])
def test_the_first_of_200_tokens_matters_to_the_last_logits(name: str) -> None:
    assert 1e-3 < influence(preset(name), 200)


def test_within_its_reach_a_first_token_matters_to_hybrid_swa_too() -> None:
    """Two windows of 32 and two short convolutions: 67 tokens back, no logit can look."""
    spec = preset("hybrid-swa")

    assert 1e-3 < influence(spec, 60)
    assert 0.0 == influence(spec, 68)


def influence(spec: ModelSpec, count: int) -> float:
    """Change of the last logits by another first token, relative to their scale."""
    tokens = prompt(count)
    one = logits(spec, tokens)[-1]
    other = logits(spec, [265 + (tokens[0] - 265 + 1) % 247, *tokens[1:]])[-1]
    return float(np.abs(one - other).max() / np.abs(one).max())


def guesses(tokens: list[int], hidden: Array, cuts: list[int]) -> Array:
    """The MTP head's logits: each token beside the target's hidden row before it."""
    head = there_is(build(preset("hybrid-mtp")).companion())
    store: Store = PlainStore(head)
    found = []
    for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        piece = Ubatch(tokens=np.array(tokens[a:b]), positions=np.arange(a, b), hidden=hidden[a:b])
        found.append(head.run(piece, store).logits)
    return np.concatenate(found)


def mtp_case() -> tuple[list[int], Array, Array]:
    target = build(preset("hybrid-mtp"))
    tokens = prompt(80)
    output = target.run(ubatch(tokens), PlainStore(target))
    return tokens, np.concatenate([np.zeros((1, 64)), output.hidden[:-1]]), output.logits


def test_the_mtp_head_is_often_right() -> None:
    tokens, before, truth = mtp_case()

    right = guesses(tokens, before, []).argmax(axis=1) == truth.argmax(axis=1)

    assert right.mean() > 0.25, "by chance it would be 1 in 247"


def test_the_mtp_head_answers_with_the_same_bits_however_it_is_cut() -> None:
    tokens, before, _ = mtp_case()

    assert np.array_equal(guesses(tokens, before, []), guesses(tokens, before, [1, 3, 66]))


def test_the_mtp_head_reads_the_hidden_rows() -> None:
    tokens, before, _ = mtp_case()

    assert not np.allclose(guesses(tokens, before, []), guesses(tokens, before[::-1], []))


def test_the_mtp_head_needs_hidden_rows() -> None:
    head = there_is(build(preset("hybrid-mtp")).companion())

    with pytest.raises(ContractError, match="reads a hidden row of width 64"):
        head.run(ubatch([300]), PlainStore(head))


def test_the_mtp_head_keeps_one_attention_layer_behind_the_others() -> None:
    head = there_is(build(preset("hybrid-mtp")).companion())

    assert [(4, "attention")] == [(shape.layer, shape.place) for shape in head.shapes]
    assert head.companion() is None
    assert build(preset("hybrid-delta")).companion() is None


TWICE = """
import resource
import numpy as np
from cachesim.model.network import FloatNetwork
from cachesim.model.arithmetic import PlainStore
from cachesim.model.presets import preset
from cachesim.model.store import Ubatch

network = FloatNetwork(preset("recurrent"))
ubatch = Ubatch(tokens=np.arange(400), positions=np.arange(400), outputs=np.array([399]))
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    network.run(ubatch, PlainStore(network))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries keep other amounts"
)
def test_memory_that_one_prefill_freed_serves_the_next() -> None:
    """Each page that the system takes back and hands out again costs about a microsecond."""
    pages = subprocess.run(
        [sys.executable, "-c", TWICE], capture_output=True, text=True, check=True
    ).stdout

    assert int(pages) < 200


# The plain store: what each token sees of a history that only grows.

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
