from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.engines.base import Reply
from cachesim.engines.family import Profile
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.vocabulary import RequestPreempted
from cachesim.errors import InputError, ScenarioError
from cachesim.play.session import Record, Session
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.scenario.shipped import load_all
from cachesim.units import Count
from conformance.real.agreement import Agreement
from conformance.real.schedules import RealScheduler, count, step_played, wanted_of
from conformance.real.vllm import workloads
from conformance.real.vllm.end_to_end import Played, apart, prompts, simulated
from conformance.real.vllm.playing import play
from conformance.real.vllm.scheduler import SCHEDULER, config_of, group_of
from conformance.real.vllm.workloads import FURTHER, KINDS, draw, draw_async

NEWEST = FAMILY.release("0.33.0").rules


def test_every_kind_of_group_is_drawn() -> None:
    drawn = {draw(0, number, NEWEST)["id"].rpartition("-")[0] for number in range(len(KINDS))}

    assert set(KINDS) == drawn


@pytest.mark.parametrize("option", sorted(set(FURTHER) - {"disable_hybrid_kv_cache_manager"}))
def test_workloads_with_an_option_show_it(option: str) -> None:
    """The comparison would find a scheduler that ignores it."""
    shown = 0
    for number in range(26):
        workload = draw_async(0, number, NEWEST, option=option)
        plain = workload | {"config": workload["config"] | {"further": {}}}
        if option == "disable_eagle_block_drop" and workload["config"].get("eagle"):
            groups = [
                group | {"eagle": group["kind"] == "full"} for group in plain["config"]["groups"]
            ]
            plain["config"]["groups"] = groups
        shown += play(workload, NEWEST) != play(plain, NEWEST)
        if shown >= 5:
            break

    assert shown >= 5, option


def test_without_the_hybrid_manager_attention_is_one_group_that_keeps_all() -> None:
    """A window's group would give up blocks, and a hit need only the last ones."""
    drawn = [
        draw(0, number, NEWEST, option="disable_hybrid_kv_cache_manager")["config"]["groups"]
        for number in range(10)
    ]

    assert all([group["kind"] for group in groups] == ["full"] for groups in drawn)
    assert {"window", "chunk"} == {key for [group] in drawn for key in group} & {"window", "chunk"}


def test_a_release_gets_the_options_that_it_has() -> None:
    drawn = {
        release: {
            name
            for number in range(800)
            for name in draw(0, number, FAMILY.release(release).rules)["config"]["further"]
        }
        for release in ("0.23.0", "0.28.0", "0.33.0")
    }

    every = {"long_prefill_token_threshold", "disable_hybrid_kv_cache_manager"}
    assert drawn["0.23.0"] == every
    assert "watermark" in drawn["0.28.0"]
    assert "max_num_active_seqs" not in drawn["0.28.0"]
    assert set(FURTHER) <= drawn["0.33.0"]


@pytest.mark.parametrize("release", FAMILY.names())
def test_a_workload_has_only_groups_that_an_engine_core_makes_of_layers(release: str) -> None:
    rules = FAMILY.release(release).rules
    drawn = [draw(2, number, rules)["config"] for number in range(130)]

    repeated = 0
    for config in drawn:
        groups = config["groups"]
        blocks = [group["block"] for group in groups if group["kind"] != "mamba"]
        states = {group["block"] for group in groups if group["kind"] == "mamba"}
        kinds = [group["kind"] for group in groups]
        repeated += len(kinds) > len(set(kinds))
        assert not blocks or states <= {min(blocks)}
        assert sorted(kinds, key=kinds.index) == kinds
        assert rules.scheduler.accepts_small_budgets or config["budget"] >= max(states, default=0)
    assert repeated > 0


@pytest.mark.parametrize(
    ("release", "marked"), [("0.30.0", {True}), ("0.31.0", {True, False}), ("0.33.0", {False})]
)
def test_the_drafter_marks_other_groups_than_attention_where_the_release_does(
    release: str, marked: set[bool]
) -> None:
    rules = FAMILY.release(release).rules
    number = KINDS.index("eagle")
    drawn = (draw(2, number + each * len(KINDS), rules)["config"] for each in range(20))

    found = {
        bool(group.get("eagle"))
        for config in drawn
        for group in config["groups"]
        if group["kind"] != "full" and not config["further"].get("disable_eagle_block_drop")
    }

    assert marked == found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("release", FAMILY.names())
def test_drawn_workloads_come_to_their_end(release: str) -> None:
    rules = FAMILY.release(release).rules

    ends = {number: play(draw(1, number, rules), rules)[-1].get("error") for number in range(20)}

    assert dict.fromkeys(range(20)) == ends


