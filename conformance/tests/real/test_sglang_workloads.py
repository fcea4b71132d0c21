"""The workloads that are held against SGLang's own scheduler, and what is told of them."""

import sys
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from cachesim.engines.family import Profile
from cachesim.engines.sglang.family import FAMILY
from cachesim.errors import ScenarioError
from cachesim.play.session import Session
from cachesim.prove.rows import read_row
from cachesim.prove.vllm.files import PACKAGES
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.scenario.shipped import load_all
from conformance.real.agreement import Agreement
from conformance.real.prompts import with_images
from conformance.real.schedules import count
from conformance.real.sglang.hicache_worker import page_hashes
from conformance.real.sglang.parts_worker import MAMBA, RustNodes
from conformance.real.sglang.playing import play
from conformance.real.sglang.scheduler import (
    FEATURES,
    SCHEDULER,
    config_of,
    features_of,
    visible_of_rust,
    with_rust,
)
from conformance.real.sglang.scheduler_worker import Playing
from conformance.real.sglang.workloads import KINDS, draw

NEWEST = FAMILY.release("0.5.23").rules


def test_every_kind_of_tree_is_drawn() -> None:
    drawn = [draw(0, number, NEWEST) for number in range(4 * len(KINDS))]

    assert set(KINDS) == {each["id"].rpartition("-")[0] for each in drawn}
    assert {"full", "window", "mamba"} <= {each["config"]["kind"] for each in drawn}


def test_hosts_are_drawn_beside_scarce_devices_too() -> None:
    """Queues of several requests for a device that holds little more than one of them."""
    numbers = [n for n in range(160) if draw(1, n, NEWEST)["config"].get("host")]
    drawn = [draw(1, number, NEWEST) for number in numbers]
    scarce = [each for each in drawn if each["config"]["tokens"] < 200]

    assert len(drawn) // 4 < len(scarce) < len(drawn)
    assert any(
        len(group) > each["config"]["max_running"] for each in scarce for group in each["steps"]
    )
    assert not any("error" in play(each, NEWEST)[-1] for each in scarce[:8])


