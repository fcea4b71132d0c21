"""Laws of SGLang's requests and evictions: each is broken once, and by no workload of a release."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines.causes import Loss
from cachesim.engines.family import Profile, family_of
from cachesim.engines.seen import Seen
from cachesim.engines.sglang.node import NO_SLOTS
from cachesim.engines.sglang.search import SglangLaws
from cachesim.engines.sglang.server import Sglang
from cachesim.engines.sglang.tree import Match
from cachesim.engines.sglang.vocabulary import NOT_FETCHED, ChunkScheduled, DraftsVerified
from cachesim.play.session import Session
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.typed import there_is
from cachesim.units import Count
from tests.engines.seen_kit import changed, found, replied, seen_of, without

FAMILY = family_of("sglang")
PROMPTS = (range(300, 400), range(400, 500), [*range(300, 350), *range(500, 560)])
REPLY = tuple(range(900, 906))
HOST = {"enable_hierarchical_cache": True, "max_total_tokens": 400}
STORAGE = {"hicache_storage_backend": "file", "hicache_storage_prefetch_policy": "wait_complete"}


@pytest.mark.parametrize("release", FAMILY.names())
@pytest.mark.parametrize(
    ("model", "number"), [("dense", 4), ("swa", 8), ("hybrid", 2), ("hybrid-swa", 3)]
)
def test_no_release_breaks_one(release: str, model: str, number: int) -> None:
    assert [] == found(f"sglang@{release}", model, number)


class Played:
    """Requests one after the other; the last one as the laws read it."""

    def __init__(
        self,
        model: str = "dense",
        release: str = "0.5.23",
        prompts: Sequence[Sequence[int]] = PROMPTS,
        drafts: tuple[tuple[int, ...], ...] | None = None,
        **options: Any,
    ) -> None:
        scenario = Scenario(
            format=FORMAT,
            name="laws",
            model=Model(preset=model),
            engine=Server(name="sglang", profiles=(release,), options=options),
            step=tuple(
                Step(name=f"r{number}", prompt=tuple(prompt), reply=REPLY, drafts=drafts)
                for number, prompt in enumerate(prompts)
            ),
        )
        session = Session(scenario, Profile.parse(f"sglang@{release}"), arithmetic="counts")
        assert isinstance(session.engine, Sglang)
        self.server, self.tree = session.engine, session.engine.tree
        self.laws = SglangLaws(self.server)
        for record in session.run():
            reply = there_is(record.reply)
            self.seen = seen_of(reply, record.events, forced=reply.generated)
            assert self.laws.broken(self.seen) is None

    def broken(self) -> str:
        """The law that the last request breaks."""
        breach = self.laws.broken(self.seen)
        return "" if breach is None else breach.detail


Change = Callable[[Played], None]


def of_last(change: Callable[[Seen], Seen]) -> Change:
    """Change the last request, as the laws read it."""

    def apply(played: Played) -> None:
        played.seen = change(played.seen)

    return apply


def evicts(count: int, part: str = "tokens") -> Change:
    """Evict from a tree that evicts `count` slots whatever is wanted."""

    def apply(played: Played) -> None:
        evict = played.tree._evict
        amounts = {"tokens": (count, 0, 0), "window": (0, count, 0), "states": (0, 0, count)}
        played.tree._evict = lambda *_: evict(*amounts[part])  # type: ignore[method-assign]
        played.tree.evict(**{part: 2})

    return apply


def skips_a_leaf(played: Played) -> None:
    played.tree.leaves.remove(min(played.tree.leaves, key=played.tree.first))  # type: ignore[attr-defined]
    played.tree.evict(tokens=2)


def skips_a_leaf_of_the_host(played: Played) -> None:
    played.tree.evict(tokens=400)
    tier = played.tree.host  # type: ignore[attr-defined]
    tier.leaves.remove(min(tier.leaves, key=played.tree.first))  # type: ignore[attr-defined]
    tier.evict(0, 2)


def skips_the_oldest(name: str) -> Change:
    """Evict one slot of a list whose oldest node is passed over."""

    def apply(played: Played) -> None:
        lru = getattr(played.tree, f"{name}_lru")
        inner = [node for node in lru if node.children]
        lru.oldest = lambda: inner[0]
        played.tree.evict(**{"window" if name == "window" else "states": 1})

    return apply


def of_node(at: int, **values: Any) -> Change:
    """Change a node of the last request's path, counted from its end."""

    def apply(played: Played) -> None:
        key = played.tree.key_of([*played.server._jobs][-1].req.tokens[:115])
        node = [node for node, length in played.tree.walk(key) if length == len(node)][at]
        for name, value in values.items():
            setattr(node, name, value)

    return apply


def matches_the_second(played: Played) -> None:
    first, second, _ = [there_is(job.req) for job in played.server._jobs]
    played.server.scheduler.waiting = [second, first]
    there_is(played.server.scheduler.on_match)(second, Match(NO_SLOTS, played.tree.root))


def runs_too_many(played: Played) -> None:
    request, *_ = [there_is(job.req) for job in played.server._jobs]
    played.server.scheduler.running.reqs = [request] * 9
    there_is(played.server.scheduler.on_match)(request, Match(NO_SLOTS, played.tree.root))


def retracts_the_second(played: Played) -> None:
    first, second, _ = [there_is(job.req) for job in played.server._jobs]
    first.num_tokens -= 2
    played.server.scheduler.running.reqs = [first]
    there_is(played.server.scheduler.on_retract)(second)