def test_one_different_block_is_a_disagreement() -> None:
    workload = draw(0, 0, NEWEST)
    real, simulated = play(workload, NEWEST), play(workload, NEWEST)
    found = Agreement()
    count(found, workload, real, simulated)
    simulated[0]["queue"] += " 1"
    count(found, workload, real, simulated)

    assert (2, 1) == (found.total("workloads"), found.total("agreeing"))
    assert found.difference is not None


def test_what_the_release_itself_fails_on_is_not_compared() -> None:
    workload = draw(0, 0, NEWEST)
    found = Agreement()

    count(found, workload, [{"error": "AssertionError: no"}], [{"error": "out of blocks"}])

    assert (1, 0, True) == (found.total("raised"), found.total("requests"), found.all_agree)


@pytest.mark.parametrize(
    ("flags", "draws"),
    [([], workloads.draw_async), (["--no-async-scheduling"], workloads.draw)],
)
def test_workloads_are_asynchronous_unless_a_flag_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], draws: object
) -> None:
    drawn = list[object]()

    def compare(self: RealScheduler[Any], *_: object) -> Agreement:
        drawn.append(self.draw)
        raise InputError("compared")

    monkeypatch.setattr(RealScheduler, "compare", compare)
    assert 2 == main(["real", "vllm", "--workloads", "1", *flags])
    assert [draws] == drawn


def test_only_python_files_of_the_core_are_unpacked() -> None:
    assert SCHEDULER.kept.fullmatch("vllm/v1/core/block_pool.py")
    assert not SCHEDULER.kept.fullmatch("vllm/_C.abi3.so")
    assert ("vllm==0.33.0",) == SCHEDULER.core_of("0.33.0").requirements


# Scenarios as the real scheduler is told them, and what is made of an end-to-end run.


def test_the_scheduler_alone_decides_as_the_whole_engine_does() -> None:
    [(_, scenario)] = load_all(["vllm-29387-same-prompt-in-one-step"])
    session = Session(scenario, Profile(FAMILY.name, "0.33.0"), arithmetic="ring")
    prompt = "300-339"
    group = [{"prompt": prompt, "generate": 1, "reply": str(450 + at)} for at in range(2)]

    told = play(
        {"config": config_of(session.engine), "steps": [group, [{"reset": True}], group[:1]]},
        FAMILY.release("0.33.0").rules,
    )

    assert [0, 32] == [request["cached"] for request in told[0]["requests"]]
    assert {"reset": True} == told[1]
    assert 0 == told[2]["requests"][0]["cached"]


def test_what_the_real_scheduler_is_not_led_through_is_refused() -> None:
    [(_, scenario)] = load_all(["vllm-57661-ring-cut-off"])

    with pytest.raises(ScenarioError, match="no rings"):
        SCHEDULER.play_scenario(scenario, "0.33.0")


def test_options_that_the_real_scheduler_is_not_given_are_refused() -> None:
    [(_, scenario)] = load_all(["vllm-29387-same-prompt-in-one-step"])
    more = {"speculative_method": "eagle", "eagle_groups": "window"}
    engine = replace(scenario.engine, options=dict(scenario.engine.options) | more)

    with pytest.raises(ScenarioError, match="marks a drafter's groups"):
        SCHEDULER.play_scenario(replace(scenario, engine=engine), "0.33.0")


def test_a_client_that_leaves_is_an_abort_of_its_turn() -> None:
    [(_, scenario)] = load_all(["vllm-45414-two-pictures"])

    _, workload, _ = SCHEDULER.workload_of(scenario, "0.23.0")

    assert [3, None, None, None, None, None] == [step.get("abort") for step in workload["steps"][1]]


def test_who_comes_later_is_told_in_turns() -> None:
    [(_, scenario)] = load_all(["vllm-57580-withdrawn-before-it-ran"])
    session = Session(scenario, Profile(FAMILY.name, "0.33.0"), arithmetic="ring")

    low, urgent = group_of(list(session.run()), session)

    assert (None, None) == (low.get("after"), low.get("priority"))
    assert (1, -1) == (urgent["after"], urgent["priority"])


@pytest.mark.parametrize("name", ["vllm-store-brings-states", "vllm-store-without-states"])
def test_the_real_scheduler_is_told_what_the_store_had(name: str) -> None:
    """The chunks are those that vLLM's own scheduler forms."""
    [(_, scenario)] = load_all([name])
    session = Session(scenario, Profile(FAMILY.name, "0.33.0"), arithmetic="ring")
    records = list(session.run())

    groups = [group_of([record], session) for record in records]
    told = play(
        {"config": config_of(session.engine), "steps": groups}, FAMILY.release("0.33.0").rules
    )

    assert [None, None, [96]] == [group[0].get("stored") for group in groups]
    assert [[96, 100]] == told[-1]["requests"][0]["chunks"]


