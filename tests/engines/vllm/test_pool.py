import pytest

from cachesim.engines.vllm.block_pool import BlockPool, GroupSpec, Sizes, checkpoint_position
from cachesim.engines.vllm.coordinator import KVCacheManager
from cachesim.engines.vllm.request import Prefixes, Request
from cachesim.engines.vllm.rules import RULES_0191, RULES_0240, RULES_0330, PoolRules


def pool_of(size: int, *, rules: PoolRules | None = None) -> BlockPool:
    return BlockPool(size, groups=1, hash_block=4, rules=rules or PoolRules())


def serve(manager: KVCacheManager, prefixes: Prefixes, number: int, prompt: range) -> int:
    """One request, computed at once; the tokens it was given."""
    request = Request.make(number, prefixes, tuple(prompt), max_tokens=1)
    hit = manager.get_computed_blocks(request)
    new = manager.allocate_slots(
        request, request.num_tokens - hit.length, num_local_hit=hit.length, hit=hit.blocks
    )
    assert new is not None
    manager.free(request)
    return hit.length


def test_a_request_gives_its_tail_back_before_its_head() -> None:
    manager = KVCacheManager([GroupSpec(kind="full", block=4)], RULES_0330, num_blocks=8)
    prefixes = Prefixes(4)
    queues = []

    hits = []
    for number, prompt in enumerate([range(12), range(100, 108), range(200, 208), range(13)]):
        hits.append(serve(manager, prefixes, number, prompt))
        queues.append(list(manager.pool.free))

    assert [0, 0, 0, 12] == hits
    assert [4, 5, 6, 7, 3, 2, 1] == queues[0]
    assert [6, 7, 3, 2, 1, 5, 4] == queues[1]
    assert [3, 2, 1, 5, 4, 7, 6] == queues[2]


def test_blocks_without_an_id_are_taken_first_since_0_24() -> None:
    queues = {}
    for name, rules in (("0.19.1", RULES_0191.pool), ("0.24.0", RULES_0240.pool)):
        pool = pool_of(6, rules=rules)
        one, other = pool.get_new_blocks(2)
        pool.insert(7, one, 4)
        pool.free_blocks([one, other])
        queues[name] = list(pool.free)

    assert {"0.19.1": [3, 4, 5, 1, 2], "0.24.0": [2, 3, 4, 5, 1]} == queues


def test_a_partial_block_that_is_cached_again_keeps_all_its_ids() -> None:
    pool = pool_of(5)
    [block] = pool.get_new_blocks(1)
    for tokens in (4, 8, 8):
        pool.insert(tokens // 4 + 10, block, tokens)

    pool.cache_partial_block([11, 12], block, 8, 0)

    assert [11, 12] == pool.remove_keys(block)


def test_two_blocks_may_stand_under_one_id_and_the_first_is_found() -> None:
    pool = pool_of(5)
    one, other = pool.get_new_blocks(2)
    pool.insert(9, one, 4)
    pool.insert(9, other, 4)

    assert one == pool.block_of(9)
    pool.evict(one)
    assert other == pool.block_of(9)


def test_a_hit_on_a_free_block_takes_it_out_of_the_middle_of_the_queue() -> None:
    pool = pool_of(5)
    blocks = pool.get_new_blocks(3)
    for number, block in enumerate(blocks):
        pool.insert(number, block, 4)
    pool.free_blocks(blocks)

    pool.touch([2])

    assert [4, 1, 3] == list(pool.free)


def test_a_reset_is_refused_while_a_block_is_in_use() -> None:
    pool = pool_of(4)
    taken = pool.get_new_blocks(1)

    refused = pool.reset()
    pool.free_blocks(taken)

    assert (False, True) == (refused, pool.reset())


def test_salts_keep_prefixes_apart() -> None:
    prefixes = Prefixes(4)
    plain, salted = (
        Request.make(number, prefixes, range(8), max_tokens=1, extra=extra)
        for number, extra in enumerate([None, "a"])
    )

    assert set(plain.hashes) & set(salted.hashes) == set()
    again = Request.make(2, prefixes, range(8), max_tokens=1, extra="a")
    assert salted.hashes == again.hashes


@pytest.mark.parametrize(
    ("blocks", "unit", "expected"),
    [((16,), None, (16, 16)), ((8, 32), None, (32, 8)), ((12, 8), 4, (24, 4))],
)
def test_hits_are_multiples_of_the_lcm_and_ids_are_counted_in_the_gcd(
    blocks: tuple[int, ...], unit: int | None, expected: tuple[int, int]
) -> None:
    sizes = Sizes.of([GroupSpec(kind="full", block=block) for block in blocks], unit)

    assert expected == (sizes.scheduler_block, sizes.hash_block)


@pytest.mark.parametrize(
    ("tokens", "eagle", "expected"),
    [
        (100, False, 96),
        (96, False, 80),
        (97, False, 96),
        (100, True, 80),
        (96, True, 80),
        (9, True, 0),
    ],
)
def test_a_prefill_leaves_its_state_where_a_resend_can_resume(
    tokens: int, eagle: bool, expected: int
) -> None:
    assert expected == checkpoint_position(tokens, 16, drop_eagle_block=eagle)
