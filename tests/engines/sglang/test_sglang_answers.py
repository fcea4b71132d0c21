"""Whatever the tree did, a reply is the cold one; defects that were put back are found."""

import pytest

from cachesim.engines.sglang.family import FAMILY
from tests.engines.conversations import wrong
from tests.engines.sglang.workloads import Workload

EXAMPLES = 25


@pytest.mark.parametrize("release", FAMILY.names())
def test_answers_from_cache_are_the_cold_ones(release: str) -> None:
    found = {seed: len(wrong(Workload(seed, f"sglang@{release}"))) for seed in range(EXAMPLES)}
    assert {} == {seed: count for seed, count in found.items() if count}


FOUND = {
    "no-37836": ("hybrid", "recurrent", "hybrid-delta"),
    "no-29368": ("hybrid", "recurrent"),
    "24221": ("hybrid", "recurrent"),
    "24380": ("hybrid", "recurrent"),
    "31486": ("swa",),
    "shared-state": ("hybrid", "recurrent"),
}


@pytest.mark.parametrize("patch", FOUND)
@pytest.mark.parametrize("release", FAMILY.names())
def test_a_defect_that_moves_states_wrongly_gives_a_wrong_answer(release: str, patch: str) -> None:
    seeds = range(80)
    profile = f"sglang@{release}+{patch}"
    assert any(wrong(Workload(seed, profile, presets=FOUND[patch])) for seed in seeds)