def answer(tokens: list[int], *steps: dict[str, float], cached: int = 0) -> dict[str, Any]:
    return {"name": "first", "cached": cached, "tokens": tokens, "logprobs": list(steps)}


def test_answers_are_compared_up_to_the_first_other_token() -> None:
    one = answer([7, 8, 9], {"7": -1.0}, {"8": -2.0, "5": -3.0}, {"9": 0.0})
    other = answer([7, 5, 9], {"7": -1.0}, {"8": -2.5, "5": -2.25}, {"9": -9.0})

    assert 0.75 == apart(one, other)
    assert 0.0 == apart(one, one)


def test_an_end_to_end_run_whose_check_sees_nothing_does_not_agree() -> None:
    cold, moved = answer([7], {"7": -1.0}), answer([7], {"7": -1.5})
    seen = Played("dense", 16, {"first": cold}, {"first": cold}, {"states": moved}, {"first": 0})
    blind = Played("dense", 16, {"first": cold}, {"first": cold}, {"states": cold}, {"first": 0})
    wrong = Played("dense", 16, {"first": moved}, {"first": cold}, {"states": moved}, {"first": 0})

    assert (True, False, False) == (seen.agrees, blind.agrees, wrong.agrees)


def test_a_hybrid_goes_on_from_the_junction_at_its_second_branch() -> None:
    assert [0, 1280, 1280, 0, 640] == list(simulated("hybrid-delta", 640, prompts()).values())


def test_where_the_release_raises_the_simulator_is_asked_to_end_too() -> None:
    raised = {"error": "AssertionError: of the release's own words"}
    ended = {"error": "evict_host: the real process aborts here"}
    ends = Record(index=0, name="a", step=Step(prompt=(1, 2, 3)))
    answers = replace(ends, reply=replace(Reply.empty(), cached=Count(0)))

    assert step_played(ends, raised, ended).agrees
    assert not step_played(answers, raised, {"cached": 0}).agrees
    assert not step_played(ends, {"cached": 0}, ended).agrees


def test_a_request_that_never_ends_here_and_is_answered_there_differs() -> None:
    step = Step(prompt=(300, 301), reply=(302, 303, 304))
    waits = Record(index=0, name="waits", step=step, prompt=(300, 301), error="endless")

    assert 3 == wanted_of(waits, {})["generate"]
    assert not step_played(waits, {"cached": 0}, {"cached": 0}).agrees
    assert step_played(waits, {"error": "stuck"}, {"error": "stuck"}).agrees


def test_an_endless_wait_on_both_is_confirmed_and_hides_the_replies_beside_it() -> None:
    step, stuck = Step(prompt=(300, 301)), {"error": "stuck"}
    waits = Record(index=0, name="waits", step=step, error="endless")
    beside = Record(index=1, name="a", step=step, reply=replace(Reply.empty(), cached=Count(0)))

    assert step_played(waits, stuck, stuck, hangs=True).confirmed
    assert step_played(beside, stuck, stuck, hangs=True).agrees
    assert not step_played(beside, stuck, stuck, hangs=True).confirmed
    assert not step_played(beside, stuck, stuck).agrees


