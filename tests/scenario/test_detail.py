"""A server's content after each event, with the owners of its tokens."""

import json
from typing import Any

import pytest

from cachesim.engines.events import Event, EventLog
from cachesim.play import output_schema, run
from cachesim.play.states import NOBODY, Origin, pieces
from cachesim.report.html import page
from cachesim.scenario import full_profile, load
from cachesim.scenario.shipped import shipped_file, shipped_files
from tests.scenario.json_schema import errors


def played(name: str, profile: str, *, detail: bool = True, **options: Any) -> dict[str, Any]:
    scenario = load(shipped_file(name))
    whole = full_profile(scenario.engine.name, profile)
    return run(scenario, whole, detail=detail, **options).to_json()


@pytest.fixture(scope="module")
def three() -> dict[str, Any]:
    return played("llama.cpp-three-requests", "b11549")


def plain(entry: dict[str, Any]) -> dict[str, Any]:
    steps = [{k: v for k, v in step.items() if k != "detail"} for step in entry["steps"]]
    return {k: v for k, v in entry.items() if k != "detail"} | {"steps": steps}


def after(entry: dict[str, Any], step: int, event: str) -> dict[str, Any]:
    told = entry["steps"][step]
    index = next(i for i, each in enumerate(told["events"]) if each["event"] == event)
    state: dict[str, Any] = entry["detail"]["states"][told["detail"]["at"][index]]
    return state


def test_asking_for_detail_adds_a_key_and_changes_nothing(three: dict[str, Any]) -> None:
    assert played("llama.cpp-three-requests", "b11549", detail=False) == plain(three)


def test_a_restored_checkpoint_shows_whose_token_the_state_has_folded_in(
    three: dict[str, Any],
) -> None:
    before, now = after(three, 2, "depth-tested"), after(three, 2, "checkpoint-restored")
    (was,), (row,) = before["memory"]["rows"], now["memory"]["rows"]

    assert [{"step": 1, "at": 0, "count": 43}] == was["tokens"]
    assert (0, [{"step": 0, "at": 0, "count": 1}]) == (row["position"], row["tokens"])


def test_a_wrong_state_is_handed_on_to_the_checkpoints_made_from_it(three: dict[str, Any]) -> None:
    (slot,) = three["detail"]["states"][-1]["slots"]

    assert [{"step": 0, "at": 0, "count": 1}, {"step": 2, "at": 1, "count": 35}] == slot[
        "checkpoints"
    ][1]["row"]


def test_a_history_computed_again_is_that_of_the_step_that_did_so_last() -> None:
    entry = played("llama.cpp-three-requests", "b11549+erase-equal")
    (row,) = after(entry, 2, "slot-released")["memory"]["rows"]
    (slot,) = after(entry, 1, "slot-released")["slots"]

    assert [{"step": 2, "at": 0, "count": 47}] == row["tokens"]
    assert [[{"step": 1, "at": 0, "count": 36}]] == [
        checkpoint["row"] for checkpoint in slot["checkpoints"]
    ]


def test_cells_name_the_step_that_computed_them(three: dict[str, Any]) -> None:
    (part,) = three["detail"]["states"][-1]["memory"]["cells"]
    first, second = part["runs"]

    assert (0, 1, {"step": 1, "at": 0, "count": 1}) == (
        first["position"], first["count"], first["holds"]
    )  # fmt: skip
    assert (1, 46, {"step": 2, "at": 1, "count": 46}) == (
        second["position"], second["count"], second["holds"]
    )  # fmt: skip


def test_logits_are_told_for_both_with_the_tokens_that_win(three: dict[str, Any]) -> None:
    wrong = three["steps"][2]["explanation"]["wrong"]
    row = three["steps"][2]["detail"]["logits"][0]
    largest = {
        kind: max(row["top"], key=lambda each: each[kind])["token"] for kind in ("cached", "cold")
    }

    assert (wrong["token"], wrong["cold"]) == (row["cached"], row["cold"])
    assert {"cached": row["cached"], "cold": row["cold"]} == largest
    assert wrong["difference"] == row["difference"]


