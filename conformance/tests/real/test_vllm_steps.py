"""Reads, writes and copies of the model runner in each step, by the simulated runner's rules."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines.family import Profile
from cachesim.engines.vllm.family import FAMILY
from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.rules import RunnerRules
from cachesim.errors import UntestedError
from cachesim.prove.vllm.files import PACKAGES
from cachesim.scenario import load
from cachesim.scenario.labels import DERIVED, label_of
from cachesim.scenario.shipped import shipped_file
from cachesim.typed import there_is
from conformance.real.agreement import Agreement
from conformance.real.vllm.scheduler import SCHEDULER
from conformance.real.vllm.steps import (
    KERNELS,
    compare_steps,
    count,
    difference,
    differs_in,
    draw_steps,
    mode_of,
    play_steps,
)
from conformance.real.vllm.workloads import speculative
from tests.fixtures import Capture, output

RELEASES = [
    *(
        pytest.param(each, marks=pytest.mark.nightly)
        for each in (FAMILY.real()[0], "0.23.0", "0.28.0")
    ),
    FAMILY.real()[-1],
]
DRAFTS = "vllm-39273-plain-step-after-drafts"

STATES: dict[str, Any] = {"kind": "mamba", "block": 8, "mode": "align", "speculative_blocks": 2}


def workload(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Requests that arrive together at a server with gated-delta layers and n-grams of two."""
    config = {"groups": [{"kind": "full", "block": 8}, STATES], "blocks": 64, "drafts": 2}
    return {"id": "drawn", "config": config | {"eagle": False} | more, "steps": [list(requests)]}


DRAFTLESS = workload(
    {"prompt": "1-3", "generate": 6, "reply": "101-106", "accept": [2], "propose": [0, 2, 0, 0]}
)
"""Two drafts are accepted, then nothing is proposed."""

ONE_TOKEN = workload({"prompt": "7", "generate": 2, "reply": "101-102"}, drafts=0)


def steps_of(asked: dict[str, Any], release: str, **rules: Any) -> list[Any]:
    known = FAMILY.release(release).rules
    runner: RunnerRules = replace(known.runner, **rules)
    config = asked["config"]
    groups = speculative(config["groups"], config["drafts"], known, eagle=config["eagle"])
    asked = asked | {"config": config | {"groups": groups}}
    [group] = play_steps(asked, replace(known, runner=runner))
    steps: list[Any] = group["steps"]
    return steps


def skip_without_runner(release: str) -> None:
    here = SCHEDULER.core_of(release).is_ready() and PACKAGES.is_ready() and KERNELS.is_ready()
    if not here:
        pytest.skip(f"vllm {release} is not unpacked here")


def read(steps: list[Any], kind: str) -> list[int | None]:
    return [row[kind]["1"][0] for step in steps for row in step["rows"].values()]


def test_a_step_after_accepted_drafts_reads_the_state_of_the_last_one_since_032() -> None:
    before, after = (steps_of(DRAFTLESS, release) for release in ("0.31.0", "0.33.0"))
    table = after[1]["rows"]["0"]["delta"]["1"][1]

    assert [3, 6] == after[1]["rows"]["0"]["chunk"]
    assert table[2] == read(after, "delta")[2]
    assert table[0] == read(before, "delta")[2]


def test_a_rule_that_the_runner_does_not_have_is_a_difference() -> None:
    real = steps_of(DRAFTLESS, "0.33.0")
    planted = steps_of(DRAFTLESS, "0.33.0", plain_path_reads_first=True)

    assert not difference([{"steps": real}], [{"steps": real}])
    found = there_is(difference([{"steps": real}], [{"steps": planted}]))
    assert 2 == found.step
    assert "  rows.0.delta." in next(found.lines())


