"""Bounds and orders of mlx-lm that conversations seldom meet, from upstream's own expressions."""

import numpy as np
import pytest

from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.layer_cache import Bounds, UpstreamAttributeError
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.generate.forward import Visibility
from cachesim.engines.mlx_lm.server.request import _before_thinking, tail_start
from cachesim.units import Token, as_tokens

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