def with_a_cap_of_one(played: Played) -> None:
    played.tree.shape = replace(played.tree.shape, states_per_path=1)


def _loss(count: int) -> Loss:
    numbers = {"stored": count, "found": 0}
    return Loss(cause=NOT_FETCHED, before=Count(count), after=Count(0), detail=numbers)


STATES = {"model": "hybrid", "mamba_radix_cache_strategy": "no_buffer"}
CHUNKED = STATES | {"chunked_prefill_size": 16}


@pytest.mark.parametrize(
    ("options", "change", "detail"),
    [
        ({}, of_last(changed(ChunkScheduled, start=7)), "a chunk begins at 7, after 50 computed"),
        ({}, of_last(changed(ChunkScheduled, end=112)), "a prompt of 110 tokens end at 112"),
        (
            {"chunked_prefill_size": 16},
            of_last(replied(cached=0)),
            "a chunk begins at 50, after 0 computed tokens",
        ),
        (
            {"chunked_prefill_size": 16},
            of_last(changed(ChunkScheduled, start=50, end=60)),
            "a chunk has 10 tokens, and there is room for 16",
        ),
        (
            {"chunked_prefill_size": 16},
            of_last(changed(ChunkScheduled, start=50, end=110)),
            "a chunk has 60 tokens, of at most 16",
        ),
        (
            {"speculative_algorithm": "EAGLE", "drafts": ((901, 902), (950,))},
            of_last(without(DraftsVerified)),
            "drafts (proposed, accepted) are verified as [], not as [(2, 2), (1, 0)]",
        ),
        ({}, skips_a_leaf, "a leaf is evicted before one that the policy evicts earlier"),
        ({"release": "0.5.9"}, skips_a_leaf, "a leaf is evicted before one that the policy"),
        (HOST, skips_a_leaf_of_the_host, "the host evicts a node before one that is due earlier"),
        ({}, evicts(120), "are evicted for [2, 0, 0]"),
        ({}, evicts(0), "[0, 0, 0] slots of each part are evicted for [2, 0, 0], and more could"),
        ({"model": "swa", "release": "0.5.9"}, evicts(120), "are evicted for [2, 0, 0]"),
        ({"model": "swa"}, evicts(120, "window"), "are evicted for [0, 2, 0]"),
        ({"model": "swa"}, skips_the_oldest("window"), "a window is evicted before one used less"),
        (STATES, evicts(0, "states"), "are evicted for [0, 0, 2], and more could be"),
        (CHUNKED, skips_the_oldest("state"), "a state is evicted before one used less recently"),
        ({}, of_node(0, last_access=0.5), "the nodes of the last request are not those used last"),
        ({}, of_node(0, priority=-1), "a node has a priority of -1, due is 1"),
        ({}, matches_the_second, "requests wait in another order than that of the policy"),
        ({}, runs_too_many, "9 requests run at once"),
        ({}, retracts_the_second, "request 1 is retracted before another one"),
        (CHUNKED, with_a_cap_of_one, "states, of at most 1"),
        (HOST, of_node(-1, host_full=None), "tokens are not on the host, where"),
        ({}, of_node(-1, value=None), "110 of 115 tokens would be found of the 115 computed ones"),
        (
            {"model": "swa", "prompts": PROMPTS[:2]},
            of_node(-1, window=False),
            "tokens would be found of the 105 computed ones",
        ),
        (STATES, of_node(-1, state=None), "no state is found after 115 tokens"),
        (
            HOST | STORAGE | {"max_total_tokens": 2000},
            of_last(replied(losses=(_loss(300),))),
            "300 tokens in the storage are not fetched",
        ),
    ],
)
def test_a_broken_law_is_found(options: dict[str, Any], change: Change, detail: str) -> None:
    played = Played(**options)

    change(played)

    assert detail in played.broken()


def test_nodes_beyond_the_last_kept_state_are_the_requests_own() -> None:
    """The state at the prompt's end was there; that of the first chunk had been evicted."""
    options = {"mamba_radix_cache_strategy": "no_buffer", "mamba_max_states_per_path": 2}
    prompt = range(300, 366)

    played = Played("recurrent", prompts=[prompt, prompt], chunked_prefill_size=64, **options)

    assert "" == played.broken()


def test_states_that_copies_to_the_host_lock_are_not_capped() -> None:
    flags = STATES | HOST | {"max_total_tokens": 2000, "hicache_copy_steps": 65}
    flags |= {"chunked_prefill_size": 64, "mamba_max_states_per_path": 2}

    assert "" == Played(**flags, prompts=[range(300, 500)]).broken()


def test_the_tree_after_a_flush_is_observed() -> None:
    played = Played()

    assert played.server.flush_cache()
    played.laws.begin_anew()

    assert played.server.tree is not played.tree
    assert played.server.tree.on_evict is not None


def test_nothing_is_due_from_a_storage_where_the_host_was_full() -> None:
    """Its tokens are on the device, too, and are not evicted for others."""
    prompts = [range(265, 292), [*range(300, 500), *range(320, 364)], range(400, 433)]
    options = HOST | STORAGE | {"max_total_tokens": 300, "hicache_ratio": 1.0}

    played = Played(prompts=[*prompts, range(265, 293)], prefetch_threshold=2, **options)

    assert (27, 14) == (played.seen.reply.equal, played.seen.reply.cached)
