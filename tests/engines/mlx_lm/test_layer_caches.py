"""The worked rows C-1 to C-22: one layer, one sequence."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachesim.engines import Engine
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import (
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    SparseCache,
)
from cachesim.engines.mlx_lm.caches.layer_cache import (
    Bounds,
    Causal,
    UpstreamAttributeError,
    UpstreamNotImplementedError,
    UpstreamValueError,
)
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.generate.forward import Forward, Visibility, as_visible
from cachesim.engines.mlx_lm.rules import CacheRules
from cachesim.engines.mlx_lm.server.request import _before_thinking, tail_start
from cachesim.errors import OptionError, SpecError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.build import build
from cachesim.model.presets import tiny
from cachesim.model.spec import LayerKind, ModelSpec
from cachesim.units import Array, Token, as_tokens
from cachesim.verify.oracle import cold_logits
from tests.engines.asking import answer, is_cold
from tests.engines.mlx_lm.cache_kit import RULES


def test_the_oldest_release_has_no_bytes() -> None:
    with pytest.raises(UpstreamAttributeError):
        _ = KVCache(FAMILY.release("0.30.7").rules.caches).nbytes


def test_rings_cannot_be_quantised() -> None:
    with pytest.raises(UpstreamNotImplementedError):
        RotatingKVCache(RULES, 4).to_quantized()


def test_a_padding_that_is_a_number_of_slots_cannot_be_filtered() -> None:
    """As with #842 reverted on a release that filters the left padding."""
    fresh = [ArraysCache(RULES, 2, is_mamba=True) for _ in range(2)]
    for each in fresh:
        each[0] = each[1] = np.zeros((1, 1))
    with pytest.raises(UpstreamValueError, match="0-dimensional"):
        ArraysCache.merge(fresh).filter([0])


@pytest.mark.parametrize(
    ("count", "groups", "expected"), [(5, False, 5), (30, False, 8), (30, True, 8 + 14 + 2 * 2 * 2)]
)
def test_bytes_are_those_of_window_groups_and_what_waits(
    count: int, groups: bool, expected: int
) -> None:
    """In rows of one byte, float32 ones of two: 30 tokens are 7 groups, and two wait."""
    cache = SparseCache(FAMILY.release("0.32.2").rules.caches, 8, groups=groups)
    cache.row_bytes, cache.wide_row_bytes = 1, 2
    rows = np.zeros((1, 1, count, 1))
    cache.update_and_fetch(rows, rows)

    assert cache.nbytes == expected


PROMPT = as_tokens(range(300, 330))
PACKED = {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": 20}


def test_numbers_are_packed_as_by_the_real_library() -> None:
    rows = np.array([[i * i % 17 - 5.5 for i in range(32)]])
    real = [-5.25, -5.25, 0.0, 5.25, 10.5, 0.0, -5.25, 10.5, 5.25, 5.25, 10.5, -5.25, 0.0, 10.5]

    packed = QuantizedKVCache(CacheRules(), 32, 2).rounded(rows)[0]

    assert np.allclose([*real, 5.25, 0.0], packed[:16])
    assert np.allclose(packed[0], -5.25)


def test_keys_are_packed_in_the_order_that_the_real_ones_have() -> None:
    cache = QuantizedKVCache(CacheRules(), 32, 2)
    rows = np.random.default_rng(0).normal(size=(3, 1, 64))
    cache.key_order = np.concatenate((np.arange(0, 64, 2), np.arange(1, 64, 2)))

    real = cache.rounded(rows)
    assert np.array_equal(
        real[..., cache.key_order], cache.rounded_keys(rows[..., cache.key_order])
    )


def test_heads_that_no_group_fits_into_are_refused_as_by_the_library() -> None:
    engine = Engine.create("mlx-lm@0.32.2", model=tiny("dense"), options=PACKED)
    reply = answer(engine, PROMPT, 3)

    assert "ValueError" == reply.error
    assert "divisible by the quantization group size 32" in reply.message


def test_it_is_trimmed_like_any_other() -> None:
    cache = QuantizedKVCache(CacheRules(), 32, 4)
    cache.take(filled(10), (32,))

    assert (4, 6) == (cache.trim(4), cache.offset)
    assert (0, False) == (cache.size(), cache.has_merge)


def filled(count: int) -> KVCache:
    """A cache of some tokens, one head of 32 numbers."""
    cache = KVCache(CacheRules())
    rows = np.random.default_rng(1).normal(size=(1, 1, count, 32))
    cache.update_and_fetch(rows, rows)
    return cache


COUNTS = st.integers(1, 6)
CAUSAL = st.builds(
    Causal,
    COUNTS,
    st.integers(0, 6),
    st.none() | st.integers(1, 8),
    st.none() | st.tuples(st.integers(-2, 7), st.integers(-2, 7)),
)


def row_of(mask: Causal, row: int, columns: range) -> Array:
    """The written mask of some columns of one row."""
    written = mask.dense()
    whole = written if mask.left_padding is None else written[row, 0]
    return whole[columns.start : columns.stop]


@given(CAUSAL, st.integers(0, 1), st.data())
def test_some_columns_of_a_row_see_what_the_written_mask_shows_them(
    mask: Causal, row: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, mask.columns - 1))
    columns = range(start, data.draw(st.integers(start + 1, mask.columns)))
    written, bounds = row_of(mask, row, columns), mask.of_row(row, columns)

    assert mask.shape == mask.dense().shape
    assert written.tolist() == bounds.dense(written.shape[1]).tolist()
    assert np.flatnonzero(written.any(axis=0)).tolist() == [*range(*bounds.seen.indices(99))]


