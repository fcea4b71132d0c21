"""A trace on a fleet: its sums, its order, and what routers hear of the replicas."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.engines.base import Request
from cachesim.errors import InputError
from cachesim.processes import pool_of
from cachesim.report.sweep import upgrades
from cachesim.traces.fleet.dynamo import KvRouter
from cachesim.traces.fleet.fleet import ROUTERS, Fleet, others_of
from cachesim.traces.fleet.kv_events import Server
from cachesim.traces.fleet.serving import FleetLoop, joined, parts_of
from cachesim.traces.plan import PlanError, plan_of
from cachesim.traces.playing import check, play
from cachesim.traces.replay import Cell, Measured, row_of
from cachesim.traces.source import Source
from cachesim.traces.sweep import count_parts, key_of, open_store, play_cells, sweep
from cachesim.typed import of_kind
from cachesim.units import Token
from tests.fixtures import output

VLLM = {"num_gpu_blocks_override": 300}
SGLANG = {"max_total_tokens": 6000}


def cell(
    profile: str = "vllm@0.33.0",
    router: str = "round-robin",
    replicas: int = 3,
    *changes: str,
    turn: int = 0,
    options: dict[str, Any] | None = None,
    requests: int = 120,
) -> Cell:
    given = options or (VLLM if profile.startswith("vllm") else {})
    return Cell(
        source=Source(name=f"made:{requests}", scale=32, turn=turn),
        profile=profile,
        model="dense",
        options=tuple(given.items()),
        fleet=Fleet.of(replicas, router, changes),
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("profile", ["vllm@0.33.0", "sglang@0.5.23", "mlx-lm@0.32.2"])
def test_one_replica_is_a_server_without_a_router(profile: str, turn: int) -> None:
    fleet = cell(profile, replicas=1, turn=turn, requests=60)
    alone = play(replace(fleet, fleet=None))
    found = play(fleet)
    for name in ("requests", "refused", "prompt_tokens", "cached", "rate", "lost"):
        assert alone[name] == found[name], name
    assert (0 if profile[0] != "m" else None) == found["fleet"]["elsewhere"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("turn", [0, 2])
@pytest.mark.parametrize("router", ROUTERS)
def test_the_replicas_add_up_and_a_second_run_is_equal(router: str, turn: int) -> None:
    found = play(cell(router=router, turn=turn))
    parts, fleet = found["fleet"]["by_replica"], found["fleet"]
    for name in ("requests", "prompt_tokens", "cached"):
        assert found[name] == sum(part[name] for part in parts), name
    assert found["cached"] + fleet["elsewhere"] == fleet["best"]
    assert fleet["elsewhere"] >= found["lost"].get("on-another-replica", 0)
    assert found == play(cell(router=router, turn=turn))


def test_requests_overlap_only_with_turns() -> None:
    assert {1} == {each["at_once"] for each in play(cell())["fleet"]["by_replica"]}
    assert max({each["at_once"] for each in play(cell(turn=3))["fleet"]["by_replica"]}) > 1


def test_in_order_the_oracle_leaves_nothing_on_another_replica() -> None:
    assert 0 == play(cell(router="oracle"))["fleet"]["elsewhere"]
    assert 0 < play(cell(router="round-robin"))["fleet"]["elsewhere"]


@pytest.mark.parametrize(
    ("profile", "options"),
    [
        ("vllm@0.33.0", {"num_gpu_blocks_override": 100}),
        ("sglang@0.5.23", {"max_total_tokens": 1600, "page_size": 16}),
    ],
)
def test_a_router_without_delay_knows_what_each_replica_holds(
    profile: str, options: dict[str, Any]
) -> None:
    fleet = cell(profile, "dynamo", options=options, turn=2, requests=400)
    servers = [Server(number, fleet.engine) for number in range(3)]
    loop = FleetLoop(Fleet.of(3, "dynamo"), servers, None)
    router = of_kind(KvRouter, loop.router)
    choose, compared, remove, removed = router.choose, [], router.removed, 0

    def count(replica: int, keys: Any, time: float) -> None:
        nonlocal removed
        removed += len(keys)
        remove(replica, keys, time)

    def compare(arrival: Any) -> int:
        keys = arrival.keys(16)
        for server in servers:
            held = router.index.overlap(server.number, keys) * 16
            reused = server.peek(arrival)
            compared.append((min(held, (len(arrival.prompt) - 1) // 16 * 16), reused))
        return choose(arrival)

    router.choose = compare  # type: ignore[method-assign]
    router.removed = count  # type: ignore[method-assign]
    for _ in loop.on_time(fleet.requests(), 2):
        pass
    assert [said for said, _ in compared] == [held for _, held in compared]
    assert 100 < sum(held > 0 for _, held in compared)
    assert removed > 100


# -- changes ---------------------------------------------------------------------------------------


def routed(fleet: Cell) -> Iterator[tuple[float, int | None, bool]]:
    assert fleet.fleet is not None
    servers = [Server(number, fleet.engine) for number in range(fleet.fleet.replicas)]
    loop = FleetLoop(fleet.fleet, servers, None)
    turn = fleet.source.turn
    served = loop.on_time(fleet.requests(), turn) if turn else loop.in_order(fleet.requests())
    for each in served:
        yield each.request.time, each.replica, each.answer is not None


@pytest.mark.parametrize("router", ROUTERS)
def test_a_replica_takes_requests_only_while_it_is_there(router: str) -> None:
    changes = ("die:0@0.04", "drain:1@0.06", "join:2@0.02", "join:1@0.1")
    for time, replica, answered in routed(cell("vllm@0.33.0", router, 4, *changes)):
        assert answered
        assert not (replica == 0 and time >= 40)
        assert not (replica == 1 and 60 <= time < 100)
        assert not (replica == 2 and time < 20)


def test_a_replica_that_dies_loses_its_requests_and_its_cache() -> None:
    changes = ("die:0@0.05", "join:0@0.06")
    found = play(cell("vllm@0.33.0", "round-robin", 2, *changes, turn=1))
    kept = play(cell("vllm@0.33.0", "round-robin", 2, turn=1))
    assert found["fleet"]["lost_requests"] > 0 == kept["fleet"]["lost_requests"]
    assert found["refused"] == found["fleet"]["lost_requests"]
    assert found["cached"] < kept["cached"]
    assert 120 == found["requests"]


def test_a_replica_that_returns_after_its_death_begins_with_an_empty_cache() -> None:
    found = play(cell("vllm@0.33.0", "round-robin", 1, "die:0@0.05", "join:0@0.05"))
    kept = play(cell("vllm@0.33.0", "round-robin", 1))
    assert 0 == found["fleet"]["lost_requests"]
    assert found["cached"] < kept["cached"]


def test_what_another_replica_held_is_the_most_of_one() -> None:
    fleet = cell("vllm@0.33.0", "round-robin", 3)
    assert fleet.fleet is not None
    servers = [Server(number, fleet.engine) for number in range(3)]
    loop = FleetLoop(fleet.fleet, servers, None)
    more = 0
    for each in loop.in_order(fleet.requests()):
        assert each.answer is not None
        more += max([held or 0 for held in each.held]) - (each.answer.cached or 0)
    found = play(fleet)
    assert more == found["fleet"]["elsewhere"] >= found["lost"]["on-another-replica"] > 0
    assert [(0, 0)] * 3 == [(server.load, server.waiting) for server in servers]


@pytest.mark.parametrize("profile", ["vllm@0.33.0", "sglang@0.5.23"])
def test_memory_in_use_is_that_of_running_requests(profile: str) -> None:
    server = Server(0, cell(profile).engine)
    prompt = tuple(map(Token, range(1, 200)))
    assert 0 == server.usage()
    server.engine.submit(Request(prompt=prompt, predict=4))
    server.engine.step()
    assert 0 < (server.usage() or 0) < 1
    server.engine.run()
    assert 0 == server.usage()


def test_the_spread_is_what_the_busiest_replica_computes_over_the_mean() -> None:
    found = play(cell("vllm@0.33.0", "cache-aware", 3))["fleet"]
    computed = [each["prompt_tokens"] - each["cached"] for each in found["by_replica"]]
    assert round(max(computed) / (sum(computed) / 3), 4) == found["spread"] > 1


def test_a_replica_takes_requests_from_the_time_on_at_which_it_joins() -> None:
    found = [
        time
        for time, replica, _ in routed(cell("vllm@0.33.0", "round-robin", 2, "join:1@0.06"))
        if replica == 1
    ]
    assert 60 <= min(found) < 65


def test_a_drained_replica_answers_what_it_has() -> None:
    found = play(cell("vllm@0.33.0", "round-robin", 2, "drain:0@0.05", turn=1))
    assert 0 == found["refused"]
    first, second = found["fleet"]["by_replica"]
    assert first["requests"] < second["requests"]


def test_without_a_replica_requests_are_lost() -> None:
    found = play(cell("vllm@0.33.0", "random", 1, "die:0@0.05"))
    assert (70, 120) == (found["fleet"]["lost_requests"], found["requests"])


# -- plans and commands ----------------------------------------------------------------------------


def test_two_routers_with_equal_rules_are_two_cells() -> None:
    keys = {key_of(cell(router=name), "made:120") for name in ("random", "least-loaded")}
    assert 2 == len(keys)


def test_a_plan_has_a_cell_for_each_number_of_replicas_and_router() -> None:
    plan = {
        "format": 1,
        "trace": [{"made": 40, "scale": 32}],
        "server": [
            {
                "profile": "vllm@0.33.0",
                "replicas": [2, 4],
                "router": ["cache-aware", "random,seed=3"],
            }
        ],
    }
    rows = sweep(plan)
    assert [(2, "cache-aware"), (2, "random,seed=3"), (4, "cache-aware"), (4, "random,seed=3")] == [
        (row["fleet.replicas"], row["fleet.router"]) for row in rows
    ]


WRONG_PLANS = {
    "server 1: router without replicas; write replicas = 8": {"router": "random"},
    "server 1: there is no router 'best'": {"replicas": 2, "router": "best"},
    "server 1: router is [1]; write a text in quotes": {"replicas": 2, "router": [1]},
    "server 1: replicas is 'x'; write a whole number": {"replicas": "x"},
    "server 1: replicas is 0; write a whole number from 1": {"replicas": 0},
    "server 1: changes is 'die:0@1'; write a text in quotes": {"replicas": 2, "changes": "die:0@1"},
}


@pytest.mark.parametrize("said", WRONG_PLANS)
def test_a_wrong_fleet_of_a_plan_is_refused(said: str) -> None:
    server = {"profile": "vllm@0.33.0", **WRONG_PLANS[said]}
    with pytest.raises(PlanError) as raised:
        plan_of({"format": 1, "trace": [{"made": 4, "scale": 32}], "server": [server]})
    assert said in str(raised.value)


def test_events_are_asked_of_servers_that_give_them() -> None:
    with pytest.raises(Exception, match="needs KV events, which mlx-lm does not give here"):
        check(cell("mlx-lm@0.32.2", "dynamo"))


def test_the_command_plays_each_router(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "compare made:30 -p vllm@0.33.0 --replicas 2 --router cache-aware --router oracle --jobs 1"
    )
    bound, *fleets = json.loads(output(capsys, [*line.split(), "--format", "json"]))
    assert "fleet" not in bound
    assert ["cache-aware", "oracle"] == [row["fleet"]["router"] for row in fleets]
    assert "2 x vllm@0.33.0, hybrid" in output(capsys, line.split())


def test_a_page_names_the_router(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    line = "compare made:20 -p vllm@0.33.0 --replicas 2 --router gateway --jobs 1 --report"
    assert 0 == main([*line.split(), str(page)])
    assert "router gateway" in page.read_text()


# -- replicas that differ --------------------------------------------------------------------------


def test_replicas_that_differ_are_servers_of_their_own() -> None:
    others = ["1:num_gpu_blocks_override=60", "2:sglang@0.5.23,max_total_tokens=6000"]
    mixed = cell(replicas=3)
    mixed = replace(mixed, fleet=Fleet.of(3, "round-robin", others=others))
    found = play(mixed)["fleet"]
    alone = {
        0: play(cell(replicas=3))["fleet"]["by_replica"][0],
        1: play(cell(replicas=3, options={"num_gpu_blocks_override": 60})),
        2: play(cell("sglang@0.5.23", replicas=3, options=SGLANG)),
    }
    assert alone[0] == found["by_replica"][0]
    assert alone[1]["fleet"]["by_replica"][1] == found["by_replica"][1]
    assert alone[2]["fleet"]["by_replica"][2] == found["by_replica"][2]
    assert others == found["others"]


def test_a_fleet_may_consist_of_replicas_that_differ() -> None:
    fleet = Fleet.of(2, "random", others=["0-1:sglang@0.5.23,max_total_tokens=6000"])
    found = play(replace(cell(), fleet=fleet))
    assert play(cell("sglang@0.5.23", "random", 2, options=SGLANG))["cached"] == found["cached"]


def test_limits_in_bytes_of_replicas_that_differ_are_named() -> None:
    others = ["1:llama.cpp@b11549,cache_ram=900"]
    sized = replace(cell(), measured=Measured.of_model("llama-3.1-8b"))
    found = play(replace(sized, fleet=Fleet.of(2, "round-robin", others=others)))
    (note,) = (each for each in found["notes"] if each.startswith("replica 1, llama.cpp@b11549"))
    assert "cache_ram (943,718,400 bytes)" in note


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("2:", "cannot be read; write 2:num_gpu_blocks_override=150"),
        ("3:page_size=1", "replicas are 0 to 2"),
        ("2-1:page_size=1", "the lower number first"),
        ("1:a,b", "'b' is no flag; write NAME=VALUE"),
        ("1:num_gpu_blocks=", "is no flag; write NAME=VALUE"),
        ("1:num_gpu_blocks_overide=5", "num_gpu_blocks_overide"),
        ("1:vllm@9", "there is no vllm release '9'"),
        ("1:bound", "bound"),
        ("1:sglang@0.5.23,page_size=4", "needs blocks of one size"),
    ],
)
def test_a_wrong_replica_is_refused(other: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        check(replace(cell(), fleet=Fleet.of(3, "dynamo", others=[other])))
    assert said in str(raised.value)


def test_a_replica_is_named_once() -> None:
    with pytest.raises(InputError, match="replica 1 is in '0-1:a=1' and in '1:b=2'"):
        Fleet.of(3, "random", others=["0-1:a=1", "1:b=2"])


def test_a_router_that_loses_events_chooses_by_what_it_heard() -> None:
    most = {"num_gpu_blocks_override": 60}
    heard, deaf = (
        play(cell(router=f"dynamo,kv_event_loss={loss}", options=most, turn=2, requests=800))
        for loss in (0, 1)
    )
    some = play(cell(router="dynamo,kv_event_loss=0.3", options=most, turn=2, requests=800))
    assert deaf["cached"] < some["cached"] < heard["cached"]


def test_routers_and_sizes_are_not_compared_as_releases() -> None:
    plan = {
        "format": 1,
        "trace": [{"made": 20, "scale": 32}],
        "server": [
            {
                "profile": ["vllm@0.30.0", "vllm@0.33.0"],
                "replicas": [1, 2],
                "router": ["random", "oracle"],
                "others": ["0:num_gpu_blocks_override=200"],
            }
        ],
    }
    rows = [row_of(each, play(each)) for each in plan_of(plan)]
    assert {("0.30.0", "0.33.0")} == {(upgrade.before, upgrade.after) for upgrade in upgrades(rows)}
    assert 4 == len(upgrades(rows))


# -- parts -----------------------------------------------------------------------------------------


def in_parts(fleet: Cell, parts: int) -> Cell:
    assert fleet.fleet is not None
    return replace(fleet, fleet=replace(fleet.fleet, parts=parts))


@pytest.mark.parametrize("router", [name for name, kind in ROUTERS.items() if kind.apart])
def test_parts_of_a_fleet_add_up_to_the_whole(router: str) -> None:
    whole = cell("vllm@0.33.0", router, 5, "die:1@0.03", "drain:4@0.05", "join:1@0.06")
    assert whole.fleet is not None
    others = others_of(["2-3:sglang@0.5.23,max_total_tokens=40"], 5)  # some requests are refused
    whole = replace(whole, fleet=replace(whole.fleet, others=others))
    divided = in_parts(whole, 3)
    alone, found = play(whole), play(divided)
    assert found == joined(divided, json.loads(json.dumps([*map(play, parts_of(divided))])))
    assert router == "cache-aware" or alone["refused"] > 0  # idle, it takes the first
    for name in ("requests", "refused", "prompt_tokens", "cached"):
        assert alone[name] == found[name]
    assert alone["fleet"]["by_replica"] == found["fleet"]["by_replica"]
    assert None is found["fleet"]["elsewhere"] is found["fleet"]["best"]


def test_a_request_that_finds_no_replica_is_lost_once() -> None:
    whole = cell("vllm@0.33.0", "round-robin", 2, "die:0@0.05", "die:1@0.05")
    divided = in_parts(whole, 2)
    found = joined(divided, [*map(play, parts_of(divided))])
    assert 0 < play(whole)["fleet"]["lost_requests"] == found["fleet"]["lost_requests"]


def test_a_sweep_runs_the_parts_of_a_fleet() -> None:
    with open_store(None) as store:
        whole, divided = cell(), in_parts(cell(), 2)
        found = play_cells([whole, divided], store, lambda: pool_of(1))
        assert [play(whole), play(divided)] == found
        assert 3 == len(store) == count_parts([whole, divided])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("dynamo", (), (), 2), "router dynamo looks into the replicas"),
        (("random", (), (), 0), "parts is 0; write a whole number from 1"),
        (("random", (), (), 4), "parts is 4; write a whole number from 1 to that of the replicas"),
    ],
)
def test_wrong_parts_are_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Fleet.of(3, *given)


def test_with_turns_replicas_stay_together() -> None:
    with pytest.raises(InputError, match="leave out --parts"):
        check(in_parts(cell(turn=2), 2))