@pytest.mark.parametrize("differs", [False, True])
def test_workloads_of_a_guided_search_are_compared_model_by_model(
    differs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(workload: dict[str, Any]) -> list[dict[str, Any]]:
        groups = play(workload, NEWEST)
        return [{**group, "queue": "-"} for group in groups] if differs else groups

    started = nullcontext(SimpleNamespace(play=played))
    monkeypatch.setattr(RealScheduler, "start", lambda *_: started)
    found = SCHEDULER.compare_guided("0.33.0", 5, range(1))

    models = found.total("workloads")
    compared = models - found.total("not compared")
    assert 7 == models
    assert 0 < compared
    assert (0 if differs else compared) == found.total("agreeing")
    assert differs != found.all_agree
    assert found.total("not compared") == found.reasons.total()


def test_where_the_workload_is_not_run_as_the_server_ran_it_the_replys_count_is_shown() -> None:
    record = Record(index=0, name="a", step=Step(prompt=(1, 2, 3)))
    replied = replace(record, reply=replace(Reply.empty(), cached=Count(0)))

    step = step_played(replied, {"cached": 2, "chunks": []}, {"cached": 2, "chunks": []})

    assert not step.agrees
    assert {"cached": 0, "chunks": []} == step.simulated


@pytest.mark.parametrize("model", ["dense", "recurrent"])
@pytest.mark.parametrize("length", [6, 40])
def test_a_prefill_server_is_read_once_and_a_failed_read_fails_as_a_whole(
    model: str, length: int
) -> None:
    failing = Step(
        prompt=tuple(range(300, 300 + length)), reply=(400,), options={"failed_block": 1}
    )
    scenario = Scenario(
        format=FORMAT,
        name="failing",
        model=Model(preset=model),
        engine=Server(
            name="vllm",
            profiles=("0.33.0",),
            options={"connector": "nixl", "kv_load_failure_policy": "recompute"},
        ),
        step=(failing,),
    )

    records, workload, _ = SCHEDULER.workload_of(scenario, "0.33.0")
    results = play(workload, NEWEST)

    assert 2 == len(results[0]["requests"][0]["lookups"])
    assert [0] == [record.reply.cached for record in records if record.reply is not None]
    assert [0] == [request["cached"] for request in results[0]["requests"]]


def prefilled_elsewhere(*more: Step, **options: Any) -> Scenario:
    """A request of 24 tokens, of which a step of the prefill server takes 8, and others beside."""
    server = Server(
        name="vllm",
        profiles=("0.33.0",),
        options={"connector": "nixl", "max_num_batched_tokens": 8, "max_num_seqs": 8} | options,
    )
    first = Step(prompt=tuple(range(300, 324)), reply=(400,), name="first")
    model = Model(preset="dense")
    return Scenario(
        format=FORMAT, name="elsewhere", model=model, engine=server, step=(first, *more)
    )


@pytest.mark.parametrize("release", ["0.24.0", "0.28.0", "0.32.0"])
def test_drafts_that_find_no_blocks_are_proposed_to_the_scheduler_too(release: str) -> None:
    """The second request is preempted for its drafts, so that they are in no chunk."""
    flags = {"block_size": 4, "num_gpu_blocks_override": 6, "max_model_len": 16}
    first = Step(name="a", prompt=tuple(range(265, 276)), reply=(300, 301))
    second = Step(prompt=tuple(range(365, 372)), reply=(400, 401, 402), drafts=((401, 402),))
    scenario = Scenario(
        format=FORMAT,
        name="drafts",
        model=Model(preset="dense"),
        engine=Server(name="vllm", options=flags | {"speculative_method": "ngram"}),
        step=(first, replace(second, name="b", with_previous=True)),
    )

    records, workload, _ = SCHEDULER.workload_of(scenario, release)
    [group] = play(workload, FAMILY.release(release).rules)

    own = [[isinstance(e, RequestPreempted) for e in record.events] for record in records]
    assert [0, 1] == [request["preempted"] for request in group["requests"]] == [*map(sum, own)]


def test_requests_reach_the_scheduler_when_their_prefill_elsewhere_is_done() -> None:
    beside = Step(prompt=tuple(range(340, 348)), reply=(400,), with_previous=True, turns=1)

    _, workload, _ = SCHEDULER.workload_of(prefilled_elsewhere(beside), "0.33.0")

    [group] = workload["steps"]
    assert [3, 4] == [each["after"] for each in group]


@pytest.mark.parametrize(
    ("step", "options", "why"),
    [
        (
            Step(prompt=(340,), reply=(400,), with_previous=True, options={"priority": -1}),
            {"scheduling_policy": "priority"},
            "another order",
        ),
        (Step(do="cancel", of="first", with_previous=True), {}, "cancelled on its prefill"),
    ],
)
def test_requests_whose_order_only_the_prefill_server_knows_are_not_compared(
    step: Step, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ScenarioError, match=why):
        SCHEDULER.workload_of(prefilled_elsewhere(step, **options), "0.33.0")


@pytest.mark.nightly
@pytest.mark.wheel
def test_a_server_with_a_store_keeps_its_hybrid_manager_off() -> None:
    if not SCHEDULER.core_of("0.33.0").is_ready():
        pytest.skip("vllm 0.33.0 is not unpacked here")
    flags = {"block_size": 4, "disable_hybrid_kv_cache_manager": True, "connector": "store"}
    scenario = Scenario(
        format=FORMAT,
        name="store",
        about="A store beside windows without groups of their own.",
        model=Model(preset="swa"),
        engine=Server(name="vllm", profiles=("0.33.0",), options=flags),
        step=tuple(Step(name=each, prompt=(*range(300, 309),), predict=2) for each in "ab"),
    )

    assert all(each.agrees for each in SCHEDULER.play_scenario(scenario, "0.33.0"))
