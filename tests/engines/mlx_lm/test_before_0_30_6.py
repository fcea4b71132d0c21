"""What mlx-lm's server did before 0.30.6, and what one pull request made of it."""

import pytest

from cachesim.engines import Profile
from cachesim.engines.mlx_lm.caches.arrays_cache import ArraysCache
from cachesim.engines.mlx_lm.caches.kv_cache import KVCache
from cachesim.engines.mlx_lm.caches.layer_cache import UpstreamAttributeError
from cachesim.engines.mlx_lm.family import FAMILY


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.30.5", (None, "causal")),
        ("0.30.5+843", ("1111", "111111")),
        ("0.30.6-843", (None, "causal")),
    ],
)
def test_before_843_a_cache_that_keeps_everything_overlooks_a_window(
    release: str, expected: tuple[str | None, str]
) -> None:
    cache = KVCache(FAMILY.rules(Profile.parse(f"mlx-lm@{release}")).caches)
    cache.offset = 3
    masks = [cache.make_mask(columns, window_size=8) for columns in (1, 3)]

    assert expected == tuple(
        mask if mask is None or isinstance(mask, str) else "".join("1" for _ in mask[0])
        for mask in masks
    )


@pytest.mark.parametrize(
    ("release", "raises"),
    [("0.30.4", True), ("0.30.4+807", False), ("0.30.5", False), ("0.30.5-807", True)],
)
def test_before_807_a_restored_recurrent_cache_has_no_fields_for_padding(
    release: str, *, raises: bool
) -> None:
    cache = ArraysCache(FAMILY.rules(Profile.parse(f"mlx-lm@{release}")).caches, 2)
    restored = ArraysCache.from_state(cache.state, "", rules=cache.rules)

    if raises:
        with pytest.raises(UpstreamAttributeError, match="no attribute 'left_padding'"):
            restored.make_mask(3)
    else:
        assert restored.make_mask(3) is None


def test_from_0_29_1_to_0_30_2_nothing_changed_in_what_is_cached() -> None:
    assert 1 == len({repr(FAMILY.release(name).rules) for name in ("0.29.1", "0.30.0", "0.30.2")})