def test_steps_go_on_from_the_state_that_the_one_before_left(three: dict[str, Any]) -> None:
    details = [step["detail"] for step in three["steps"]]

    assert [detail["at"][-1] for detail in details[:-1]] == [
        detail["before"] for detail in details[1:]
    ]
    assert all(
        len(step["events"]) == len(step["detail"]["at"]) for step in three["steps"]
    )  # fmt: skip


def test_a_consumed_entry_is_in_the_state_before_and_not_in_the_one_after() -> None:
    entry = played("llama.cpp-24143-load-consumes-entry", "b9538")
    before, now = after(entry, 2, "cache-entry-compared"), after(entry, 2, "cache-entry-loaded")

    assert 2 == len(before["prompt_cache"])
    assert [[{"step": 1, "at": 0, "count": 200}]] == [
        each["tokens"] for each in now["prompt_cache"]
    ]


def test_a_window_tells_its_cells_apart_from_those_of_full_attention() -> None:
    entry = played("llama.cpp-three-requests-window", "b9538")
    base, window = after(entry, 2, "slot-released")["memory"]["cells"]

    assert ("attention", None, 1) == (
        base["part"],
        base["window"],
        base["runs"][0]["holds"]["step"],
    )
    assert ("window", 0) == (window["part"], window["runs"][0]["holds"]["step"])
    assert window["window"] > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("ik_llama.cpp-1888-checkpoint-one-token-too-far", "d2da6da05"),
        ("mlx-lm-1006-seeded-requests-keep-no-state", "0.31.3"),
        ("llama.cpp-context-limit", "b9538"),
    ],
)
def test_every_engine_tells_what_the_schema_describes(name: str, profile: str) -> None:
    entry = played(name, profile)
    output = json.loads(json.dumps({"format": 1, "runs": [entry]}, allow_nan=False))

    assert [] == errors(output, output_schema())
    assert any(state["slots"] or state["prompt_cache"] for state in entry["detail"]["states"])


def test_without_verification_there_are_no_logits_and_in_ring_arithmetic_no_order_of_them() -> None:
    unverified = played("llama.cpp-three-requests-dense", "b9538", verify=False)
    ring = played("llama.cpp-three-requests-dense", "b9538", arithmetic="ring")

    assert [] == unverified["steps"][0]["detail"]["logits"]
    assert [] == ring["steps"][0]["detail"]["logits"][0]["top"]


def test_pieces_join_what_follows_and_keep_apart_what_does_not() -> None:
    origins = [Origin(0, 0, 7), Origin(0, 1, 8), Origin(NOBODY, 0, 9), Origin(1, 2, 5)]

    assert [
        {"step": 0, "at": 0, "count": 2},
        {"tokens": [9]},
        {"step": 1, "at": 2, "count": 1},
    ] == pieces(origins)


def test_a_log_of_events_tells_of_each_one_however_it_comes() -> None:
    heard: list[int] = []
    log = EventLog()
    log.listener = lambda: heard.append(len(log))

    log.append(Event())
    log.extend([Event(), Event()])

    assert [1, 2, 3] == heard


THREE = "llama.cpp-three-requests"


def test_who_watches_a_long_run_sees_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page holds what fits; the run itself and its counts are whole."""
    scenario = load(next(path for path in shipped_files() if path.stem == THREE))
    profile = full_profile("llama.cpp", "b9538")
    whole = run(scenario, profile, arithmetic="ring", detail=True)
    monkeypatch.setattr("cachesim.play.runner.MOST_SEEN", 60)

    part = run(scenario, profile, arithmetic="ring", detail=True)

    seen = [[*step.detail.at] for step in part.steps if step.detail]
    assert -1 in seen[-1]
    assert -1 not in seen[0][:1]
    assert max(number for each in seen for number in each) < len(part.detail.states)
    assert len(part.detail.states) < len(whole.detail.states)
    assert [step.cached for step in whole.steps] == [step.cached for step in part.steps]
    page([part])


def test_an_answer_under_adapters_is_held_against_a_cold_run_under_the_same() -> None:
    steps = played("llama.cpp-26207-adapter-unknown-to-prompt-cache", "b11549", arithmetic="ring")[
        "steps"
    ]

    assert {"same", "diverged"} == {step["answer"] for step in steps}
    for step in steps:
        off = any(row["difference"] for row in step["detail"]["logits"])
        assert off == (step["answer"] == "diverged")