@given(CAUSAL, st.integers(0, 3), st.integers(-3, 3), st.none() | st.integers(1, 8))
@example(Causal(3, 2), 0, 0, 3)
def test_columns_are_shown_what_they_should_see_only_where_the_written_mask_does(
    mask: Causal, first: int, ahead: int, window: int | None
) -> None:
    columns = range(mask.columns)
    bounds, written = mask.of_row(0, columns), row_of(mask, 0, columns)
    keys = written[:, bounds.seen]
    positions = first + np.arange(keys.shape[1])
    high = first + mask.offset - bounds.seen.start + ahead + np.arange(mask.columns)
    low = np.zeros_like(high) if window is None else np.maximum(high - window + 1, 0)
    should = (positions >= low[:, None]) & (positions <= high[:, None])

    if bounds.shows(first, low, high):
        assert should.tolist() == keys.tolist()


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("left", [0, 2])
def test_columns_are_shown_what_lies_at_its_place(window: int | None, left: int) -> None:
    bounds = Causal(4, 5, window, (left,)).of_row(0, range(4))
    high = np.arange(5, 9) - left
    low = np.zeros_like(high) if window is None else np.maximum(high - window + 1, 0)

    assert bounds.shows(bounds.seen.start - left, low, high)
    assert not bounds.shows(bounds.seen.start - left + 1, low, high)


def test_what_a_layer_asks_for_is_answered_without_a_mask_of_columns_times_keys() -> None:
    bounds = Causal(2048, 1 << 40).of_row(0, range(2048))
    high = np.arange(1 << 40, (1 << 40) + 2048)

    assert Bounds(left=0, newest=1 << 40, columns=2048) == bounds
    assert bounds.shows(0, np.zeros(2048, np.int64), high)


LAYERS: tuple[LayerKind, ...] = ("window", "window", "window", "attention")
TOKENS = as_tokens([300 + index % 37 for index in range(40)])


def llama4(window: int = 8) -> ModelSpec:
    return tiny("dense", layers=LAYERS, window=window, chunked=True)


def fed(spec: ModelSpec, pieces: list[int], arithmetic: ArithmeticName) -> Array:
    """The logits behind each piece of `TOKENS`."""
    forward = Forward(build(spec, arithmetic), FAMILY.release("0.32.2").rules.caches)
    cache, rows, first = forward.make_cache(), [], 0
    for count in pieces:
        rows.append(forward(np.array([TOKENS[first : first + count]]), cache)[0])
        first += count
    return np.stack(rows)


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
@pytest.mark.parametrize("pieces", [[40], [1] * 40, [3, 10, 1, 1, 20, 5], [8, 8, 8, 16]], ids=str)
def test_pieces_of_any_length_are_answered_as_a_cold_run_is(
    arithmetic: ArithmeticName, pieces: list[int]
) -> None:
    expected = cold_logits(llama4(), TOKENS, rows=np.cumsum(pieces) - 1, arithmetic=arithmetic)

    assert np.array_equal(expected, fed(llama4(), pieces, arithmetic))


@pytest.mark.parametrize("arithmetic", ["float", "ring"])
def test_a_chunk_is_not_a_window(arithmetic: ArithmeticName) -> None:
    """In one layer the first token of a chunk sees nothing before it, the last all of it."""
    one = tiny("dense", layers=("window",), window=8, chunked=True)
    rows = cold_logits(one, TOKENS[:24], arithmetic=arithmetic)
    alone = cold_logits(one, TOKENS[8:16], arithmetic=arithmetic)
    other = cold_logits(one, (*TOKENS[16:24], *TOKENS[8:16]), arithmetic=arithmetic)

    assert np.array_equal(rows[8:16], other[8:])
    assert not np.array_equal(rows[7], alone[7])


