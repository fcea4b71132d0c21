"""States that mode `all` takes from the chunks of Mamba-2's kernel (#57266)."""

import pytest

from cachesim.engines.vllm.block_pool import GroupSpec, Sizes
from cachesim.engines.vllm.scan import Source, cached_states
from cachesim.errors import UpstreamAbort


@pytest.mark.parametrize("singly", [False, True])
def test_chunks_that_divide_blocks_give_each_block_its_own_state(singly: bool) -> None:
    (found,) = cached_states([(0, 20)], 8, 4, singly=singly)

    assert [Source(0, 0, 8), Source(1, 0, 16)] == found


@pytest.mark.parametrize("singly", [False, True])
def test_chunks_that_do_not_divide_blocks_give_states_of_other_lengths(singly: bool) -> None:
    (found,) = cached_states([(0, 2500)], 416, 256, singly=singly)

    assert [256, 512, 768, 1024, 1280, 1536] == [each.end for each in found]


def test_a_block_may_get_the_state_of_the_request_before_it() -> None:
    _, second = cached_states([(0, 9), (5, 13)], 6, 4, singly=False)

    assert [(0, 9), (1, 8)] == [(each.row, each.end) for each in second]


def test_a_slice_that_begins_before_the_first_state_is_empty_and_ends_the_core() -> None:
    with pytest.raises(UpstreamAbort, match="0 states, 6 blocks"):
        cached_states([(1596, 3900)], 416, 256, singly=False)


def test_since_0_31_an_index_before_the_first_state_counts_from_the_last() -> None:
    (found,) = cached_states([(1596, 3900)], 416, 256, singly=True)

    assert [3900, 1792, 2048] == [each.end for each in found[:3]]


def test_a_block_below_a_chunk_ends_the_core_until_0_31() -> None:
    with pytest.raises(UpstreamAbort, match="cannot be zero"):
        cached_states([(0, 8)], 2, 6, singly=False)
    (found,) = cached_states([(0, 8)], 2, 6, singly=True)
    assert [8, 8, 8] == [each.end for each in found]


def test_beside_states_of_mode_all_an_id_covers_a_whole_block() -> None:
    groups = (GroupSpec(kind="full", block=32), GroupSpec(kind="mamba", block=32, mode="all"))

    assert Sizes(scheduler_block=32, hash_block=32) == Sizes.of(groups, 16)
