"""Known wrong answers are found by a search that is not told where, and made small.

`python -m tests.engines.vllm` prints the table of all of them.
"""

from typing import Final

import pytest

from cachesim.engines.vllm.family import FAMILY
from tests.engines.vllm.defects import DEFECTS, MOST_REQUESTS, Defect

SLOW: Final = {"no-44409", "47491"}
"""Pinned by a scenario, or a matter of a longer search: the command plays them."""

QUICK = [each for each in DEFECTS if each.profile.rpartition("+")[2] not in SLOW]


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", QUICK, ids=lambda each: each.profile)
def test_the_search_finds_it_in_at_most_four_requests(defect: Defect) -> None:
    found = defect.hunt(examples=250).counterexample

    assert found is not None
    assert "wrong answer" == found.finding.kind
    assert len([step for step in found.scenario.step if step.do == "complete"]) <= MOST_REQUESTS


@pytest.mark.thorough
def test_with_every_fix_the_search_finds_nothing() -> None:
    report = DEFECTS[0].hunt(DEFECTS[0].cured, examples=40)

    assert report.counterexample is None
    assert report.cached_tokens > 0


def test_every_patch_that_puts_a_defect_back_is_searched_for() -> None:
    back = {each.name for each in FAMILY.patches if each.name.startswith("no-")}
    searched = {name for each in DEFECTS for name in each.profile.split("+")[1:]}

    assert back <= searched


def test_every_patch_changes_the_rules_of_each_release_it_fits() -> None:
    for patch in FAMILY.patches:
        for name in patch.fits:
            rules = FAMILY.release(name).rules
            assert patch.lay(rules) != rules, (patch.name, name)
