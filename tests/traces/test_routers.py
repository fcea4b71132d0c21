"""Each router by small cases, worked out by hand from the rules of its source."""

from collections.abc import Callable, Sequence

import pytest

from cachesim.engines.tokens import Rope
from cachesim.traces.fleet.cache_aware import Tree
from cachesim.traces.fleet.dynamo import Dynamo, KvRouter
from cachesim.traces.fleet.fleet import ROUTERS, Fleet, router_of
from cachesim.traces.fleet.gateway import Indexer
from cachesim.traces.fleet.plain import place_of
from cachesim.traces.fleet.router import (
    Arrival,
    Dispatcher,
    Replica,
    RouterError,
    Sessions,
    prefix_keys,
)


class Still(Replica):
    """A replica whose state a test sets."""

    unit = 4
    blocks = 100
    used = 0.0
    held = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def usage(self) -> float | None:
        return self.used

    def peek(self, arrival: Arrival) -> int | None:
        return min(self.held, len(arrival.prompt))


Requests = Callable[..., Arrival]


def text(*runs: tuple[int, int]) -> Rope:
    """Texts by number, each with a length."""
    return Rope((number, 0, length) for number, length in runs)


@pytest.fixture
def arrival() -> Requests:
    count = iter(range(1000))

    def make(prompt: Rope, *, session: int = 0, time: float = 0) -> Arrival:
        return Arrival(next(count), time, prompt, Rope(), session)

    return make


def started(router: str, count: int = 3) -> tuple[Dispatcher, list[Still]]:
    replicas = [Still(number) for number in range(count)]
    return router_of(router).start(replicas), replicas


# -- keys ------------------------------------------------------------------------------------------


def test_equal_prefixes_have_equal_keys_wherever_their_runs_end() -> None:
    one = prefix_keys(text((1, 10), (2, 10)), 4)
    other = prefix_keys(text((1, 10), (2, 7), (3, 9)), 4)
    assert [5, 6] == [len(one), len(other)]
    assert one[:4] == other[:4]
    assert one[4] != other[4]


def test_a_key_stands_for_all_before_it() -> None:
    first = Rope([(1, 0, 4), (9, 0, 4)])
    second = Rope([(2, 0, 4), (9, 0, 4)])
    assert prefix_keys(first, 4)[1] != prefix_keys(second, 4)[1]


def test_a_conversation_is_known_by_the_last_whole_block_before_it() -> None:
    sessions = Sessions(most=10)
    turns = [([1, 2, 3], 2), ([1, 4, 5], 4), ([1, 2, 6, 7], 6), ([1, 4, 8], 4), ([1, 2, 6, 9], 6)]
    assert [0, 1, 0, 1, 0] == [sessions.of(*turn) for turn in turns]


def test_a_request_continues_the_newest_of_several_conversations() -> None:
    sessions = Sessions(9)
    assert [0, 1, 1] == [sessions.of(*turn) for turn in (([1, 2], 2), ([5, 6], 6), ([2, 6, 7], 7))]


def test_conversations_that_went_on_longest_ago_are_forgotten() -> None:
    sessions = Sessions(1)
    assert [0, 1, 2] == [sessions.of(*turn) for turn in (([1, 2], 2), ([5, 6], 6), ([2, 3], 3))]


# -- routers without knowledge ---------------------------------------------------------------------


def test_round_robin_skips_a_replica_that_is_gone(arrival: Requests) -> None:
    router, replicas = started("round-robin")
    first = [router.choose(arrival(text((1, 8)))) for _ in range(4)]
    replicas[1].alive = False
    assert [0, 1, 2, 0] == first
    assert [0, 2, 0] == [router.choose(arrival(text((1, 8)))) for _ in range(3)]


