"""One token alone takes a way of its own through the layers, and comes out with the same bits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scattered import Piece, ScatteredStore

from cachesim.errors import ContractError
from cachesim.model.arithmetic import Output
from cachesim.model.build import build
from cachesim.model.network import FloatNetwork
from cachesim.model.one import recurrent, tile
from cachesim.model.plain import PlainStore
from cachesim.model.presets import PRESETS, preset, tiny
from cachesim.model.spec import ModelSpec
from cachesim.model.store import Lanes, Ubatch
from cachesim.units import Array

ODD = {
    "one head of its own": preset("dense", heads=3, kv_heads=3, head_size=64, width=40),
    "many heads for one key": preset("dense", heads=8, kv_heads=1, rope="none", head_size=5),
    "a table of activations": preset("swa", activation="gelu-table"),
    "chunks": preset("swa", chunked=True),
    "a head that is the table": preset("hybrid", tied_head=True, vocabulary=1500),
}
SPECS = {
    **{name: preset(name) for name in PRESETS},
    **{f"{name}, tiny": tiny(name) for name in PRESETS},
    **ODD,
}
BEFORE, LONG = 50, 100  # the tokens behind the first cross a border of blocks


@contextmanager
def among_rows() -> Iterator[None]:
    """A token alone goes the way of all rows."""
    with patch("cachesim.model.network.is_one", lambda _: False):
        yield


def tokens_from(seed: int, count: int = LONG) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 512, count).tolist())


def one_by_one(spec: ModelSpec, tokens: tuple[int, ...], chance: int) -> tuple[Array, list[Array]]:
    """The logits of the tokens behind the first, and all states that were kept on the way."""
    network = build(spec)
    store = ScatteredStore(network, chance=chance, planes=2)
    store.play(Piece(0, tokens[:BEFORE], 0))
    logits = [store.play(Piece(0, (tokens[i],), i))[0] for i in range(BEFORE, len(tokens))]
    return np.concatenate(logits), [each for kept in store.kept.values() for each in kept]


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=4)
@given(seed=st.integers(0, 999), chance=st.integers(0, 999))
def test_a_token_alone_has_the_bits_it_has_among_rows(name: str, seed: int, chance: int) -> None:
    spec, tokens = SPECS[name], tokens_from(seed)

    with among_rows():
        expected, states = one_by_one(spec, tokens, chance)
    logits, kept = one_by_one(spec, tokens, chance)

    assert np.array_equal(expected, logits)
    assert len(states) == len(kept)
    assert all(map(np.array_equal, states, kept))


def answers(network: FloatNetwork, **asked: Array) -> list[Output]:
    """What the network says of one token, and then its companion of another."""
    store = PlainStore(network)
    ubatch = Ubatch(tokens=np.array([7]), positions=np.array([0]), **asked)
    first = network.run(ubatch, store)
    head = network.companion()
    if head is None:
        return [first]
    guess = Ubatch(tokens=np.array([3]), positions=np.array([1]), hidden=first.hidden, **asked)
    return [first, head.run(guess, PlainStore(head))]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("outputs", [None, [0], []])
def test_it_says_no_more_than_it_is_asked(name: str, outputs: list[int] | None) -> None:
    network = FloatNetwork(preset(name))
    asked = {} if outputs is None else {"outputs": np.array(outputs, dtype=np.int64)}

    with among_rows():
        expected = answers(network, **asked)
    found = answers(network, **asked)

    for one, other in zip(expected, found, strict=True):
        assert one.logits.shape == other.logits.shape
        assert np.array_equal(one.logits, other.logits)
        assert (one.hidden is None) == (other.hidden is None)
        assert one.hidden is None or np.array_equal(one.hidden, np.asarray(other.hidden))


class Interrupting(PlainStore):
    """A store that asks the network about something else before it answers, as a thread might."""

    def attend(self, layer: int, keys: Array, values: Array) -> Lanes:
        lanes = super().attend(layer, keys, values)
        ask(NETWORK, PlainStore(NETWORK), 300)
        return lanes


NETWORK = FloatNetwork(tiny("hybrid"))


def ask(network: FloatNetwork, store: PlainStore, token: int) -> Array:
    ubatch = Ubatch(tokens=np.array([token]), positions=np.array([0]))
    return network.run(ubatch, store).logits


def test_who_comes_in_between_changes_nothing() -> None:
    alone = ask(NETWORK, PlainStore(NETWORK), 5)

    assert np.array_equal(alone, ask(NETWORK, Interrupting(NETWORK), 5))


def test_what_it_hands_out_is_not_written_again() -> None:
    network = FloatNetwork(tiny("hybrid-mtp"))
    store = PlainStore(network)
    first = answers(network)[0]
    kept = first.logits.copy(), np.array(first.hidden)

    ask(network, store, 9)

    assert np.array_equal(kept[0], first.logits)
    assert np.array_equal(kept[1], np.asarray(first.hidden))


def test_a_damaged_state_is_noticed() -> None:
    network = FloatNetwork(tiny("recurrent"))
    store = PlainStore(network)
    for layer in (0, 1):
        store.keep_states(layer, np.full((1, 1, store.states(layer).shape[1]), np.nan))

    with pytest.raises(ContractError, match="not finite"):
        ask(network, store, 5)


# Mutants: a way that is right but for rounding, or but for one old row, must be caught.


def rounded(self: tile.Tile, x: Array) -> None:
    np.divide(x, np.linalg.norm(x) / len(x) ** 0.5, self.row)
    self()


def forgetful(self: recurrent.Convolution, before: Array, after: Array, out: Array) -> None:
    HONEST(self, np.zeros_like(before), after, out)


HONEST: Callable[..., None] = recurrent.Convolution.__call__


@pytest.mark.parametrize(
    ("where", "name", "mutant"),
    [
        ("cachesim.model.one.tile", "Tile.normed", rounded),
        ("cachesim.model.one.recurrent", "Convolution.__call__", forgetful),
    ],
)
def test_a_mutant_is_caught(where: str, name: str, mutant: object) -> None:
    tokens = tokens_from(1, BEFORE + 3)
    with among_rows():
        expected, _ = one_by_one(preset("hybrid"), tokens, 0)

    with patch(f"{where}.{name}", mutant):
        logits, _ = one_by_one(preset("hybrid"), tokens, 0)

    assert not np.array_equal(expected, logits)


def test_a_row_in_a_tile_of_zeros_is_the_row_alone() -> None:
    matrix = FloatNetwork(tiny("dense"))._head.matrix
    one = tile.Tile(matrix, 4)
    one.row[:] = np.arange(matrix.inner)

    one()

    assert np.allclose(np.arange(matrix.inner) @ matrix.factor, one.result)
