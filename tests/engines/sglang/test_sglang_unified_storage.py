"""The third tier of 0.5.23, for models of every kind: what is asked, what comes, who waits."""

from typing import Any

import numpy as np
import pytest

from cachesim.engines.base import Engine, Request
from cachesim.engines.profile import Profile
from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.request import Req
from cachesim.engines.sglang.server import Sglang
from cachesim.engines.sglang.storage_threads import Retries
from cachesim.engines.sglang.unified import UnifiedRadixCache
from cachesim.errors import OptionError
from cachesim.model.presets import tiny
from cachesim.real.sglang.playing import play
from cachesim.real.sglang.workloads import KINDS, draw
from cachesim.units import Tokens, as_tokens
from tests.engines.conversations import wrong
from tests.engines.sglang.workloads import PRESETS, Workload

NEWEST = FAMILY.release("0.5.23").rules
ON = {
    "enable_hierarchical_cache": True,
    "hicache_storage_backend": "file",
    "prefetch_threshold": 20,
    "max_total_tokens": 400,
}


def server(preset: str, profile: str = "sglang@0.5.23", **options: Any) -> Sglang:
    made = Engine.create(
        profile, model=tiny(preset, vocabulary=4096), options=ON | options, arithmetic="counts"
    )
    assert isinstance(made, Sglang)
    return made


def send(engine: Sglang, prompt: Tokens, key: str | None = None) -> tuple[int | None, list[str]]:
    """What is reused of a prompt, and why not more; its reply is one token."""
    options = {"extra_key": key} if key else {}
    ticket = engine.submit(Request(prompt=prompt, predict=1, reply=prompt[:1], options=options))
    engine.run()
    reply = engine.reply(ticket)
    assert reply is not None
    assert reply.cached is not None
    engine.check_integrity()
    assert reply.equal - reply.cached == sum(each.before - each.after for each in reply.losses)
    return reply.cached, [each.rule for each in reply.losses]


def stored(preset: str, profile: str = "sglang@0.5.23", **options: Any) -> Sglang:
    """A was served and went to the storage; the tree was emptied."""
    engine = server(preset, profile, **options)
    send(engine, A)
    engine.flush_cache()
    return engine


def fresh(first: int, count: int = 200) -> Tokens:
    return as_tokens(range(first, first + count))


A = fresh(0)


@pytest.mark.parametrize(
    ("preset", "cached"), [("dense", 199), ("swa", 199), ("hybrid", 192), ("hybrid-swa", 192)]
)
def test_every_kind_of_model_gets_back_what_the_storage_has(preset: str, cached: int) -> None:
    engine = stored(preset)

    assert cached == send(engine, A)[0]
    assert cached == send(engine, A)[0]


def test_windows_come_with_the_end_of_what_is_fetched() -> None:
    engine = stored("swa")
    send(engine, A)

    said = [event.sentence for event in engine.events]
    assert "tokens 0 to 199 of request 1 are fetched from the storage to the host" in said
    assert (
        "the window slots of tokens 192 to 199 of request 1 are fetched from the storage to the "
        "host" in said
    )


def test_a_state_comes_where_one_was_stored_and_nothing_beyond_it() -> None:
    engine = stored("hybrid")

    assert (192, []) == send(engine, A + fresh(900, 40))
    assert "the state after 192 tokens of request 1 is fetched from the storage to the host" in [
        event.sentence for event in engine.events
    ]


def test_pages_belong_to_the_extra_key_that_they_were_stored_under() -> None:
    """Unlike 0.5.9, whose pages are found by tokens alone (#26747)."""
    engine = server("dense")
    send(engine, A, "mine")
    engine.flush_cache()

    assert (0, []) == send(engine, A)
    engine.flush_cache()
    assert (199, ["last-token"]) == send(engine, A, "mine")


def test_with_eagle_pairs_are_stored_and_pairs_are_asked_for() -> None:
    engine = stored("dense", speculative_algorithm="EAGLE")

    assert (198, ["last-token", "pairs-of-tokens"]) == send(engine, A)


def test_best_effort_gets_nothing_for_a_request_that_need_not_wait() -> None:
    """A hit is known by a look, and what it fetches by the next one at the earliest."""
    engine = stored("dense", hicache_storage_prefetch_policy="best_effort")

    assert (0, ["last-token", "not-fetched"]) == send(engine, A)


def test_less_than_the_threshold_is_not_asked_for() -> None:
    engine = stored("dense", prefetch_threshold=200)

    assert (0, ["last-token", "not-fetched"]) == send(engine, A)