def test_random_draws_the_same_again(arrival: Requests) -> None:
    draws = []
    for seed in (0, 0, 1):
        router, _ = started(f"random,seed={seed}")
        draws.append([router.choose(arrival(text((1, 8)))) for _ in range(30)])
    assert draws[0] == draws[1] != draws[2]
    assert {0, 1, 2} == set(draws[0])


def test_least_loaded_takes_the_fewest_requests(arrival: Requests) -> None:
    router, replicas = started("least-loaded")
    replicas[0].load, replicas[1].load, replicas[2].load = 2, 1, 3
    assert 1 == router.choose(arrival(text((1, 8))))


def test_a_conversation_stays_until_its_replica_is_gone_and_returns(arrival: Requests) -> None:
    router, replicas = started("sticky,assignment=min_load")
    replicas[0].load, replicas[2].load = 1, 1
    assert 1 == router.choose(arrival(text((1, 8))))
    replicas[1].load = 9
    assert 1 == router.choose(arrival(text((1, 8))))
    replicas[1].alive, replicas[2].load = False, 0
    assert 2 == router.choose(arrival(text((1, 8))))
    replicas[1].alive = True
    assert 1 == router.choose(arrival(text((1, 8))))  # the older of its two replicas


def test_a_conversation_that_rests_too_long_is_assigned_again(arrival: Requests) -> None:
    router, replicas = started("sticky,assignment=min_load,max_idle_secs=10")
    replicas[0].load, replicas[2].load = 1, 1
    assert 1 == router.choose(arrival(text((1, 8)), session=7))
    replicas[1].load, replicas[2].load = 9, 0
    router.choose(arrival(text((1, 8)), session=8, time=9_000))
    assert 1 == router.choose(arrival(text((1, 8)), session=7, time=9_000))
    router.choose(arrival(text((1, 8)), session=9, time=19_001))
    assert 2 == router.choose(arrival(text((1, 8)), session=7, time=19_001))


def test_min_group_counts_conversations_at_work(arrival: Requests) -> None:
    router, _ = started("sticky,assignment=min_group")
    requests = [arrival(text((1, 8)), session=session) for session in (1, 2, 3)]
    chosen = [router.choose(request) for request in requests]
    assert {0, 1, 2} == set(chosen)
    router.finished(requests[1], chosen[1])
    assert chosen[1] == router.choose(arrival(text((1, 8)), session=4))


def test_a_conversation_passes_on_only_from_a_replica_above_the_bound(arrival: Requests) -> None:
    router, replicas = started("bounded-hash")
    homes = {router.choose(arrival(text((1, 8)), session=session)) for session in range(50)}
    assert {0, 1, 2} == homes
    home = router.choose(arrival(text((1, 8))))
    others = [replica for replica in replicas if replica.number != home]
    replicas[home].load = 3
    others[0].load, others[1].load = 2, 1  # mean 2, bound 3
    assert home == router.choose(arrival(text((1, 8))))
    replicas[home].load = 4  # mean 7/3, bound 3.5
    assert home != router.choose(arrival(text((1, 8))))


def test_a_conversation_goes_clockwise_to_the_next_place(arrival: Requests) -> None:
    router, replicas = started("bounded-hash,virtual_nodes=1")
    places = {place_of(f"replica {number} 0"): number for number in range(3)}
    for session in range(20):
        own = place_of(f"conversation {session}")
        clockwise = sorted(places, key=lambda place: (place < own, place))
        order = [places[place] for place in clockwise]
        assert order[0] == router.choose(arrival(text((1, 8)), session=session))
        replicas[order[0]].load = 9
        assert order[1] == router.choose(arrival(text((1, 8)), session=session))
        replicas[order[0]].load = 0


def test_the_oracle_takes_what_holds_most_then_the_fewest_requests(arrival: Requests) -> None:
    router, replicas = started("oracle")
    replicas[1].held, replicas[2].held = 4, 4
    replicas[1].load = 1
    assert 2 == router.choose(arrival(text((1, 8))))
    replicas[1].held = 5
    assert 1 == router.choose(arrival(text((1, 8))))