@pytest.mark.parametrize(("other", "place"), [("11-13", 0), ("11-14", 2), ("11-12", 2)])
def test_beside_a_prefill_chunk_as_long_as_a_decode_mamba_layers_read_the_first_state(
    other: str, place: int
) -> None:
    """Model Runner V2 sorts the chunk before the request that nothing is drafted for."""
    beside = {"prompt": other, "generate": 1, "reply": "102", "after": 2}
    steps = steps_of(workload(*DRAFTLESS["steps"][0], beside), "0.33.0")
    table = steps[1]["rows"]["0"]["ssm"]["1"][1]
    row = steps[2]["rows"]["0"]

    assert ({"0", "1"}, [6, 7]) == ({*steps[2]["rows"]}, row["chunk"])
    assert (table[place], table[2]) == (row["ssm"]["1"][0], row["delta"]["1"][0])


def test_slots_are_those_of_the_tokens_in_the_blocks_of_the_table() -> None:
    [first, *_] = steps_of(DRAFTLESS, "0.33.0")
    row = first["rows"]["0"]
    blocks = row["seen"]["0"]

    assert [blocks[place // 8] * 8 + place % 8 for place in range(3)] == row["slots"]["0"]


def test_a_state_that_passes_a_boundary_is_copied_from_the_last_accepted_one() -> None:
    asked = workload({"prompt": "1-7", "generate": 9, "reply": "101-109", "accept": [2]})
    steps = steps_of(asked, "0.33.0")
    first = steps[0]["rows"]["0"]["delta"]["1"][1][0]
    moved = [copy for step in steps for copies in step["copies"].values() for copy in copies]

    assert [[7, 10], [10, 13]] == [step["rows"]["0"]["chunk"] for step in steps[1:3]]
    assert first == steps[1]["copies"]["before"][0][1]
    assert all(bias == 0 or state != window for _, state, window, bias in moved)


@pytest.mark.parametrize(("release", "fresh"), [("0.30.0", False), ("0.31.0", True)])
def test_until_030_a_first_chunk_of_one_token_reads_what_its_block_held(
    release: str, fresh: bool
) -> None:
    [first, *_] = steps_of(ONE_TOKEN, release)

    assert fresh == (first["rows"]["0"]["delta"]["1"][0] is None)
    assert first["rows"]["0"]["ssm"]["1"][0] is None


def test_in_model_runner_v1_a_longer_first_chunk_before_it_makes_it_a_prefill() -> None:
    one = {"prompt": "7", "generate": 1, "reply": "101"}
    longer = {"prompt": "11-13", "generate": 1, "reply": "102"}

    assert [1, None] == [
        each and 1 for each in read(steps_of(workload(one, longer, drafts=0), "0.28.0"), "delta")
    ]
    assert [None, None] == read(steps_of(workload(longer, one, drafts=0), "0.28.0"), "delta")


@pytest.mark.parametrize(
    ("release", "other", "more", "fresh"),
    [
        # In Model Runner V2 a chunk as long as drafts make it is no decode beside one token.
        ("0.30.0", "11-13", {"eagle": True}, True),
        ("0.30.0", "11-14", {"eagle": True}, False),
        # Until 0.22 a one-token prompt beside a prefill begins from nothing.
        ("0.22.1", "1-9", {}, True),
        ("0.23.0", "1-9", {}, False),
    ],
)
def test_where_a_one_token_prompt_beside_a_chunk_begins_from_nothing(
    release: str, other: str, more: dict[str, bool], fresh: bool
) -> None:
    one, longer = ({"prompt": each, "generate": 1, "reply": "101"} for each in ("7", other))
    [first, *_] = steps_of(workload(one, longer, **more), release)

    assert fresh == (first["rows"]["0"]["delta"]["1"][0] is None)


@pytest.mark.parametrize(("release", "reused"), [("0.26.0", 1), ("0.27.1", 0), ("0.28.0", 1)])
def test_without_prefix_caching_027_takes_new_blocks_before_freed_ones(
    release: str, reused: int
) -> None:
    first, second = ({"prompt": each, "generate": 1, "reply": "101"} for each in ("1-3", "11-13"))
    asked = workload(first, drafts=0, caching=False, groups=[{"kind": "full", "block": 8}])
    groups = play_steps(asked | {"steps": [[first], [second]]}, FAMILY.release(release).rules)
    seen = [group["steps"][0]["rows"][str(at)]["seen"]["0"] for at, group in enumerate(groups)]

    assert reused == (seen[0] == seen[1])


def test_in_all_mode_a_step_after_a_short_one_reads_on_from_what_was_accepted() -> None:
    groups = [{"kind": "full", "block": 8}, STATES | {"mode": "all"}]
    asked = workload(
        {"prompt": "1-12", "generate": 6, "reply": "101-106", "accept": [1], "propose": [1]},
        groups=groups,
    )
    steps = steps_of(asked, "0.30.0")

    assert steps[1]["rows"]["0"]["ssm"]["1"][1][1] == read(steps, "ssm")[2]


def first_row(release: str, *requests: dict[str, Any], **more: Any) -> Mapping[str, Any]:
    """The first row of the third request."""
    steps = steps_of(workload(*requests, max_seqs=2, **more), release)
    rows: list[Mapping[str, Any]] = [step["rows"]["2"] for step in steps if "2" in step["rows"]]
    return rows[0]


@pytest.mark.parametrize(
    ("release", "kind", "reads", "states"),
    [("0.30.0", "delta", True, 3), ("0.30.0", "ssm", False, 1), ("0.31.0", "delta", False, 1),
     ("0.33.0", "delta", False, 1), ("0.33.0", "ssm", False, 1)],
)  # fmt: skip
def test_a_one_token_prompt_padded_with_drafts_leaves_one_state_behind_all_of_them(
    release: str, kind: str, reads: bool, states: int
) -> None:
    row = first_row(
        release,
        {"prompt": "1-3", "generate": 9, "reply": "11-19", "accept": [0]},
        {"prompt": "4-6", "generate": 1, "reply": "20"},
        {"prompt": "7", "generate": 3, "reply": "21-23", "accept": [0]},
        eagle=True,
    )
    initial, targets = row[kind]["1"]

    assert [0, 3] == row["chunk"]
    assert (reads, states) == (initial is not None, len(targets))


@pytest.mark.parametrize(("release", "kind", "states"), [
    ("0.29.0", "ssm", 1), ("0.29.0", "delta", 3), ("0.30.0", "ssm", 3),
])  # fmt: skip
def test_until_029_mamba_layers_prefill_a_prompt_tail_that_is_padded_with_drafts(
    release: str, kind: str, states: int
) -> None:
    row = first_row(
        release,
        {"prompt": "1-17", "generate": 9, "reply": "21-29", "accept": [0]},
        {"prompt": "1-17", "generate": 1, "reply": "20"},
        {"prompt": "1-17", "generate": 3, "reply": "31-33", "accept": [0]},
    )

    assert [16, 19] == row["chunk"]
    assert states == len(row[kind]["1"][1])


def test_the_runner_of_a_release_depends_on_modes_and_drafters() -> None:
    found = {
        release: [
            VllmOptions(speculative_method=method, mamba_cache_mode=mode).runs_on_v1(known.rules)
            for method, mode in (("mtp", "align"), ("ngram", "align"), ("mtp", "all"))
        ]
        for release in ("0.28.0", "0.29.0", "0.31.0", "0.33.0")
        for known in [FAMILY.release(release)]
    }

    assert [True] * 3 == found["0.28.0"]
    assert [False, True, False] == found["0.29.0"]
    assert [False, True, True] == found["0.31.0"]
    assert [False] * 3 == found["0.33.0"]


def test_every_mode_of_a_release_is_drawn_with_drafts_and_without() -> None:
    rules = FAMILY.release("0.30.0").rules
    drawn = [draw_steps(0, number, rules)["config"] for number in range(200)]

    assert {
        (mode, drafting)
        for mode in ("align", "all", "none", "no states")
        for drafting in (False, True)
    } == {(mode_of(config), bool(config.get("drafts"))) for config in drawn}


def test_what_was_not_played_does_not_agree(capsys: Capture) -> None:
    found = Agreement()
    with pytest.raises(UntestedError, match="no workload was run on both"):
        found.show()

    steps = [{"steps": steps_of(DRAFTLESS, "0.33.0")}]
    count(found, DRAFTLESS, steps, steps)
    assert (0, 1, 1) == (found.show(), found.total("workloads"), found.total("agreeing"))

    count(found, DRAFTLESS, [{"error": "ended"}], steps)
    assert 1 == found.show()
    printed = capsys.readouterr().out
    assert "workload drawn, step 0:\n  copies: real null" in printed
    assert '  error: real "ended", simulated null' in printed


def test_a_workload_on_which_both_raise_is_no_difference_and_does_not_agree() -> None:
    found, ended = Agreement(), [{"error": "AssertionError: 12 < 13"}]
    count(found, DRAFTLESS, ended, [{"error": "the real process aborts here"}])

    with pytest.raises(UntestedError, match="no workload was run on both"):
        found.show()
    assert (0, 1) == (found.total("agreeing"), found.total("raised"))


def test_the_real_runner_is_handed_as_many_drafts_as_n_grams_proposed() -> None:
    _, workload, _ = SCHEDULER.workload_of(load(shipped_file(DRAFTS)), "0.31.0")
    [[asked]] = workload["steps"]

    assert [0, 2, 0, 0] == asked["propose"][:4]
    assert [2] == asked["accept"]


def test_a_step_that_the_runner_prepares_as_simulated_is_derived_from_its_metadata() -> None:
    assert DERIVED == label_of(load(shipped_file(DRAFTS)), Profile("vllm", "0.31.0"), "A")


@pytest.mark.wheel
@pytest.mark.nightly
def test_groups_of_several_block_sizes_are_played_on_the_runner() -> None:
    if not SCHEDULER.core_of("0.30.0").is_ready() or not KERNELS.is_ready():
        pytest.skip("vllm 0.30.0 is not unpacked here")

    assert not differs_in(load(shipped_file("vllm-55600-state-of-another-entry")), "0.30.0")


@pytest.mark.wheel
@pytest.mark.parametrize("release", RELEASES)
def test_the_real_runner_reads_writes_and_copies_the_same(release: str) -> None:
    skip_without_runner(release)

    assert 0 == compare_steps(release, 0, range(3))


@pytest.mark.wheel
@pytest.mark.nightly
def test_the_real_runner_does_not_have_a_planted_rule() -> None:
    skip_without_runner("0.33.0")
    known = FAMILY.release("0.33.0").rules
    planted = replace(known, runner=replace(known.runner, plain_path_reads_first=True))

    assert 1 == compare_steps("0.33.0", 0, range(10, 11), planted)


@pytest.mark.nightly
@pytest.mark.wheel
def test_the_steps_of_a_scenario_are_played_on_the_real_runner(capsys: Capture) -> None:
    skip_without_runner("0.33.0")
    words = ["--runner", "--scenario", "vllm-one-token-prompt-padded", "--release", "0.33.0"]

    assert "on vllm 0.33.0: reads, writes and copies" in output(capsys, ["real", "vllm", *words])


@pytest.mark.wheel
@pytest.mark.nightly
def test_a_step_without_a_chunk_runs_after_the_steps_that_were_scheduled_before_it() -> None:
    """At once, it would take its requests out of the batch of a step that has chunks of them."""
    skip_without_runner("0.19.1")
    scenario = load(shipped_file("vllm-42125-adapter-under-its-old-name"))

    assert not differs_in(scenario, "0.19.1")
