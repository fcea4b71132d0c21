"""A saving is one of requests that the replay reproduces, against what the log says of them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

import cachesim.why.advise
from cachesim.model.presets import preset
from cachesim.scenario.shipped import shipped_files
from cachesim.why.advise.tuning import Tuned, between, confirmed, of_log, server_run, summary
from cachesim.why.advise.what_if import add_other_settings, answers, requested, swept
from cachesim.why.explain.whole import UserSettings, read_files, replays_of, why
from cachesim.why.explain.wrong import SAYS, WINDOW_FROM_RAM, evidence_of, wrong_with
from cachesim.why.infer.sizes import ASSUMED
from cachesim.why.replay.other import workload_of
from cachesim.why.replay.player import FAILED
from cachesim.why.replay.proof import Counts, counts_of, left_out, proof_of

LOG = Path(__file__).parents[2] / "docs" / "examples" / "hybrid.log"


def explained(text: bytes) -> dict[str, Any]:
    read = read_files([("server.log", BytesIO(text))])
    found = replays_of(read, UserSettings())
    report = why(read, found)
    add_other_settings(report, found)
    return report


def tuned_with(other: Mapping[int, int]) -> Tuned:
    """The log, as if it had other counts of prefilled tokens than the replay."""
    (replay,) = replays_of(read_files([("server.log", BytesIO(LOG.read_bytes()))]), UserSettings())
    counts = [
        replace(each, prefilled=other.get(each.number, each.prefilled))
        for each in counts_of(replay)
    ]
    run = server_run(workload_of(replay), replay.settings.values, counts)
    return Tuned((run,), ASSUMED)


def test_a_request_that_the_replay_does_not_reproduce_is_in_no_sum() -> None:
    tuned = tuned_with({1: 150})
    found = summary(swept(tuned), tuned)

    assert 6253 - 151 == sum(tuned.runs[0].proof.logged.values()) == found["own"]["processed"]
    assert "Left out: 1 request of 150 prefilled tokens" in found["left_out_says"]
    assert {"ubatch_size": 704} == found["recommended"]["changes"]  # it would not move


def test_no_advice_where_the_setting_moves_what_is_left_out() -> None:
    tuned = tuned_with({3: 3190})
    own, *others = swept(tuned)
    (other,) = (each for each in others if each.changes == {"ubatch_size": 1024})
    tempting = replace(other, processed=own.processed // 2)

    assert 40 + 1552 == other.open  # the replay's error, and what the setting changes
    assert own == confirmed([own, tempting], tuned)[0]
    assert "the requests left out may change by" in confirmed([own, tempting], tuned)[1]


def test_no_other_sum_of_prefilled_tokens_is_made_of_a_replay() -> None:
    for file in Path(cachesim.why.advise.__path__[0]).glob("*.py"):
        sums = re.findall(r"sum\((?:\w+\[?.*?)\.processed (?:or|for)[^\n]*", file.read_text())
        assert [] == sums, f"{file.name}: a saving passes through Proof.prefilled"


def test_a_further_completion_is_never_summed_as_it_takes_its_parents_state() -> None:
    both = [Counts(0, 0, 30, 30), Counts(1, 0, 30, 30, is_child=True)]
    proof = proof_of(both, dict.fromkeys((0, 1), replace(FAILED, cached=0, processed=30)))

    assert ({0: 30}, 1) == (proof.logged, proof.children)


def test_what_is_assumed_of_a_request_proves_nothing_of_it() -> None:
    same = {0: replace(FAILED, cached=0, processed=30)}
    proof = proof_of([Counts(0, 0, 30, 30, is_assumed=True)], same)

    assert ({}, 30) == (proof.logged, proof.open(same))


def test_a_prompt_that_shares_less_than_the_log_prints_proves_nothing() -> None:
    (replay,) = replays_of(read_files([("server.log", BytesIO(LOG.read_bytes()))]), UserSettings())
    replay.requests[1].shares_less = True

    assert [1] == [each.number for each in counts_of(replay) if each.is_assumed]


def test_a_request_that_is_replayed_in_another_slot_proves_nothing_either() -> None:
    played = {0: replace(FAILED, cached=0, processed=30, slot=1)}
    here, elsewhere = (proof_of([Counts(0, 0, 30, 30, slot)], played) for slot in (1, 0))

    assert ({0: 30}, 0) == (here.logged, here.open(played))
    assert ({}, 30) == (elsewhere.logged, elsewhere.open(played))


def test_sums_are_the_replays_own_where_nothing_is_proven_and_never_0() -> None:
    (replay,) = replays_of(read_files([("server.log", BytesIO(LOG.read_bytes()))]), UserSettings())
    counts = [replace(each, cached=None) for each in counts_of(replay)]
    run = server_run(workload_of(replay), replay.settings.values, counts)
    (row,) = answers([replay], requested(replay.settings, ()), [run])

    assert ({}, 6253) == (run.proof.logged, row["processed"])
    assert left_out([run.proof]).endswith("the sums are the replay's own.")


def test_values_are_tried_between_the_best_one_and_its_neighbours() -> None:
    read = read_files([("hybrid.log", BytesIO(LOG.read_bytes()))])
    tuned = of_log(replays_of(read, UserSettings()), None)
    found = swept(tuned)

    sizes = {each.changes["ubatch_size"]: each.processed for each in found if each.flags[:1] and
             "ubatch_size" in each.changes}  # fmt: skip
    assert min(sizes.values()) == sizes[704] < sizes[768] < sizes[1024]
    assert [] == between(found[:1], tuned.runs)  # nothing helps: nothing to refine


@pytest.mark.parametrize(
    ("profile", "model", "options", "scenario"),
    [
        ("llama.cpp@b11549", "swa", {"swa_full": True}, WINDOW_FROM_RAM),
        ("llama.cpp@b9538", "swa", {"swa_full": True, "cache_ram": 100}, WINDOW_FROM_RAM),
        ("llama.cpp@b11549", "swa", {"swa_full": True, "cache_ram": 0}, ""),
        ("llama.cpp@b9093", "swa", {"swa_full": True}, ""),
        ("llama.cpp@b11549", "dense", {"swa_full": True}, ""),
    ],
)
def test_flags_with_which_a_release_answers_wrongly_are_known(
    profile: str, model: str, options: dict[str, Any], scenario: str
) -> None:
    assert scenario == wrong_with(profile, preset(model), options)


def test_every_scenario_that_a_report_names_is_shipped_and_confirmed_on_a_release() -> None:
    shipped = {file.stem for file in shipped_files()}

    assert set() == {name for name in SAYS if name} - shipped
    assert "confirmed on the real engine" == evidence_of(WINDOW_FROM_RAM, "llama.cpp@b11549")
    assert "source only, not run" == evidence_of(WINDOW_FROM_RAM, "llama.cpp@b10566")


BUSY = Path(__file__).with_name("busy-slot.log")


@pytest.mark.thorough
def test_an_answer_over_whose_slot_a_pinned_request_loaded_another_prompt_is_named() -> None:
    found = explained(BUSY.read_bytes())

    (wrong,) = found["wrong"]
    assert [2] == wrong["requests"]
    assert "llama.cpp-pinned-busy-slot" == wrong["scenario"]
    assert "confirmed on the real engine" == wrong["evidence"]
    assert [] == explained(LOG.read_bytes())["wrong"]
