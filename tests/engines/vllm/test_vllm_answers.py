import pytest

from tests.engines.conversations import wrong
from tests.engines.vllm.workloads import Workload

FIXES = {
    "0.19.1": "+39273+43569+resumed-prefills",
    "0.24.0": "+46281+39273+43569+44243-agreed+resumed-prefills",
    "0.28.0": "+39273+43569+resumed-prefills",
    "0.30.0": "+55601+39273+43569+resumed-prefills+prefills-last",
    "0.31.0": "+55601+39273+43569+resumed-prefills+prefills-last",
    "0.32.0": "+43569+prefills-last",
    "0.33.0": "+43569+prefills-last",
}
"""What each release needs so that no answer is wrong."""


@pytest.mark.thorough
@pytest.mark.parametrize(("release", "patches"), FIXES.items())
def test_with_every_fix_each_answer_is_the_cold_one(release: str, patches: str) -> None:
    found = {seed: wrong(Workload(seed, f"vllm@{release}{patches}")) for seed in range(30)}

    assert {} == {seed: replies for seed, replies in found.items() if replies}
