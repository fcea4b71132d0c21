"""The prefix cache of oMLX: states at the ends of a prompt's blocks."""

from types import SimpleNamespace
from typing import Any

from cachesim.engines.mlx_lm.rules import StoreRules
from cachesim.engines.omlx.prefix_cache import BlockAwarePrefixCache
from cachesim.engines.omlx.rules import BlockRules
from cachesim.units import as_tokens


def store(
    blocks: BlockRules, *, sliceable: bool = False, placeholder: int | None = None
) -> BlockAwarePrefixCache:
    made = BlockAwarePrefixCache(StoreRules(), blocks)
    made.sliceable, made.placeholder = sliceable, placeholder
    return made


def positions(cache: BlockAwarePrefixCache, length: int, cached: int) -> list[int]:
    job: Any = SimpleNamespace(cached=cached)
    return cache.positions(job, as_tokens(range(length)), 0)


def test_positions_are_ends_of_blocks_below_the_end_and_beyond_what_is_cached() -> None:
    assert [8, 16] == positions(store(BlockRules(interval=8)), 20, 0)
    assert [16] == positions(store(BlockRules(interval=8)), 20, 8)
    assert [8] == positions(store(BlockRules(interval=8)), 16, 0)


def test_without_snapshots_only_layers_that_can_be_cut_are_kept() -> None:
    blocks = BlockRules(interval=8, captures=False)

    assert [] == positions(store(blocks), 20, 0)
    assert [8, 16] == positions(store(blocks, sliceable=True), 20, 0)


def test_a_fetch_takes_the_deepest_position_and_names_what_it_left() -> None:
    cache = store(BlockRules(interval=4))
    for end in (4, 8):
        cache.insert_cache("model", list(range(end)), [])
    found = cache.fetch("model", [*range(7), 99, 100])

    assert (list(range(4)), 7, ["states-on-a-grid"]) == (
        found.key,
        found.equal,
        [loss.cause.id for loss in found.losses],
    )
    assert [*range(4, 7), 99, 100] == list(found.rest)


def test_a_state_of_one_array_is_found_and_rejected() -> None:
    cache = store(BlockRules(interval=4, fewest_arrays=2), placeholder=0)
    cache.insert_cache("model", list(range(4)), [])
    found = cache.fetch("model", list(range(6)))

    assert (None, ["placeholder"]) == (found.key, [loss.cause.id for loss in found.losses])
    assert list(range(6)) == list(found.rest)
