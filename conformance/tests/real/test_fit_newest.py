"""`--newest` where a version differs: the rule fields that explain it, found from what it did.

An older release is played as if it were the newest version, by the simulator under its rules.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pytest

from cachesim.engines.mlx_lm.family import FAMILY as MLX_LM
from cachesim.prove.playing import Difference
from conformance.real.fit import Found, Played, explain, rule_fields, value_of
from conformance.real.mlx_lm.classes import draw, mismatch, played_of
from conformance.real.mlx_lm.classes import played as classes_played
from conformance.real.schedules import RealScheduler
from conformance.real.sglang.scheduler import SCHEDULER as SGLANG
from conformance.real.vllm.scheduler import SCHEDULER as VLLM
from tests.fixtures import Capture


def scheduled(scheduler: RealScheduler[Any], release: str, numbers: range) -> list[Played[Any]]:
    """Results of a release's scheduler, by the simulator, drawn for the newest release."""
    newest, rules = scheduler.family.releases[-1].rules, scheduler.family.release(release).rules
    found = []
    for number in numbers:
        workload = scheduler.draw(0, number, newest)
        real = scheduler.play(workload, rules)

        def check(tried: Any, workload: Any = workload, real: Any = real) -> Difference | None:
            pairs = enumerate(zip_longest(real, scheduler.play(workload, tried)))
            return next((Difference(step=i, simulated=b) for i, (a, b) in pairs if a != b), None)

        kind = workload["id"].rpartition("-")[0]
        found.append(Played(kind=kind, requests=len(real), size=len(str(workload)), check=check))
    return found


def rules_of(family: Any) -> dict[str, Any]:
    return {release.name: release.rules for release in family.releases}


def differing(one: Any, other: Any) -> set[tuple[str, Any]]:
    """The fields in which two releases differ, and their values in the other one."""
    return {
        (f"{part}.{field}", repr(value_of(other, part, field)))
        for part, field, _ in rule_fields(type(one))
        if value_of(one, part, field) != value_of(other, part, field)
    }


def changed_by(found: Sequence[Found]) -> set[tuple[str, str]]:
    return {(change.name, repr(change.value)) for step in found for change in step.changes}


@pytest.mark.nightly
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("scheduler", "release", "numbers"),
    [
        (VLLM, "0.32.0", range(7, 60, 13)),
        pytest.param(SGLANG, "0.5.9", range(2, 20, 12), marks=pytest.mark.nightly),
    ],
    ids=["vllm", "sglang"],
)
def test_the_fields_that_an_older_release_has_otherwise_are_found(
    scheduler: RealScheduler[Any], release: str, numbers: range, capsys: Capture
) -> None:
    known = rules_of(scheduler.family)
    newest = scheduler.family.releases[-1].name
    played = scheduled(scheduler, release, numbers)

    found = explain(release, newest, known, played)

    assert found
    assert changed_by(found) <= differing(known[newest], known[release])
    said = capsys.readouterr().out
    assert found[0].changes[0].name in said
    assert f"{len(played)} of {len(played)} workloads agree" in said


@pytest.mark.thorough
def test_mlx_lm_has_its_cache_classes_explained() -> None:
    known = rules_of(MLX_LM)
    played = []
    for number in range(24):
        sequence = draw("0.32.2", 0, number)
        line = sequence | {"results": list(classes_played(sequence, known["0.31.3"]))}
        played.append(played_of(line, len(line["results"]), mismatch))

    found = explain("0.31.3", "0.32.2", known, played)

    assert ("caches.state_form", "'sliced'") in changed_by(found)


def test_what_no_rule_explains_is_printed_so(capsys: Capture) -> None:
    new = Difference(step=0, simulated=1)
    played = [Played(kind="new", requests=2, size=1, check=lambda _: new)]

    assert () == explain("9.9.9", "0.5.23", rules_of(SGLANG.family), played)
    assert "explains it: 0 of 1 workload agree" in capsys.readouterr().out


def test_rules_that_contradict_each_other_end_no_search() -> None:
    def check(_: object) -> Difference | None:
        raise ValueError

    played = [Played(kind="new", requests=2, size=1, check=check)]

    assert () == explain("9.9.9", "0.5.23", rules_of(SGLANG.family), played)