# -- SGLang's --------------------------------------------------------------------------------------


def test_a_known_prefix_above_the_threshold_goes_where_it_was_sent(arrival: Requests) -> None:
    router, replicas = started("cache-aware")
    replicas[0].load = 1
    assert 1 == router.choose(arrival(text((1, 40))))
    assert 1 == router.choose(arrival(text((1, 31), (2, 69))))  # 31 of 100
    assert 1 == router.choose(arrival(text((1, 100))))
    replicas[1].load = 5
    assert 2 == router.choose(arrival(text((1, 30), (3, 70))))  # 30 of 100 is not above


def test_an_idle_fleet_sends_every_unknown_text_to_the_first_replica(arrival: Requests) -> None:
    router, _ = started("cache-aware")
    assert [0, 0, 0] == [router.choose(arrival(text((number, 9)))) for number in range(3)]


def test_loads_too_far_apart_overrule_a_match(arrival: Requests) -> None:
    router, replicas = started("cache-aware,balance_abs_threshold=4,balance_rel_threshold=2")
    assert 0 == router.choose(arrival(text((1, 40))))
    replicas[0].load, replicas[1].load, replicas[2].load = 8, 5, 4
    assert 0 == router.choose(arrival(text((1, 40))))  # 8 is not above 4 + 4
    replicas[0].load, replicas[1].load, replicas[2].load = 20, 15, 12
    assert 0 == router.choose(arrival(text((1, 40))))  # 20 is above 12 + 4, not above twice 12
    replicas[0].load, replicas[1].load, replicas[2].load = 9, 5, 4
    assert 2 == router.choose(arrival(text((1, 40))))
    replicas[0].load = 4
    replicas[2].load = 4
    assert 0 == router.choose(arrival(text((1, 40))))  # the node's first tenant is asked first


def test_texts_of_a_replica_above_the_size_are_forgotten_at_the_interval(arrival: Requests) -> None:
    router, replicas = started("cache-aware,max_tree_size=30,eviction_interval_secs=2")
    replicas[0].load = replicas[2].load = 1
    assert 1 == router.choose(arrival(text((1, 40))))
    replicas[0].load = 0
    assert 1 == router.choose(arrival(text((1, 40)), time=1_999))
    assert 0 == router.choose(arrival(text((1, 40)), time=2_000))


def test_a_node_is_split_where_texts_part_and_counts_for_its_tenants() -> None:
    tree = Tree()
    tree.insert(text((1, 10)), 0)
    tree.insert(text((1, 6), (2, 5)), 1)
    assert {0: 10, 1: 11} == tree.sizes
    assert (10, 0) == tree.prefix_match(text((1, 12)))
    assert (8, 1) == tree.prefix_match(text((1, 6), (2, 2), (3, 3)))
    assert (6, 0) == tree.prefix_match(text((1, 6), (4, 4)))


def test_eviction_takes_the_oldest_leaves_of_tenants_above_the_size() -> None:
    tree = Tree()
    for number in range(4):
        tree.insert(text((9, 4), (number, 6)), 0)
    tree.insert(text((9, 4), (0, 6)), 1)
    tree.evict(20)
    assert {0: 16, 1: 10} == tree.sizes  # two leaves of six tokens are left, and the common part
    matches = [tree.prefix_match(text((9, 4), (number, 6)))[0] for number in range(4)]
    assert [10, 4, 10, 10] == matches  # the other tenant still has the first


def test_a_removed_tenant_leaves_nothing_behind() -> None:
    tree = Tree()
    tree.insert(text((1, 10)), 0)
    tree.insert(text((1, 6), (2, 5)), 1)
    tree.remove_tenant(0)
    assert {1: 11} == tree.sizes
    assert (6, 1) == tree.prefix_match(text((1, 10)))


# -- Dynamo's --------------------------------------------------------------------------------------


