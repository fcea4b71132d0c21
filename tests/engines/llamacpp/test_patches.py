"""Proposed patches, each by what it changes; the mends of wrong answers stand in their own file."""

import pytest

from cachesim.engines.family import Patch, Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.rules import ServerRules

MAY, JUNE, OCTOBER = "llama.cpp@b9093", "llama.cpp@b9538", "llama.cpp@b11549"


@pytest.mark.parametrize("patch", FAMILY.patches, ids=lambda patch: patch.name)
def test_every_patch_changes_the_rules_of_each_release_it_fits(patch: Patch[ServerRules]) -> None:
    for release in patch.fits:
        plain = FAMILY.release(release).rules
        assert FAMILY.rules(Profile("llama.cpp", release, (patch.name,))) != plain
        assert FAMILY.rules(Profile("llama.cpp", release)) == plain


def test_patches_are_laid_in_order() -> None:
    both = FAMILY.rules(Profile.parse(OCTOBER + "+24143+erase-equal"))
    assert not both.cache.load_consumes
    assert both.reuse.erasure == "equal"


def test_a_change_whose_pull_request_is_not_known_says_what_may_have_been_it() -> None:
    unknown = [each for each in FAMILY.patches if each.landed and not each.pull]

    assert {each.name: FAMILY.upstream_of(each) for each in unknown} == {
        "counts-checked": "no pull request confirmed",
        "empty-batches-turn": "no pull request confirmed (perhaps #24843)",
        "refusals-abort": "no pull request confirmed (perhaps #22838)",
        "mtp-f16": "no pull request confirmed",
        "outputs-reserved": "no pull request confirmed",
        "processed-reset": "no pull request confirmed",
        "rank-in-pieces": "no pull request confirmed",
        "sequence-header": "no pull request confirmed",
        "wider-positions": "no pull request confirmed",
        "unseen-before-b11549": "no pull request confirmed (perhaps #24843 or #26221)",
    }
    assert FAMILY.upstream_of(FAMILY.patch("erase-equal")) == ""
