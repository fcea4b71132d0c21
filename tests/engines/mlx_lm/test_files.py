import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachesim.engines.mlx_lm.caches.layer_cache import (
    UpstreamAttributeError,
    UpstreamKeyError,
    UpstreamRuntimeError,
    UpstreamValueError,
)
from cachesim.engines.mlx_lm.caches.prompt_cache import (
    ArraysCache,
    CacheList,
    LayerCache,
    RotatingKVCache,
    load_prompt_cache,
    save_prompt_cache,
)
from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.errors import BlobError
from cachesim.typed import of_kind
from tests.engines.mlx_lm.cache_kit import kv, ring, rows, used, write

NEW, OLD = FAMILY.release("0.32.2").rules.caches, FAMILY.release("0.31.3").rules.caches


def half_filled(release: str) -> ArraysCache:
    cache = ArraysCache(FAMILY.release(release).rules.caches, 2)
    cache[0] = np.array([[1]])
    return cache


def test_the_new_format_keeps_empty_caches_and_missing_slots() -> None:
    caches: list[LayerCache] = [kv(), half_filled("0.32.2")]
    loaded, _ = load_prompt_cache(save_prompt_cache(caches, rules=NEW), rules=NEW)

    assert [True, False] == [each.empty() for each in loaded]
    states = of_kind(ArraysCache, loaded[1])
    assert ([[1]], None) == (states.cache[0].tolist(), states.cache[1])  # type: ignore[union-attr]


def test_the_old_format_can_save_neither() -> None:
    with pytest.raises(UpstreamAttributeError):
        save_prompt_cache([kv(release="0.31.3")], rules=OLD)
    with pytest.raises(UpstreamRuntimeError):
        save_prompt_cache([half_filled("0.31.3")], rules=OLD)


def test_the_two_formats_cannot_read_each_other() -> None:
    new = save_prompt_cache([kv(1)], rules=NEW)
    old = save_prompt_cache([kv(1, release="0.31.3")], rules=OLD)

    with pytest.raises(UpstreamKeyError):
        load_prompt_cache(new, rules=OLD)
    with pytest.raises(UpstreamValueError):
        load_prompt_cache(old, rules=NEW)


@pytest.mark.parametrize("release", ["0.31.3", "0.32.2"])
def test_a_ring_comes_back_with_its_numbers(release: str) -> None:
    rules = FAMILY.release(release).rules.caches
    cache = ring(4, 0, 1, 2, 3, 4, 5, step=1, release=release)
    loaded, metadata = load_prompt_cache(
        save_prompt_cache([cache], {"who": "me"}, rules=rules), rules=rules
    )

    assert {"who": "me"} == metadata
    back = of_kind(RotatingKVCache, loaded[0])
    assert (6, 2, 0, 4) == (back.offset, back.idx, back.keep, back.max_size)
    assert [4, 5, 2, 3] == rows(back)


@pytest.mark.parametrize(("release", "kept"), [("0.31.3", 3), ("0.32.2", 256)])
def test_only_the_new_format_keeps_allocated_rows(release: str, kept: int) -> None:
    rules = FAMILY.release(release).rules.caches
    blob = save_prompt_cache([kv(1, 2, 3, release=release)], rules=rules)
    loaded, _ = load_prompt_cache(blob, rules=rules)

    assert [[1, 2, 3]] == used(loaded[0])  # type: ignore[arg-type]
    assert kept == len(rows(loaded[0]))  # type: ignore[arg-type]


def test_lists_of_caches_come_back_since_886() -> None:
    found = {}
    for release in ("0.31.1", "0.31.3", "0.32.2"):
        rules = FAMILY.release(release).rules.caches
        states = half_filled(release)
        states[1] = np.array([[2]])
        together = CacheList(rules, states, kv(1, 2, release=release))
        loaded, _ = load_prompt_cache(save_prompt_cache([together], rules=rules), rules=rules)
        back = of_kind(CacheList, loaded[0])
        found[release] = tuple(type(cache).__name__ for cache in back.caches)

    assert {("ArraysCache", "KVCache")} == set(found.values())


def test_before_886_a_list_of_caches_cannot_be_restored() -> None:
    rules = FAMILY.release("0.30.7").rules.caches
    blob = save_prompt_cache([CacheList(rules, kv(1, release="0.30.7"))], rules=rules)

    with pytest.raises(UpstreamAttributeError):
        load_prompt_cache(blob, rules=rules)


BLOB = save_prompt_cache([kv(1, 2, 3), ring(4, 5, 6)], {"a": "b"}, rules=NEW)


@given(st.integers(0, len(BLOB) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused(at: int, change: int) -> None:
    damaged = bytearray(BLOB)
    damaged[at] ^= change

    with pytest.raises(BlobError):
        load_prompt_cache(bytes(damaged), rules=NEW)


@given(st.integers(0, len(BLOB) - 1))
def test_a_cut_file_is_refused(length: int) -> None:
    with pytest.raises(BlobError):
        load_prompt_cache(BLOB[:length], rules=NEW)


def test_a_loaded_cache_can_be_written_to_and_shares_nothing() -> None:
    cache = kv(1, 2, 3)
    blob = save_prompt_cache([cache], rules=NEW)
    one, two = (load_prompt_cache(blob, rules=NEW)[0][0] for _ in range(2))
    write(one, [4])  # type: ignore[arg-type]

    assert [[[1, 2, 3, 4]], [[1, 2, 3]], [[1, 2, 3]]] == [used(each) for each in (one, two, cache)]  # type: ignore[arg-type]