def test_slots_that_059_counts_beyond_its_nodes_end_no_comparison() -> None:
    """The real HiRadixCache, too, counts 532 for 503 after the seventh group, and ends later."""
    rules = FAMILY.release("0.5.9").rules
    groups = play(draw(20261120, 46, rules), rules)

    assert 12 == len(groups)
    assert "parent does not have child key" in groups[-1]["error"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", FAMILY.names())
def test_drawn_workloads_retract_evict_arrive_and_abort(release: str) -> None:
    rules = FAMILY.release(release).rules
    groups = [group for number in range(36) for group in play(draw(1, number, rules), rules)]
    requests = [request for group in groups for request in group.get("requests", ())]

    assert any(request["retracted"] for request in requests)
    assert any(request.get("aborted") for request in requests)
    assert any(request["branch"] for request in requests)
    assert any(len(request["chunks"]) > 1 for request in requests)
    assert any(group["evicted"] for group in groups if "evicted" in group)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", FAMILY.names())
def test_drawn_workloads_come_back_from_the_host(release: str) -> None:
    """Nodes that were on the host only are on the device in the group after."""
    rules = FAMILY.release(release).rules
    numbers = [n for n in range(60) if draw(1, n, rules)["id"].startswith("host")]
    back = 0
    for number in numbers:
        before: set[tuple[int, int]] = set()
        for group in play(draw(1, number, rules), rules):
            nodes = group.get("tree", [])
            back += sum((node[0], node[1]) in before and node[3] == 1 for node in nodes)
            before = {(node[0], node[1]) for node in nodes if node[3] == 0}
    assert back


WITHOUT: dict[str, dict[str, Any]] = {
    "priorities": {"prioritizes": False},
    "policies": {"schedule": "fcfs"},
    "adapters": {"loras": 0},
    "sessions": {},
    "streaming": {"streams": False},
    "drafts": {"drafts": None},
    "thinking": {"strips": False},
    "limits": {"most_prefill": None, "conservativeness": 1.0},
}
"""A workload of a feature without it."""


def test_streaming_sessions_are_a_feature_of_releases_that_have_the_option() -> None:
    having = [release for release in FAMILY.names() if "streaming" in features_of(release)]

    assert ["0.5.22", "0.5.23"] == having


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", FAMILY.names())
@pytest.mark.parametrize("feature", FEATURES)
def test_drawn_workloads_of_a_feature_depend_on_it(feature: str, release: str) -> None:
    rules = FAMILY.release(release).rules
    if feature not in features_of(release):
        return
    # Limits of a prefill act only where several prompts wait at once.
    differing, enough = 0, len(KINDS) // (8 if feature == "limits" else 4)
    for number in range(len(KINDS)):
        drawn = FEATURES[feature].draw(0, number, rules)
        plain = drawn | {"config": drawn["config"] | WITHOUT[feature]}
        if feature in {"sessions", "streaming"}:
            steps = [[dict(each) for each in step] for step in drawn["steps"]]
            for step in chain.from_iterable(steps):
                step.pop("session", None)
            plain["steps"] = steps
        differing += play(drawn, rules) != play(plain, rules)
        if differing >= enough:
            break

    assert differing >= enough


def test_a_prompt_whose_client_goes_while_it_is_read_ends_there_since_0523() -> None:
    """0.5.9 reads it to its end, and keeps all of it."""
    config = {"kind": "full", "tokens": 2000, "chunk": 64}
    gone = {"prompt": "1-300", "generate": 4, "reply": "400-403", "aborted": 2}
    workload = {"config": config, "steps": [[gone]]}

    told = {name: play(workload, FAMILY.release(name).rules)[0] for name in FAMILY.names()}

    chunks = {name: each["requests"][0]["chunks"] for name, each in told.items()}
    assert [[0, 64], [64, 128], [128, 192], [192, 256], [256, 300]] == chunks["0.5.9"]
    assert [[0, 64], [64, 128]] == chunks["0.5.23"]
    assert [[0, 64, 64]] == told["0.5.23"]["tree"]


def test_a_prefill_that_leaves_no_page_for_each_request_ends_059() -> None:
    """Eight prompts in pages of 64 with windows: 0.5.9 wants a page more for each of them."""
    config = {"kind": "window", "page": 64, "tokens": 576, "window": 8, "window_tokens": 512}
    group = [
        {"prompt": f"{first}-{first + 19}", "generate": 1, "reply": "9999"}
        for first in range(10, 410, 50)
    ]
    workload = {"config": config | {"ignore_eos": False}, "steps": [group]}

    old, new = (play(workload, FAMILY.release(name).rules)[0] for name in ("0.5.9", "0.5.23"))

    assert "Prefill out of memory" in old["error"]
    assert [[[0, 20]]] * 8 == [request["chunks"] for request in new["requests"]]


def test_the_last_request_that_finds_no_memory_counts_as_retracted_too() -> None:
    """Six long replies in pools for one: 0.5.23 aborts the last that is left, after a reset."""
    config = {
        "kind": "window-mamba",
        "chunk": 32,
        "ignore_eos": False,
        "strategy": "no_buffer",
        "states": 36,
        "tokens": 410,
        "window": 100,
        "window_tokens": 323,
    }
    asked = (
        ("10-70 586-606", 40, "608-647"),
        ("454-480 482-488", 120, "649-768"),
        ("10-70 586-606", 120, "770-889"),
        ("10-70 586-606 608-647 891-906", 40, "916-955"),
        ("957-1002 1004-1043 1045-1057", 120, "1067-1186"),
        ("957-1002 1004-1043 1045-1057 1067-1116", 120, "1188-1307"),
    )
    group = [{"prompt": p, "generate": n, "reply": r} for p, n, r in asked]

    [told] = play({"config": config, "steps": [group]}, NEWEST)

    assert [0, 0, 1, 1, 1, 1] == [request["retracted"] for request in told["requests"]]


def test_a_request_that_a_last_plan_retracts_is_counted() -> None:
    """The real scheduler drops the last request that finds no memory, and forms no batch."""
    request = SimpleNamespace(
        rid="000000",
        retraction_count=0,
        origin_input_ids=[1],
        extra_key=None,
        finished=lambda: True,
    )

    def plan() -> None:
        request.retraction_count = 1

    scheduler = SimpleNamespace(
        waiting_queue=[],
        last_batch=None,
        running_batch=SimpleNamespace(is_empty=lambda: True),
        _add_request_to_queue=lambda _: None,
    )
    core = SimpleNamespace(
        rust=None,
        tree=None,
        root=SimpleNamespace(children={}),
        scheduler=scheduler,
        overlaps=True,
        plan=plan,
        request=lambda *_: request,
        free=dict,
        leaks=lambda: False,
    )

    told = Playing(lambda _: core, {}).play([{"prompt": "1-9"}])

    assert 1 == told["requests"][0]["retracted"]


def test_a_leak_that_the_release_finds_ends_a_workload() -> None:
    root = SimpleNamespace(children={})
    core = SimpleNamespace(rust=None, tree=None, root=root, free=dict, leaks=lambda: True)

    assert {"error": "pool memory leak detected"} == Playing(lambda _: core, {})._result([])


def test_where_the_release_raises_and_the_simulator_does_not_they_differ() -> None:
    workload = {"id": "full-0"}
    found = Agreement()
    count(found, workload, [{"error": "RuntimeError: out"}], [{"error": "out of memory"}])
    assert (1, True) == (found.total("raised"), found.all_agree)

    count(found, workload, [{"error": "RuntimeError: out"}], [{"requests": []}])

    assert not found.all_agree


def test_a_running_request_whose_client_goes_makes_one_more_token_and_is_kept() -> None:
    config = {"kind": "full", "tokens": 2000}
    gone = {"prompt": "1-100", "generate": 40, "reply": "200-239", "aborted": 3}

    told = play({"config": config, "steps": [[gone]]}, NEWEST)[0]

    assert [[0, 100, 100], [0, 103, 3]] == told["tree"]


def test_a_scenario_is_told_to_the_real_scheduler_with_its_own_settings() -> None:
    [(_, scenario)] = load_all(["sglang-seven-kinds-of-request"])
    session = Session(scenario, Profile(FAMILY.name, "0.5.23"), arithmetic="ring")
    config = config_of(session.engine)
    steps = [[{"prompt": "300-499", "generate": 3, "reply": "500-502"}]] * 2

    told = play({"config": config, "steps": [*steps, [{"reset": True}], steps[0]]}, NEWEST)

    assert ("mamba", "extra_buffer", False) == (
        config["kind"],
        config["strategy"],
        config["ignore_eos"],
    )
    assert [0, 192, 0] == [told[at]["requests"][0]["cached"] for at in (0, 1, 3)]
    assert {"reset": True} == told[2]


def test_a_scenario_that_the_real_scheduler_cannot_be_given_is_refused() -> None:
    [(_, ranks)] = load_all(["sglang-34760-state-beyond-its-node"])
    [(_, other)] = load_all(["sglang-27504-indexer-not-stored"])
    leaves = replace(other, step=(replace(other.step[0], leaves="reading", held=9),))

    for scenario, why in ((ranks, "it has one rank, --dcp-size 1"), (leaves, "a client leaves at")):
        with pytest.raises(ScenarioError, match=why):
            SCHEDULER.play_scenario(scenario, "0.5.23")


def test_a_client_of_a_scenario_leaves_at_its_turn() -> None:
    [(_, scenario)] = load_all(["sglang-slots-switched-twice"])

    _, workload, _ = SCHEDULER.workload_of(scenario, "0.5.23")

    chat, other = workload["steps"][0]
    assert ({"aborted": 69}, {"arrives": 4}) == (
        {"aborted": chat["aborted"]},
        {"arrives": other["arrives"]},
    )
    assert [[0, 0], [64]] == [
        [request["cached"] for request in group["requests"]] for group in play(workload, NEWEST)
    ]


def test_a_turn_of_a_session_is_sent_without_the_tokens_that_it_continues() -> None:
    [(_, scenario)] = load_all(["sglang-streaming-last-token"])

    _, workload, _ = SCHEDULER.workload_of(scenario, "0.5.23")

    [first], [second] = workload["steps"]
    assert [12, 4] == [len(read_row(each["prompt"])) for each in (first, second)]
    assert [("S", True)] * 2 == [
        (each["session"]["id"], each["session"]["streaming"]) for each in (first, second)
    ]
    assert [0, 14] == [each["requests"][0]["cached"] for each in play(workload, NEWEST)]


@pytest.mark.sampled(2)
@pytest.mark.wheel
@pytest.mark.parametrize("name", ["sglang-slots-switched-twice", "sglang-streaming-last-token"])
def test_the_real_scheduler_serves_a_scenario_of_clients_that_leave_or_hold_sessions_alike(
    name: str,
) -> None:
    [(_, scenario)] = load_all([name])

    assert all(each.agrees for each in SCHEDULER.play_scenario(scenario, "0.5.23"))


def test_only_python_files_are_unpacked() -> None:
    assert SCHEDULER.kept.fullmatch("sglang/srt/mem_cache/unified_radix_cache.py")
    assert not SCHEDULER.kept.fullmatch("sglang/srt/models/llama.py")
    assert not SCHEDULER.kept.fullmatch("sglang/srt/_core.abi3.so")
    assert ("sglang==0.5.9",) == SCHEDULER.core_of("0.5.9").requirements


def test_both_tree_cores_are_unpacked_and_run_with_pytorch_for_the_cpu() -> None:
    core = SCHEDULER.core_of("0.5.23")

    assert core.kept.fullmatch("sglang/srt/mem_cache/rust_tree_core/mem_cache.cpython-311.so")
    assert PACKAGES.python == core.python
    assert core == with_rust(SCHEDULER).core_of("0.5.23")


def test_results_are_compared_as_far_as_the_core_in_rust_shows_them() -> None:
    evicted = [[1, 8, 4, 1, 1, 1, 0], [0, 4, 4, 0, 1, 1, 1, "kept without it"]]
    groups = [{"requests": [], "tree": [[2, 4, 4], [0, 4, 4]], "evicted": evicted}]
    salted = {"config": {}, "steps": [[{"prompt": "1-9", "salt": "a"}]]}
    adapted = {"config": {}, "steps": [[{"prompt": "1-9", "lora": "1" * 32}]]}
    hosted = {"config": {"host": {}}, "steps": [[{"prompt": "1-9"}]]}
    plain = {"config": {}, "steps": [[{"prompt": "1-9"}]]}

    assert [[0, 4, 4], [2, 4, 4]] == visible_of_rust(plain, groups)[0]["tree"]
    assert sorted(evicted) == visible_of_rust(plain, groups)[0]["evicted"]
    assert evicted[:1] == visible_of_rust(salted, groups)[0]["evicted"]
    assert evicted[:1] == visible_of_rust(adapted, groups)[0]["evicted"]
    assert [[1, 8, 4, 1, 1, 1, 1]] == visible_of_rust(hosted, groups)[0]["evicted"]


@pytest.mark.parametrize("pairs", [False, True], ids=("tokens", "pairs"))
def test_nodes_of_the_core_in_rust_are_read_by_their_ids(
    pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids 1 (the root), 3 and 7 are in use; pages of two tokens or pairs, hashed as text.

    A drafter's core has pairs of tokens as keys, so the unknown text of node 9 is of pairs, too.
    """

    def hashes(text: list[int], seed: str | None, page: int, bigrams: bool) -> list[str]:
        assert bigrams is pairs
        return [f"{seed}:{list(text[: at + page])}" for at in range(0, len(text) - pairs, page)]

    class Core:
        enable_storage = False
        backfill_missing_hash_values = staticmethod(lambda: 0)
        paths: ClassVar = {3: (0, 2), 7: (2, 4)}

        def is_root(self, node: int) -> bool:
            if node not in {1, *self.paths}:
                raise KeyError(node)
            return node == 1

        def collect_path_info(self, nodes: list[int]) -> list[list[Any]]:
            start, end = self.paths[nodes[0]]
            return [[SimpleNamespace(path_start=start, path_end=end)]]

        def get_last_hash_value(self, node: int) -> str:
            return f"None:{list(range(10, 10 + self.paths[node][1]))}"

        def get_component_device_value(self, node: int, kind: int) -> object:
            return object() if (node, kind) == (3, MAMBA) else None

    extension = SimpleNamespace(bindings=SimpleNamespace(get_hash_str=hashes))
    utils = SimpleNamespace(storage_namespace_seed=lambda key, _: key)
    monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.rust_tree_core.extension", extension)
    monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.utils", utils)
    nodes = RustNodes(Core(), page=2, bigrams=pairs, kinds=[MAMBA], host=False)
    nodes.learn([10, 11, 12, 13, 14], None)
    keys = ((10, 11), (11, 12), (12, 13), (13, 14)) if pairs else (10, 11, 12, 13)

    assert [(keys[:2], 2, [1]), (keys, 2, [0])] == nodes.walk()

    Core.paths[9] = (4, 6)
    del Core.paths[3]
    unknown = ((-1, -1) if pairs else -1,) * 6

    assert [(unknown, 2, [0]), (keys, 2, [0])] == nodes.walk()


@pytest.mark.parametrize(
    ("tokens", "pairs", "prior", "begins"),
    [
        ([10, 11, 12], False, None, ["50ac472466c1", "d1d76ba2bf90"]),
        ([10, 11, 12], True, None, ["4bde82677ba8"]),
        ([10, 1 << 33, 12], False, bytes(32), ["b95174fe0d58", "e16bb6bb60cd"]),
    ],
    ids=("tokens", "pairs", "wide"),
)
def test_pages_have_the_hashes_of_the_core_in_rust(
    tokens: list[int], pairs: bool, prior: bytes | None, begins: list[str]
) -> None:
    """By `get_hash_str` of 0.5.23's extension: it stores what the controller looks up."""
    found = page_hashes(tokens, len(tokens) - pairs, 1 + pairs, pairs, prior, 2)

    assert begins == [each[:12] for each in found]


def test_a_parent_that_is_evicted_twice_ends_059() -> None:
    """With `write_back` it is written back as a leaf, and taken again when its last child goes."""
    config = {
        "kind": "full",
        "page": 4,
        "chunk": 128,
        "max_running": 4,
        "eagle": True,
        "host": {"policy": "write_back", "ratio": 1.0, "lag": 0},
        "tokens": 564,
    }
    groups = (
        ("10-186: 188", "190-301: 303-342", "190-301: 344-348", "190 350-374: 384",
         "386-544: 546-565"),
        ("10-186 188 569-587: 597",),
        ("190-301 303-308 654-674: 676-715", "10-170 717-741: 743",
         "10-73 607-634 644 646-650 652 753-766: 768"),
        ("770-893: 895-896",),
        ("190 350-373 962-967: 969", "386-544 546-565 979-982: 992"),
        ("10-186: 994",),
        ("10-73 607-634 644 1001-1017: 1019", "386-440 1021-1041: 1043"),
        ("10-186: 1109-1128",),
    )  # fmt: skip
    steps = [[asked(each) for each in group] for group in groups]
    steps[-1][0]["salt"] = "b"

    *served, last = play({"config": config, "steps": steps}, FAMILY.release("0.5.9").rules)

    assert all("error" not in each for each in served)
    assert "HiRadixCache._evict_backuped" in last["error"]


def asked(text: str) -> dict[str, Any]:
    """A prompt and its reply, as numbers of tokens."""
    prompt, reply = text.split(": ")
    first, _, last = reply.partition("-")
    return {"prompt": prompt, "generate": int(last or first) - int(first) + 1, "reply": reply}


def test_refused_requests_do_not_reach_the_real_scheduler_and_limits_are_the_servers() -> None:
    """One prompt and its cancellation are left out; a reply ends at the context's end."""
    reply = tuple(range(400, 420))
    steps = (
        Step(name="long", prompt=tuple(range(300, 340)), reply=reply),
        Step(name="beside", prompt=(300, 301), reply=reply, with_previous=True),
        Step(name="leaves", do="cancel", of="long"),
        Step(name="more", prompt=tuple(range(300, 340)), reply=reply, with_previous=True),
        Step(name="none", do="cancel", turns=0),
        Step(name="ended", do="cancel", of="beside"),
        Step(name="alone", prompt=tuple(range(300, 340)), reply=reply),
    )
    scenario = Scenario(
        format=FORMAT,
        name="refused",
        model=Model(preset="dense"),
        engine=Server(name="sglang", profiles=("0.5.23",), options={"context_length": 16}),
        step=steps,
    )

    _, workload, _ = SCHEDULER.workload_of(scenario, "0.5.23")

    [[beside]] = workload["steps"]
    assert "300-301" == beside["prompt"]
    assert 12 == beside["generate"]
    assert 2 == beside["aborted"]


def test_a_prompt_that_is_cut_beside_one_that_goes_on_generates_behind_what_it_has() -> None:
    """As the release's own scheduler does: seven tokens of the first one are in no chunk."""
    workload = with_images(draw(20261130, 29, NEWEST), 20261130, 29)

    first = play(workload, NEWEST)[3]["requests"][0]

    assert [[1, 22]] == first["chunks"]
    assert 29 == len(read_row(workload["steps"][3][0]["prompt"]))
