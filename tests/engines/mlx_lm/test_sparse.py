"""DeepSeek V4.1's own cache class: a window and groups, served alone, never cut back."""

import numpy as np
import pytest

from cachesim.engines.mlx_lm.caches.kv_cache import SparseCache
from cachesim.engines.mlx_lm.family import FAMILY


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
