"""The states that rows of a batch are computed from, by the simulated runner's rules."""

from dataclasses import replace
from typing import Any

import pytest

from cachesim.cli.main import main
from cachesim.engines.vllm.family import FAMILY
from cachesim.real.vllm.rows import Compared, compare_rows, draw_batch, read_by
from cachesim.real.vllm.scheduler import PACKAGES, SCHEDULER

BATCH: dict[str, Any] = {
    "id": "rows-0",
    "block": 16,
    "rows": [
        {"drafts": 0, "accepted": 3, "end": 40, "table": list(range(1, 12))},
        {"drafts": 2, "accepted": 2, "end": 42, "table": list(range(101, 112))},
    ],
}


@pytest.mark.parametrize(
    ("release", "kind", "blocks"),
    [
        ("0.31.0", "delta", [3, 104]),
        ("0.31.0", "ssm", [5, 104]),
        ("0.32.0", "delta", [5, 104]),
        ("0.33.0", "delta", [5, 104]),
    ],
)
def test_since_032_a_row_without_drafts_reads_what_was_accepted(
    release: str, kind: str, blocks: list[int]
) -> None:
    assert blocks == read_by(FAMILY.release(release).rules.runner, kind, BATCH)


def test_a_rule_that_the_runner_does_not_have_is_a_difference() -> None:
    rules = FAMILY.release("0.33.0").rules.runner
    real = {"v2": True} | {kind: read_by(rules, kind, BATCH) for kind in ("delta", "ssm")}
    right, planted = Compared("0.33.0"), Compared("0.33.0")

    right.count(BATCH, real, rules)
    planted.count(BATCH, real, replace(rules, plain_path_reads_first=True))

    assert (0, 1) == (right.show(), planted.show())
    assert ("rows-0", "delta", [5, 104], [3, 104]) == planted.difference


def test_a_batch_of_the_other_runner_is_not_compared() -> None:
    found = Compared("0.31.0")
    found.count(BATCH, {"v2": False}, FAMILY.release("0.31.0").rules.runner)

    assert (0, 1, 1) == (found.batches, found.elsewhere, found.show())


def test_a_seed_and_a_number_always_give_the_same_batch() -> None:
    assert draw_batch(3, 7) == draw_batch(3, 7)
    assert draw_batch(3, 7) != draw_batch(4, 7)


@pytest.mark.wheel
@pytest.mark.parametrize("release", ["0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"])
def test_the_release_reads_the_same_states(release: str) -> None:
    """Needs the wheel and what it imports; see `make real`."""
    if not SCHEDULER.core_of(release).is_ready() or not PACKAGES.is_ready():
        pytest.skip(f"vllm {release} is not unpacked here")

    assert 0 == compare_rows(release, 0, range(40))


@pytest.mark.parametrize(
    ("scenario", "profile", "label"),
    [
        ("vllm-39273-plain-step-after-drafts", "0.31.0", "source only, not run"),
        ("vllm-57580-withdrawn-before-it-ran", "0.33.0", "source only, not run"),
    ],
)
def test_a_wrong_answer_is_printed_with_its_evidence(
    scenario: str, profile: str, label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", scenario, "-p", profile, "--arithmetic", "ring"])

    assert f"evidence {label}" in " ".join(capsys.readouterr().out.split())