def dynamo(rules: str = "dynamo", count: int = 3) -> KvRouter:
    router, _ = started(rules, count)
    assert isinstance(router, KvRouter)
    return router


def test_the_cost_is_what_is_to_be_computed_and_what_is_at_work(arrival: Requests) -> None:
    router, request = dynamo(), arrival(text((1, 12), (2, 4)))
    keys = request.keys(4)
    router.stored(0, keys[:3], 0)
    router.stored(1, keys[:1], 0)
    assert {0: 1 + 4, 1: 3 + 4, 2: 4 + 4} == router.costs(request)
    assert 0 == router.choose(request)
    again = arrival(text((1, 12), (2, 4)))
    assert {0: 2 + 4, 1: 3 + 4, 2: 4 + 4} == router.costs(again)  # one block at work
    assert 0 == router.choose(again)
    last = arrival(text((1, 12), (2, 4)))
    assert 3 + 4 == router.costs(last)[0]
    router.prefilled(request, 0)
    assert 2 + 4 == router.costs(last)[0]
    router.finished(request, 0)
    router.finished(again, 0)
    assert 1 + 4 == router.costs(last)[0]


def test_only_leading_blocks_overlap(arrival: Requests) -> None:
    router, request = dynamo(), arrival(text((1, 16)))
    router.stored(2, request.keys(4), 0)
    router.removed(2, request.keys(4)[1:2], 0)
    assert 1 == router.index.overlap(2, request.keys(4))


def test_a_late_event_is_not_known_before_its_time(arrival: Requests) -> None:
    router = dynamo("dynamo,kv_event_lag_ms=100")
    known = arrival(text((1, 16)), time=0)
    router.stored(2, known.keys(4), 50)
    assert 8 == router.costs(arrival(text((1, 16)), time=149))[2]
    assert 4 == router.costs(arrival(text((1, 16)), time=150))[2]


@pytest.mark.parametrize("replica", range(3))
def test_stored_and_removed_blocks_are_lost_on_every_replica(
    arrival: Requests, replica: int
) -> None:
    router, keys = dynamo("dynamo,kv_event_loss=1"), arrival(text((1, 8))).keys(4)
    router.stored(replica, keys, 0)
    assert 0 == router.index.overlap(replica, keys)
    router.index.add(0, replica, keys, stored=True)
    router.removed(replica, keys, 0)
    assert 2 == router.index.overlap(replica, keys)


def test_weights_scale_the_parts_of_the_cost(arrival: Requests) -> None:
    router = dynamo(
        "dynamo,overlap_score_credit=0.5,prefill_load_scale=2,decode_active_request_weight=3", 1
    )
    first = arrival(text((1, 8)))
    router.stored(0, first.keys(4), 0)
    assert {0: 2 * (2 - 0.5 * 2) + 2} == router.costs(first)
    router.choose(first)  # all of it is cached: no prefill is at work
    assert {0: 2 * (2 - 0.5 * 2) + 2 + 3} == router.costs(arrival(text((1, 8))))


def test_a_replica_that_left_is_forgotten(arrival: Requests) -> None:
    router, request = dynamo("dynamo,kv_event_lag_ms=10"), arrival(text((1, 8)), time=100)
    router.stored(0, request.keys(4), 0)
    router.stored(0, request.keys(4), 95)
    router.left(0)
    assert 4 == router.costs(request)[0]


# -- the Gateway API's -----------------------------------------------------------------------------


def test_prefix_queue_and_memory_are_weighted(arrival: Requests) -> None:
    router, replicas = started("gateway", 2)
    replicas[1].waiting = 1
    assert 0 == router.choose(arrival(text((1, 16))))  # 2 + 2 to 0 + 2
    replicas[0].waiting, replicas[1].waiting = 1, 0
    assert 0 == router.choose(arrival(text((1, 12), (2, 4))))  # 9/4 + 0 + 2 to 0 + 2 + 2
    assert 1 == router.choose(arrival(text((1, 8), (3, 8))))  # 6/4 + 0 + 2 to 0 + 2 + 2
    replicas[0].waiting, replicas[1].used = 0, 0.8
    assert 0 == router.choose(arrival(text((4, 3))))  # no whole block: memory decides


