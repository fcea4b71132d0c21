"""The small parts of the layers: norms, rotations, tiles, convolutions, what a lane shows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cachesim.model import mixers, tiles
from cachesim.model.arithmetic import PlainStore
from cachesim.model.build import build
from cachesim.model.mixers import carry, convolve, extended
from cachesim.model.parts import (
    PAGE,
    Rotary,
    gelu,
    gelu_table,
    halves_order,
    l2_norm,
    rms_norm,
    rotate,
    sigmoid,
    silu,
    softplus,
)
from cachesim.model.presets import preset
from cachesim.model.store import ABSENT, BLOCK, Lane
from cachesim.model.tiles import (
    ALONE,
    ATTENTION_LADDER,
    LADDER,
    MOST_COLUMNS,
    ORDERS,
    SERIAL,
    SMALL,
    KeyMasks,
    Ladder,
    Order,
    Run,
    below_threads,
    blocks,
    mixes,
    order_for,
    packed,
    padded,
    product,
    sides_mix,
)
from cachesim.typed import there_is
from cachesim.units import Array
from tests.fixtures import Patch

NUMBERS = arrays.arrays(np.float64, (3, 8), elements=st.floats(-50, 50))


@given(NUMBERS)
def test_rms_norm_brings_rows_to_one(rows: Array) -> None:
    expected = rows / np.sqrt((rows * rows).mean(axis=-1, keepdims=True) + 1e-6)

    assert np.allclose(expected, rms_norm(rows, 1e-6), rtol=1e-12)


def test_l2_norm_divides_short_rows_by_epsilon_as_ggml_does() -> None:
    rows = np.array([[3.0, 4.0], [3e-9, 4e-9], [0.0, 0.0]])

    assert np.allclose([[0.6, 0.8], [3e-3, 4e-3], [0, 0]], l2_norm(rows, 1e-6))


@given(NUMBERS)
def test_activations_are_what_their_names_say(x: Array) -> None:
    tanh = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))

    assert np.allclose(1 / (1 + np.exp(-x)), sigmoid(x))
    assert np.allclose(x / (1 + np.exp(-x)), silu(x))
    with np.errstate(over="ignore"):
        assert np.allclose(0.5 * x * (1 + tanh), gelu(x), atol=1e-12)
    assert np.allclose(np.log1p(np.exp(x)), softplus(x))


@given(NUMBERS)
def test_ggml_looks_gelu_up_for_the_nearest_half_precision_number(x: Array) -> None:
    inside = np.clip(x, -9.9, 9.9)
    halves = inside.astype(np.float32).astype(np.float16).astype(np.float64)

    assert np.array_equal(gelu(halves).astype(np.float16), gelu_table(inside))
    assert np.allclose(gelu(inside), gelu_table(inside), rtol=2e-3, atol=1e-4)


def test_ggml_leaves_its_table_at_ten() -> None:
    table = gelu_table(np.array([-1e9, -10.0, -9.99, 9.9990001, 10.0001, 1e9]))

    assert [0.0, 0.0] == table[:2].tolist()
    assert 10.0 == table[3], "half-precision numbers are 1/128 apart there"
    assert [10.0001, 1e9] == table[4:].tolist()


def test_softplus_does_not_overflow() -> None:
    assert [0.0, 1000.0] == softplus(np.array([-1000.0, 1000.0])).tolist()


def test_a_turn_keeps_lengths_and_depends_on_distance_alone() -> None:
    rotary = Rotary(preset("dense"))
    rows = np.random.default_rng(1).normal(size=(2, 1, 16))

    def met(query_at: int, key_at: int) -> float:
        turned = rotate(rows, there_is(rotary.turns(np.array([query_at, key_at]))))
        assert np.allclose((rows**2).sum(axis=-1), (turned**2).sum(axis=-1))
        return float(turned[0, 0] @ turned[1, 0])

    assert met(7, 3) == pytest.approx(met(1007, 1003))
    assert met(7, 3) != pytest.approx(met(7, 4))


def test_angles_are_the_same_bits_whoever_asks() -> None:
    spec = preset("dense")
    positions = np.array([5, PAGE - 1, PAGE, 3 * PAGE + 1, 2_000_000_000])

    together = there_is(Rotary(spec).turns(positions))

    for i, position in enumerate(positions):
        alone = there_is(Rotary(spec).turns(np.array([position])))
        assert np.array_equal(together[0][i], alone[0][0])
        assert np.array_equal(together[1][i], alone[1][0])


def test_pairs_are_read_as_halves() -> None:
    assert [0, 2, 4, 1, 3, 5] == halves_order(preset("dense", head_size=6)).tolist()
    assert [0, 1, 2, 3] == halves_order(preset("swa", head_size=4)).tolist()


@given(st.integers(0, 3000), st.sampled_from([LADDER, ALONE]))
def test_rows_are_padded_to_full_tiles_and_one_agreed_height(
    rows: int, ladder: tuple[int, ...]
) -> None:
    filled = padded(rows, ladder)

    assert rows <= filled < rows + ladder[-1]
    assert filled % ladder[-1] in {0, *ladder}


@given(st.integers(1, 200), st.integers(1, 300))
def test_a_product_in_tiles_is_the_product(count: int, columns: int) -> None:
    random = np.random.default_rng(2)
    parts = random.normal(size=(columns, 8)), random.normal(size=(6, 8))
    rows = random.normal(size=(padded(count, LADDER), 8))

    result = product(rows, packed(*parts), LADDER)

    assert 0 == result.shape[1] % 16
    assert np.allclose(rows @ np.concatenate(parts).T, result[:, : columns + 6])
    assert not result[:, columns + 6 :].any()


def test_tiles_stay_below_what_wakes_threads() -> None:
    assert LADDER == below_threads(LADDER, 64 * 128)
    assert (4, 8) == below_threads(LADDER, SERIAL // 8)
    assert (4,) == below_threads(LADDER, SERIAL)


def test_mixing_is_refused_where_one_height_gives_other_bits(monkeypatch: Patch) -> None:
    honest = np.matmul

    def moody(a: Array, b: Array, out: Array | None = None) -> Array:
        result: Array = honest(a, b, out=out)
        result *= 1 + 2**-52 if len(a) == 8 else 1
        return result

    for asked in (mixes, sides_mix):
        asked.cache_clear()
    monkeypatch.setattr(np, "matmul", moody)

    assert not any(mixes(LADDER, 64, 128, order) for order in ORDERS)
    assert not sides_mix(ATTENTION_LADDER, 2, 16, BLOCK)
    for asked in (mixes, sides_mix):
        asked.cache_clear()


def test_large_weights_lie_as_small_ones_must_where_both_orders_mix(monkeypatch: Patch) -> None:
    """Kernels for small products, which want rows in one piece, also take blocks of large ones."""
    inner, columns = SMALL

    def mixed(_: Ladder, deep: int, wide: int, order: Order) -> bool:
        return order == "C" or deep * wide > inner * columns

    monkeypatch.setattr(tiles, "mixes", mixed)
    order_for.cache_clear()

    assert ["C", "C"] == [order_for(64, 128), order_for(64, 336)]
    order_for.cache_clear()


def test_weights_lie_in_the_order_in_which_heights_mix(monkeypatch: Patch) -> None:
    weights = np.random.default_rng(2).normal(size=(30, 8))

    for order in ORDERS:
        monkeypatch.setattr(tiles, "mixes", lambda *asked, only=order: asked[-1] == only)
        order_for.cache_clear()
        factor = packed(weights).factor

        assert order == order_for(8, 32)
        assert factor.flags[f"{order}_CONTIGUOUS"]
        assert np.array_equal(weights.T, factor[:, :30])
        assert not factor[:, 30:].any()
    order_for.cache_clear()


@given(st.sampled_from(LADDER), st.integers(1, 4096), st.integers(1, 500))
def test_blocks_of_columns_are_all_of_them_and_none_wakes_threads(
    height: int, inner: int, sixteens: int
) -> None:
    some = blocks(height, inner, 16 * sixteens)

    assert list(range(16 * sixteens)) == [c for each in some for c in range(16 * sixteens)[each]]
    widest = max(each.stop - each.start for each in some)
    assert widest <= MOST_COLUMNS or height * inner * widest <= SERIAL


def test_a_carried_convolution_is_the_whole_one() -> None:
    random = np.random.default_rng(3)
    rows, taps = random.normal(size=(2, 9, 5)), random.normal(size=(4, 5))
    nothing = np.zeros((2, 3 * 5))

    whole = convolve(extended(nothing, rows), taps)

    first = extended(nothing, rows[:, :2])
    second = extended(carry(first, 4, back=0), rows[:, 2:])
    assert np.array_equal(whole, np.concatenate([convolve(first, taps), convolve(second, taps)], 1))


def test_a_row_carried_from_further_back_is_what_a_shorter_run_would_carry() -> None:
    rows = np.random.default_rng(4).normal(size=(1, 6, 2))
    nothing = np.zeros((1, 3 * 2))

    for back in range(5):
        expected = carry(extended(nothing, rows[:, : 6 - back]), 4, back=0)
        assert np.array_equal(expected, carry(extended(nothing, rows), 4, back=back))


def lane(positions: list[int], low: list[int], high: list[int], random: int = 1) -> Lane:
    source = np.random.default_rng(random)
    return Lane(
        rows=np.arange(len(low)),
        keys=source.normal(size=(len(positions), 1, 4)),
        values=source.normal(size=(len(positions), 1, 4)),
        positions=np.array(positions),
        low=np.array(low),
        high=np.array(high),
    )


def seen(queries: Array, what: Lane) -> Array:
    out = np.zeros((len(queries), queries.shape[1], 4))
    run = Run(
        count=len(queries),
        sets=1,
        ladder=LADDER,
        attention_ladder=ATTENTION_LADDER,
        masks=KeyMasks(ATTENTION_LADDER[-1]),
        turns=None,
        store=PlainStore(build(preset("dense"))),
    )
    mixers.attend(queries, what, out, run)
    return out


def test_keys_that_share_a_position_are_all_seen() -> None:
    """Memories allow it: the second one follows in a block of its own."""
    queries = np.random.default_rng(0).normal(size=(1, 2, 4))
    what = lane([0, 1, *[ABSENT] * 62, 1, *[ABSENT] * 63], [0], [1])

    found = seen(queries, what)

    keys, values = (each[[0, 1, 64], 0] for each in (what.keys, what.values))
    weights = np.exp(queries[0] @ keys.T)
    assert np.allclose(weights @ values / weights.sum(axis=1, keepdims=True), found[0])


def test_blocks_that_nobody_sees_leave_no_trace() -> None:
    queries = np.random.default_rng(0).normal(size=(3, 2, 4))
    near = lane(list(range(128, 192)), [130, 130, 140], [150, 151, 191])
    far = Lane(
        rows=near.rows,
        keys=np.concatenate([np.full((128, 1, 4), 1e30), near.keys, np.full((64, 1, 4), 1e30)]),
        values=np.concatenate([np.full((128, 1, 4), 7.0), near.values, np.full((64, 1, 4), 7.0)]),
        positions=np.arange(4 * BLOCK),
        low=near.low,
        high=near.high,
    )

    assert np.array_equal(seen(queries, near), seen(queries, far))
    assert np.array_equal(seen(queries[:1], take(near, 1)), seen(queries[:1], take(far, 1)))


def take(what: Lane, count: int) -> Lane:
    return Lane(
        rows=what.rows[:count],
        keys=what.keys,
        values=what.values,
        positions=what.positions,
        low=what.low[:count],
        high=what.high[:count],
    )


def test_more_rows_than_a_tile_holds_are_stacked() -> None:
    queries = np.random.default_rng(0).normal(size=(5, 256, 4))
    what = lane(list(range(64)), [0] * 5, [3, 4, 5, 60, 63])

    assert np.array_equal(seen(queries, what)[:, :2], seen(queries[:, :2], what))
