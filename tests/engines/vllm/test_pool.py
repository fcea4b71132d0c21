from cachesim.engines.vllm.block_pool import BlockPool
from cachesim.engines.vllm.releases import HISTORY
from cachesim.engines.vllm.rules import PoolRules


def pool_of(size: int, *, rules: PoolRules | None = None) -> BlockPool:
    return BlockPool(size, groups=1, hash_block=4, rules=rules or PoolRules())


def test_blocks_without_an_id_are_taken_first_since_0_24() -> None:
    queues = {}
    for name in ("0.19.1", "0.24.0"):
        pool = pool_of(6, rules=HISTORY.rules(name).pool)
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