def test_blocks_of_a_replica_that_left_count_no_more(arrival: Requests) -> None:
    router, replicas = started("gateway,queue_weight=0")
    first = router.choose(arrival(text((1, 40))))
    replicas[first].used = 0.5
    assert first == router.choose(arrival(text((1, 40))))
    router.left(first)
    assert first != router.choose(arrival(text((1, 40))))


def test_the_last_blocks_of_a_replica_are_known() -> None:
    indexer = Indexer()
    indexer.add([1, 2], 0, 3)
    indexer.add([1, 3], 1, 3)
    assert {0: 2, 1: 1} == indexer.match([1, 2, 9])
    indexer.add([4, 5], 0, 3)
    assert {1: 1, 0: 1} == indexer.match([1, 2])  # block 1 is evicted of 0, and block 2 counts
    indexer.remove(1)
    assert {} == indexer.match([1, 3])


def test_a_prompt_longer_than_the_capacity_leaves_blocks_that_nothing_evicts() -> None:
    indexer = Indexer()
    indexer.add([1, 2, 3, 4], 0, 2)
    indexer.add([5, 6], 0, 2)
    assert {0: 2} == indexer.match([1, 2, 3, 4])


# -- as users write them ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_names_its_source_and_is_written_as_it_is_read(name: str) -> None:
    router = router_of(name)
    assert name == router.as_text()
    assert router.follows


def test_rules_are_read_by_the_kind_of_their_default() -> None:
    router = router_of("cache-aware, cache_threshold=0.5, balance_abs_threshold=3")
    assert "cache-aware,cache_threshold=0.5,balance_abs_threshold=3" == router.as_text()


REFUSED = {
    "none": "there is no router 'none'; there are round-robin, random, least-loaded",
    "cache-aware,threshold=1": "has no rule 'threshold=1'; it has cache_threshold",
    "round-robin,seed=1": "router round-robin has no rule 'seed=1'; it has none",
    "cache-aware,cache_threshold": "router cache-aware has no rule 'cache_threshold'",
    "cache-aware,cache_threshold=2": "cache_threshold is 2.0; write a number from 0 to 1",
    "cache-aware,cache_threshold=nan": "cache_threshold is nan; write a number from 0 to 1",
    "dynamo,seed=x": "router dynamo: seed is 'x'; write a whole number",
    "sticky,assignment=best": "assignment is 'best'; write random, min_load or min_group",
}


@pytest.mark.parametrize("router", REFUSED)
def test_a_wrong_router_is_refused_with_what_to_write(router: str) -> None:
    with pytest.raises(RouterError) as raised:
        router_of(router)
    assert REFUSED[router] in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["die:9@1"], "there is no replica 9; they are 0 to 3"),
        (["stop:1@1"], "change 'stop:1@1' is none; write die:2@600"),
    ],
)
def test_a_wrong_change_is_refused(changes: Sequence[str], said: str) -> None:
    with pytest.raises(RouterError) as raised:
        Fleet.of(4, "random", changes)
    assert said in str(raised.value)


@pytest.mark.parametrize("count", [0, -1, 1025, True])
def test_a_wrong_number_of_replicas_is_refused(count: int) -> None:
    with pytest.raises(RouterError):
        Fleet.of(count, "random")


def test_blocks_of_several_sizes_have_no_overlap_of_one() -> None:
    replicas = [Still(0), Still(1)]
    replicas[1].unit = 8  # type: ignore[misc]
    with pytest.raises(RouterError):
        Dynamo().start(replicas)
