"""Continuous batching: rules that lose reuse, requests set back, ends of the loop."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from cachesim.engines import Engine, Reply, Request, Ticket
from cachesim.engines.transformers.cache import RegularTrees, compute_block_hash
from cachesim.engines.transformers.server import Transformers
from cachesim.errors import SpecError, UpstreamAbort, UpstreamEndless
from cachesim.model.presets import preset
from cachesim.typed import there_is
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle


def serving(model: str = "dense", profile: str = "5.23.0", **options: Any) -> Transformers:
    given = {"page_size": 4, "num_blocks": 64} | options
    server = Engine.create(f"transformers@{profile}", model=preset(model), options=given)
    assert isinstance(server, Transformers)
    return server


def sent(server: Engine, prompt: Sequence[int], predict: int = 2) -> Ticket:
    return server.submit(Request(prompt=as_tokens(prompt), predict=predict))


def served(server: Engine, prompt: Sequence[int], predict: int = 2) -> Reply:
    ticket = sent(server, prompt, predict)
    server.run()
    return there_is(server.reply(ticket))


def rules(reply: Reply) -> list[str]:
    return [loss.rule for loss in reply.losses]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scheduler", ["fifo", "prefill_first"])
@pytest.mark.parametrize("model", ["dense", "swa"])
def test_replies_are_those_of_a_fresh_server_bit_for_bit(model: str, scheduler: str) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        server = serving(model, num_blocks=40, max_batch_tokens=16, scheduler_type=scheduler)
        oracle = Oracle(server.network)
        base = [rng.randrange(300) for _ in range(40)]
        tickets = []
        for _ in range(10):
            own = [rng.randrange(300) for _ in range(rng.randint(1, 20))]
            tickets.append(sent(server, base[: rng.randint(0, 40)] + own, rng.randint(1, 12)))
            for _ in range(rng.choice((0, 1, 40))):
                server.step()
                server.check_integrity()
        server.run()
        for ticket in tickets:
            reply = there_is(server.reply(ticket))
            cold = oracle.logits(reply.prompt, reply.generated)
            assert cold.tobytes() == reply.logits.tobytes()


def test_a_match_is_whole_pages_and_leaves_the_last_token() -> None:
    server = serving()
    served(server, range(8))
    assert 4 == served(server, range(8)).cached
    assert 8 == served(server, range(9)).cached


def test_the_last_batch_of_a_request_leaves_no_hash_unless_patched() -> None:
    for profile, cached in (("5.23.0", 0), ("5.23.0+registers-last-batch", 8)):
        server = serving(profile=profile)
        served(server, range(9), predict=1)
        reply = served(server, range(10))
        assert (cached, ["whole-pages", "not-hashed"][: 1 + (not cached)]) == (
            reply.cached,
            rules(reply),
        )


@pytest.mark.parametrize(("margin", "cached"), [(0.5, 0), (0.0, 16)])
def test_below_the_margin_every_block_without_a_request_goes_at_once(
    margin: float, cached: int
) -> None:
    server = serving(num_blocks=16, safety_margin=margin)
    served(server, range(100, 117))
    served(server, range(200, 217))
    reply = served(server, range(100, 117))
    assert cached == reply.cached
    assert ("evicted" in rules(reply)) == (margin > 0)


def test_windows_share_nothing() -> None:
    server = serving("swa")
    served(server, range(9))
    assert ["window-layers"] == rules(served(server, range(9)))


def test_two_requests_that_filled_the_same_block_share_it_afterwards() -> None:
    server = serving()
    for _ in range(2):
        sent(server, range(9), predict=5)
    server.step()
    [full] = server.cache.allocators.values()
    assert full.tables[0][:2] == full.tables[1][:2]
    assert {2} == set(full.ledger.shared.values())


def test_a_request_without_room_is_set_back_and_still_answered() -> None:
    server = serving(num_blocks=10)
    tickets = [sent(server, range(each, each + 12), predict=12) for each in (0, 50, 100)]
    server.run()
    assert [event for event in server.events if event.name() == "request-set-back"]
    oracle = Oracle(server.network)
    for ticket in tickets:
        reply = there_is(server.reply(ticket))
        assert oracle.logits(reply.prompt, reply.generated).tobytes() == reply.logits.tobytes()


def test_a_prompt_that_no_empty_cache_has_room_for_ends_the_loop() -> None:
    server = serving(num_blocks=4)
    sent(server, range(20))
    with pytest.raises(UpstreamAbort, match="No requests can be scheduled"):
        server.run()


def test_cancelling_the_only_active_request_after_another_was_set_back_stops_the_server() -> None:
    server = serving(num_blocks=8)
    first, second = (sent(server, range(each, each + 12), predict=16) for each in (0, 50))
    while not server.scheduler.block_new:
        server.step()
    left = next(each for each in (first, second) if int(each) in server.scheduler.active)
    server.cancel(left)
    with pytest.raises(UpstreamEndless):
        server.run()


def test_states_are_refused() -> None:
    with pytest.raises(SpecError, match="no allocator for layers of kind"):
        serving("hybrid")


def test_hashes_are_upstreams_own() -> None:
    """The numbers are those of transformers 5.23.0's `compute_block_hash`."""
    first = compute_block_hash(None, [1, 2, 3, 4])
    assert 11384811893105916616 == first
    assert 2209399432743671643 == compute_block_hash(first, [5, 6, 7, 8])


def test_blocks_are_taken_sector_by_sector() -> None:
    trees = RegularTrees(3)
    trees.add_tree(1)
    trees.add_tree(0)
    assert [5, 4, 3, 0] == trees.pop_leaves(4)
    trees.add_leaves([4])
    assert [2, 1] == trees.pop_leaves(2)
    assert ([], 1) == (trees.delete_full_trees(), len(trees))