def test_asking_for_the_last_page_leaves_the_match_without_a_window() -> None:
    """As before #27291: the window comes for a page that no match ends at."""
    pages = {"page_size": 4}

    assert (196, ["last-token", "whole-pages"]) == send(stored("swa", **pages), A)
    assert 0 == send(stored("swa", "sglang@0.5.23+no-27291", **pages), A)[0]
    assert 196 == send(stored("dense", "sglang@0.5.23+no-27291", **pages), A)[0]


def test_the_host_is_touched_only_where_the_storage_has_something() -> None:
    engine = server("dense")
    engine.submit(Request(prompt=A, predict=1, reply=A[:1]))
    assert isinstance(engine.tree, UnifiedRadixCache)
    free = engine.tree.host_free()["host_tokens"]
    engine.tree.look()

    assert free == engine.tree.host_free()["host_tokens"]
    assert {} == engine.tree.ongoing
    assert [0] == list(engine.tree.retries.pending)


def waiting(*numbers: int) -> list[Req]:
    return [Req.make(number, np.arange(4), 1) for number in numbers]


def test_a_miss_is_asked_for_again_some_passes_later_but_not_by_the_head_of_the_queue() -> None:
    retries, queue = Retries(interval=2, attempts=1), waiting(0, 1)
    for req in queue:
        retries.missed(req.id)

    passes = [[req.id for req, _ in retries.ready(queue)] for _ in range(4)]

    assert [[], [], [1], []] == passes


def test_who_has_asked_often_enough_asks_no_more() -> None:
    retries, queue = Retries(interval=1, attempts=1), waiting(0, 1)
    queue[1].reissues = 1
    retries.missed(1)

    assert [[], [], []] == [retries.ready(queue) for _ in range(3)]
    assert {} == retries.pending


@pytest.mark.parametrize(
    ("policy", "base", "cached"),
    [("best_effort", 0, 0), ("wait_complete", 0, 64), ("timeout", 2, 0), ("timeout", 9, 64)],
)
def test_who_waits_for_a_slow_storage(policy: str, base: float, cached: int) -> None:
    storage = {"policy": policy, "threshold": 20, "lag": 2, "timeout_base": base}
    host = {"policy": "write_through", "ratio": 2.0, "storage": storage}
    first, again = ({"prompt": p, "generate": 1, "reply": "9999"} for p in ("1-64", "1-70"))
    others = [
        [{"prompt": f"{at}-{at + 199}", "generate": 1, "reply": "9999"}]
        for at in range(1000, 7000, 1000)
    ]
    workload = {
        "config": {"kind": "full", "tokens": 400, "host": host},
        "steps": [[first], *others, [{"reset": True}], [again]],
    }

    *_, last = play(workload, NEWEST)

    assert cached == last["requests"][0]["cached"]


def test_options_of_0523_are_refused_by_059() -> None:
    with pytest.raises(OptionError, match="the releases that have it are"):
        Engine.create(
            "sglang@0.5.9",
            model=tiny("dense"),
            options=ON | {"hicache_storage_prefetch_retry_poll_interval": 1},
        )


def test_a_server_waits_for_its_storage_by_default_since_0523() -> None:
    policies = [
        FAMILY.read(Profile("sglang", release), {}).hicache_storage_prefetch_policy
        for release in FAMILY.names()
    ]

    assert ["best_effort", "timeout"] == policies


@pytest.mark.parametrize("preset", PRESETS)
def test_answers_from_the_storage_are_those_of_a_cold_run(preset: str) -> None:
    for seed in range(8):
        assert [] == wrong(Workload(seed, "sglang@0.5.23", presets=(preset,), stored=True))


def test_such_workloads_fetch_attention_windows_and_states() -> None:
    parts: set[str] = set()
    for seed in range(30):
        workload = Workload(seed, "sglang@0.5.23", stored=True)
        wrong(workload)
        parts |= {event.part for event in workload.engine.events if "fetched" in event.name()}
    assert {"attention", "window", "state"} == parts


def test_storage_workloads_are_drawn_for_every_kind_of_model() -> None:
    numbers = range(KINDS.index("storage"), 40 * len(KINDS), len(KINDS))
    drawn = [draw(0, number, NEWEST) for number in numbers]

    assert {"full", "window", "mamba", "window-mamba"} == {d["config"]["kind"] for d in drawn}
    assert any("reset" in group[0] for each in drawn for group in each["steps"])
