"""Known wrong answers are found by a search that is not told where, and made small."""

import pytest

from cachesim.engines.profile import Profile
from cachesim.engines.vllm.family import FAMILY
from cachesim.testing.search import search

FIXED = "+39273+56525"

DEFECTS = {
    "a state of this step is hit in this step (#29387)": (f"0.33.0{FIXED}+no-29387", "hybrid"),
    "attention's hit without a state (#43090)": (f"0.33.0{FIXED}+47491", "hybrid"),
    "recurrent groups are granted a block more (#43559)": (f"0.24.0{FIXED}", "hybrid"),
    "the same, put back": (f"0.33.0{FIXED}+no-46281", "hybrid"),
    "a state's entry in the wrong unit (#55600)": (f"0.30.0{FIXED}", "hybrid"),
    "published and never written (#56525)": ("0.33.0+39273", "hybrid"),
    "a window one block short": (f"0.33.0{FIXED}+window-one-short", "swa"),
}


@pytest.mark.parametrize(("profile", "model"), DEFECTS.values(), ids=DEFECTS)
def test_the_search_finds_it_in_at_most_four_requests(profile: str, model: str) -> None:
    found = search(Profile.parse(f"vllm@{profile}"), model, examples=150).counterexample

    assert found is not None
    assert "wrong answer" == found.finding.kind
    assert len([step for step in found.scenario.step if step.do == "complete"]) <= 4


def test_with_every_fix_the_search_finds_nothing() -> None:
    report = search(Profile.parse(f"vllm@0.33.0{FIXED}"), "hybrid", examples=40)

    assert report.counterexample is None
    assert report.cached_tokens > 0


def test_every_patch_changes_the_rules_of_each_release_it_fits() -> None:
    for patch in FAMILY.patches:
        for name in patch.fits:
            rules = FAMILY.release(name).rules
            assert patch.lay(rules) != rules, (patch.name, name)