def branch(profile: str) -> tuple[int | None, bool]:
    """A chat of 40 tokens goes on, then a branch leaves it at 12: cached, and whether right."""
    server = Engine.create(f"mlx-lm@{profile}", model=llama4(), arithmetic="ring")
    said = as_tokens([400, 401])
    for prompt in (TOKENS, (*TOKENS, *said, 402), (*TOKENS[:12], 450, 451)):
        reply = answer(server, prompt, 2, reply=said)
    return reply.cached, is_cold(server, reply)


@pytest.mark.parametrize(("release", "right"), [("0.31.3", False), ("0.32.0", True)])
def test_allocated_rows_were_taken_for_tokens(release: str, *, right: bool) -> None:
    """#1673: 27 tokens and 257 take 539 rows; all but 256 are dropped, and 27 of them needed."""
    spec = llama4(256)
    tokens = as_tokens([300 + index % 150 for index in range(286)])
    forward = Forward(build(spec, "ring"), FAMILY.release(release).rules.caches)
    cache = forward.make_cache()
    for first, end in ((0, 27), (27, 283), (283, 284), (284, 285)):
        logits = forward(np.array([tokens[first:end]]), cache)
    cold = cold_logits(spec, tokens[:285], arithmetic="ring")[-1:]

    assert right == np.array_equal(cold, logits)


def test_chunks_call_for_llama4() -> None:
    assert family_of(llama4()).name == "llama4"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (tiny("swa", family="llama4"), "write chunked"),
        (tiny("swa", chunked=True, family="gemma3_text"), "has no chunks"),
        (tiny("swa", chunked=True), "every fourth layer"),
    ],
    ids=str,
)
def test_a_model_that_llama4_is_not_is_refused(spec: ModelSpec, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        family_of(spec)


def test_chunks_need_windows() -> None:
    with pytest.raises(SpecError, match="only layers with a window see chunks"):
        tiny("dense", chunked=True)


MARK = Token(7)


@pytest.mark.parametrize(
    ("length", "place", "found"), [(20, 1, -2), (20, 9, -10), (20, 10, -1), (4, 2, -3), (4, 3, -1)]
)
def test_a_thinking_mark_counts_within_the_last_nine(length: int, place: int, found: int) -> None:
    """`range(1, min(11, n) - 1)`: from the last token to the ninth, of short prompts to n - 2."""
    prompt = [Token(1)] * length
    prompt[-place] = MARK

    assert found == _before_thinking(MARK, tuple(prompt))


@pytest.mark.parametrize(("mark", "start"), [((8, 9), 18), ((5,), 20), ((), 20), ((9,), 19)])
def test_a_tail_begins_at_a_mark_up_to_the_very_end(mark: tuple[int, ...], start: int) -> None:
    prompt = as_tokens([1] * 18 + [8, 9])

    assert start == tail_start(as_tokens(mark), prompt)


def test_the_last_of_several_marks_opens_the_tail_and_none_before_eleven_tokens() -> None:
    prompt = as_tokens([9, *[1] * 8, 9, *[1] * 10])

    assert 9 == tail_start(as_tokens([9]), prompt)
    assert 20 == tail_start(as_tokens([9]), as_tokens([*[1] * 8, 9, *[1] * 11]))


def test_a_mask_of_one_row_is_every_rows_and_one_of_other_keys_is_refused() -> None:
    shown = as_visible(Causal(2, 1, None, (1,)), 3, 2, 3)

    assert isinstance(shown, np.ndarray)
    assert [[[False, True, False], [False, True, True]]] * 3 == shown.tolist()
    with pytest.raises(UpstreamValueError):
        as_visible(Causal(2, 3), 1, 2, 7)


def test_a_view_is_taken_again_under_the_same_mask_only() -> None:
    marks, seen = np.arange(1, 9), np.ones((2, 8), np.bool_)
    views = (None, Bounds(0, 3, 2), Bounds(0, 4, 2), seen, ~seen)

    for one in range(len(views)):
        view = Visibility(marks, views[one], ())
        assert [one == other for other in range(len(views))] == [
            view.is_of(marks.copy(), each) for each in views
        ]
        assert not view.is_of(marks + 1, views[one])


@pytest.mark.parametrize("release", ["0.30.7", "0.32.2"])
def test_a_missing_state_has_no_bytes_or_is_an_error(release: str) -> None:
    cache = ArraysCache(FAMILY.release(release).rules.caches, 2)
    cache.cache = [np.zeros(6), None]

    if release == "0.32.2":
        assert 48 == cache.count_bytes()
    else:
        with pytest.raises(UpstreamAttributeError):
            cache.count_bytes()
