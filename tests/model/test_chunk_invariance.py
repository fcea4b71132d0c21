"""The same bits however a prompt is cut, whatever shares the ubatch, wherever its cells lie."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scattered import Piece, ScatteredStore

from cachesim.model import mixers, parts
from cachesim.model.arithmetic import ArithmeticName, Network, PlainStore
from cachesim.model.build import build
from cachesim.model.network import FloatNetwork
from cachesim.model.presets import PRESETS, preset, tiny
from cachesim.model.spec import ModelSpec
from cachesim.model.store import CHUNK, Padding, Ubatch
from cachesim.model.tiles import Ladder, Matrix, ladder_for, noise, packed
from cachesim.model.trace import Traced
from cachesim.units import Array

NAMES = sorted(PRESETS)
SHORT, LONG = 40, 150  # below one block of keys; across two borders


def tokens_from(seed: int, count: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 512, count).tolist())


def cold(spec: ModelSpec, tokens: tuple[int, ...]) -> Array:
    network = build(spec)
    ubatch = Ubatch(tokens=np.array(tokens), positions=np.arange(len(tokens)))
    return network.run(ubatch, PlainStore(network)).logits


def in_pieces(
    spec: ModelSpec,
    tokens: tuple[int, ...],
    cuts: list[int],
    made: Callable[[ModelSpec], Network] = build,
) -> Array:
    network = made(spec)
    store = PlainStore(network)
    return np.concatenate(
        [
            network.run(
                Ubatch(tokens=np.array(tokens[a:b]), positions=np.arange(a, b)), store
            ).logits
            for a, b in pairwise([0, *cuts, len(tokens)])
        ]
    )


def cutting(count: int) -> st.SearchStrategy[list[int]]:
    return st.sets(st.integers(1, count - 1), max_size=8).map(sorted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(seed=st.integers(0, 999), cuts=cutting(LONG))
def test_a_preset_answers_with_the_same_bits_however_it_is_cut(
    name: str, seed: int, cuts: list[int]
) -> None:
    tokens = tokens_from(seed, LONG)

    assert np.array_equal(cold(preset(name), tokens), in_pieces(preset(name), tokens, cuts))


@pytest.mark.parametrize("name", NAMES)
def test_token_by_token_is_the_same_as_all_at_once(name: str) -> None:
    tokens = tokens_from(7, LONG)

    one_by_one = in_pieces(preset(name), tokens, list(range(1, LONG)))

    assert np.array_equal(cold(preset(name), tokens), one_by_one)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 999), cuts=cutting(SHORT))
def test_tiny_models_do_not_care_for_cuts_either(name: str, seed: int, cuts: list[int]) -> None:
    tokens = tokens_from(seed, SHORT)

    assert np.array_equal(cold(tiny(name), tokens), in_pieces(tiny(name), tokens, cuts))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 99),
    chances=st.tuples(st.integers(0, 999), st.integers(0, 999)),
    starts=st.lists(st.integers(0, 200), min_size=2, max_size=3),
    cuts=cutting(SHORT),
)
def test_neighbours_and_places_do_not_matter(
    name: str, seed: int, chances: tuple[int, int], starts: list[int], cuts: list[int]
) -> None:
    network = build(tiny(name))
    told = [tokens_from(seed + i, SHORT) for i in range(len(starts))]

    def pieces(a: int, b: int) -> list[Piece]:
        return [Piece(i, told[i][a:b], start + a) for i, start in enumerate(starts)]

    alone = [
        ScatteredStore(network, chance=chances[0]).play(piece)[0] for piece in pieces(0, SHORT)
    ]
    crowd = ScatteredStore(network, chance=chances[1])
    together = [crowd.play(*pieces(a, b)) for a, b in pairwise([0, *cuts, SHORT])]

    for mine, those in zip(alone, zip(*together, strict=True), strict=True):
        assert np.array_equal(mine, np.concatenate(those))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(seed=st.integers(0, 99), asked=st.lists(st.integers(0, 3 * SHORT - 1), max_size=2 * SHORT))
def test_rows_that_nobody_reads_do_not_matter(name: str, seed: int, asked: list[int]) -> None:
    network = build(tiny(name))
    pieces = [Piece(i, tokens_from(seed + i, SHORT), 60 * i) for i in range(3)]

    every = ScatteredStore(network, chance=seed).answers(None, *pieces)
    some = ScatteredStore(network, chance=seed + 1).answers(asked, *pieces)

    assert np.array_equal(every[asked], some)


def test_wide_heads_and_odd_shapes_are_invariant_too() -> None:
    spec = preset("dense", width=40, heads=3, kv_heads=3, head_size=64, mlp_width=50)
    tokens = tokens_from(3, LONG)

    assert np.array_equal(cold(spec, tokens), in_pieces(spec, tokens, [1, 4, 70, 129]))


def test_a_table_of_activations_does_not_care_for_cuts() -> None:
    spec = preset("swa", activation="gelu-table")
    tokens = tokens_from(5, LONG)

    assert np.array_equal(cold(spec, tokens), in_pieces(spec, tokens, [1, 4, 70, 129]))
    assert not np.array_equal(cold(preset("swa"), tokens), cold(spec, tokens))


def test_a_machine_that_cannot_mix_heights_uses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for chooser in ("ladder_for", "attention_ladder_for"):
        monkeypatch.setattr(f"cachesim.model.network.{chooser}", lambda *_: (16,))
    tokens = tokens_from(4, 90)

    whole = run_fresh(preset("hybrid"), tokens, [])

    assert np.array_equal(whole, run_fresh(preset("hybrid"), tokens, [1, 2, 30, 77]))
    assert np.allclose(whole, cold(preset("hybrid"), tokens), rtol=1e-9, atol=1e-9)


def run_fresh(spec: ModelSpec, tokens: tuple[int, ...], cuts: list[int]) -> Array:
    """On a network of its own: patched arithmetic must not stay in a cache."""
    return in_pieces(spec, tokens, cuts, FloatNetwork)


def test_this_machine_was_asked_what_it_can_mix() -> None:
    assert ladder_for((packed(np.zeros((128, 64))),))[0] >= 4


# Mutants: arithmetic that looks right, and must be caught by what stands above.


def plain_product(rows: Array, matrix: Matrix, ladder: Ladder) -> Array:
    """`@` on the real rows alone."""
    del ladder
    result = np.zeros((len(rows), matrix.columns))
    real = int(np.flatnonzero(rows.any(axis=1))[-1]) + 1
    result[:real] = rows[:real] @ matrix.factor
    return result


def plain_products_are_harmless() -> bool:
    rows, matrix = noise(150, 128), noise(128, 64)
    whole = rows @ matrix
    return all(np.array_equal(rows[i : i + 1] @ matrix, whole[i : i + 1]) for i in range(150))


def gather_in_one_sum(scores: Array, values: Array, count: int, group: int) -> Array:
    """Weights added up over the whole lane in one reduction, not block after block."""
    kv_heads, blocks = scores.shape[:2]
    scores = scores - np.maximum.reduce(scores, axis=1).max(axis=-1)[:, None, ..., None]
    weights = np.moveaxis(np.exp(scores), 1, 3).reshape(kv_heads, -1, blocks * 64)
    total = weights.sum(axis=-1)
    flat = np.moveaxis(values.reshape(-1, *values.shape[2:]), 1, 0)
    seen = np.einsum("krn,kns->krs", weights, flat) / total[..., None]
    rows = seen[:, : count * group].reshape(kv_heads, count, group, -1)
    return rows.transpose(1, 0, 2, 3).reshape(count, kv_heads * group, -1)


@pytest.mark.parametrize(
    ("room", "name", "mutant"),
    [(parts, "product", plain_product), (mixers, "gather", gather_in_one_sum)],
    ids=["plain @ in one projection", "one sum over the padded lane"],
)
def test_a_mutant_is_caught(
    room: object, name: str, mutant: Callable[..., Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    if mutant is plain_product and plain_products_are_harmless():
        pytest.skip("on this machine a row alone has the bits it has in a crowd")
    tokens = tokens_from(7, LONG)
    honest = cold(preset("dense"), tokens)
    monkeypatch.setattr(room, name, mutant)

    whole = run_fresh(preset("dense"), tokens, [])
    one_by_one = run_fresh(preset("dense"), tokens, list(range(1, LONG)))
    across_a_border = run_fresh(preset("dense"), tokens, [70, 134])

    assert np.allclose(honest, whole, rtol=1e-9, atol=1e-9), "a mutant is right but for rounding"
    assert not (np.array_equal(whole, one_by_one) and np.array_equal(whole, across_a_border))


# Rows of a padded batch: the fold of the tokens, and what upstream's layers make of the rest.

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
    layers = tuple(layer for layer in spec.layers if layer in {"ssm", "delta", "conv"}) * 2
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
