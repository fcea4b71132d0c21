import pytest

from cachesim.engines.vllm.family import FAMILY
from cachesim.lab.real.agreement import Agreement
from cachesim.lab.real.schedules import count
from cachesim.lab.real.vllm.playing import play
from cachesim.lab.real.vllm.scheduler import SCHEDULER
from cachesim.lab.real.vllm.workloads import KINDS, draw

NEWEST = FAMILY.release("0.33.0").rules


def test_a_seed_and_a_number_always_give_the_same_workload() -> None:
    assert draw(3, 7, NEWEST) == draw(3, 7, NEWEST)
    assert draw(3, 7, NEWEST) != draw(4, 7, NEWEST)


def test_every_kind_of_group_is_drawn() -> None:
    drawn = {draw(0, number, NEWEST)["id"].rpartition("-")[0] for number in range(len(KINDS))}

    assert set(KINDS) == drawn


@pytest.mark.parametrize("release", FAMILY.names())
def test_a_workload_has_only_groups_that_an_engine_core_makes_of_layers(release: str) -> None:
    rules = FAMILY.release(release).rules
    drawn = [draw(2, number, rules)["config"] for number in range(130)]

    repeated = 0
    for config in drawn:
        groups = config["groups"]
        blocks = [each["block"] for each in groups if each["kind"] != "mamba"]
        states = {each["block"] for each in groups if each["kind"] == "mamba"}
        kinds = [each["kind"] for each in groups]
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
        if group["kind"] != "full"
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


def test_only_python_files_of_the_core_are_unpacked() -> None:
    assert SCHEDULER.kept.fullmatch("vllm/v1/core/block_pool.py")
    assert not SCHEDULER.kept.fullmatch("vllm/_C.abi3.so")
    assert ("vllm==0.33.0",) == SCHEDULER.core_of("0.33.0").requirements
