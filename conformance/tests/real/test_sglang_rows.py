"""The states that SGLang's model runner reads and writes, beside the simulated one's."""

from dataclasses import replace
from typing import Any

import pytest

from cachesim.engines.sglang.family import FAMILY
from cachesim.engines.sglang.rules import Rules
from cachesim.prove.playing import Difference
from cachesim.prove.vllm.files import PACKAGES
from cachesim.scenario import load
from cachesim.scenario.shipped import shipped_file
from conformance.real.agreement import Agreement
from conformance.real.sglang.rows import RUNNER, compare_rows, count, is_compared, rows_of
from conformance.real.sglang.scheduler import configuration_of
from conformance.real.sglang.workloads import draw

RELEASE = "0.5.23"
RELEASES = [
    *(pytest.param(each, marks=pytest.mark.nightly) for each in FAMILY.real()[:-1]),
    FAMILY.real()[-1],
]
RULES: Rules = FAMILY.release(RELEASE).rules

DEFECTS = {
    "offset_of_first": 88,
    "load_needs_tracking": 10,
    "snapshot_after_next_chunk": 38,
    "shares_states": 6,
}
"""A defect of a model runner, and the number of a workload that shows it."""


def planted(defect: str) -> Rules:
    return replace(RULES, runner=replace(RULES.runner, **{defect: True}))


def drawn(number: int) -> dict[str, Any]:
    return draw(0, number, RULES)


@pytest.mark.parametrize(("defect", "number"), DEFECTS.items())
def test_a_defect_of_the_model_runner_changes_what_is_read_or_tracked(
    defect: str, number: int
) -> None:
    workload = drawn(number)

    assert rows_of(workload, RULES) != rows_of(workload, planted(defect))


@pytest.mark.parametrize("number", DEFECTS.values())
def test_without_a_defect_every_row_reads_the_state_of_its_prefix(number: int) -> None:
    rows = rows_of(drawn(number), RULES)

    assert rows
    assert all(length == start and right for _, start, _, length, right, _ in rows)
    assert all(tracked[1] for *_, tracked in rows if tracked is not None)


@pytest.mark.parametrize(
    ("name", "release", "rule"),
    [
        ("mixed-chunk-off-the-page", "0.5.23", ""),
        ("mixed-chunk-untracked-state", "0.5.9", "mixing_drops_tracks"),
        ("state-of-an-earlier-match", "0.5.9", "first_chunk_reads_slot"),
    ],
)
def test_a_scenario_of_a_wrong_state_reads_one_only_with_the_rule_that_explains_it(
    name: str, release: str, rule: str
) -> None:
    scenario, rules = load(shipped_file(f"sglang-{name}")), FAMILY.release(release).rules
    _, workload, _ = RUNNER.workload_of(scenario, release)
    wrong = [row for row in rows_of(workload, rules) if not row[4]]
    without = replace(rules, runner=replace(rules.runner, **{rule: False} if rule else {}))

    assert wrong
    assert bool(rule) is all(row[4] for row in rows_of(workload, without))


def test_the_first_row_that_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = Agreement(title=RELEASE)
    count(found, "one", [[0, 0, 64, 0, True, None]], [[0, 0, 64, 0, True, [64, True, 64]]])

    assert 1 == found.show()
    printed = capsys.readouterr().out
    assert "workload one, step 0:\n  [5]: real null, simulated [64, true, 64]" in printed


def test_a_row_that_only_one_has_is_a_difference() -> None:
    row = [0, 0, 64, 0, True, None]
    found = Agreement(title=RELEASE)
    count(found, "one", [row], [row, row])

    assert 0 == found.total("agreeing")
    assert ("one", Difference(step=1, real=None, simulated=row)) == found.difference


def test_models_without_states_are_not_compared() -> None:
    workloads = [drawn(number) for number in range(8)]
    kinds = {workload["config"]["kind"]: is_compared(workload) for workload in workloads}

    assert {"full": False, "window": False, "mamba": True} == kinds


def test_rows_of_a_drafter_are_not_compared() -> None:
    assert not is_compared({"config": {"kind": "mamba", "drafts": {"steps": 3}}})
    assert is_compared({"config": {"kind": "mamba"}})


@pytest.mark.wheel
@pytest.mark.parametrize("release", RELEASES)
def test_the_real_model_runner_reads_and_writes_as_the_simulated_one(release: str) -> None:
    core = RUNNER.core_of(release)
    if not core.is_ready() or not configuration_of(core).is_ready() or not PACKAGES.is_ready():
        pytest.skip(f"sglang {release} is not unpacked here")
    rules = FAMILY.release(release).rules
    wrong = replace(rules, runner=replace(rules.runner, load_needs_tracking=True))

    assert 0 == compare_rows(release, 0, range(6, 11))
    assert 1 == compare_rows(release, 0, range(10, 11), wrong)
