"""A search by several workers is the search by one."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from cachesim.engines import Profile
from cachesim.testing.search import Report, search
from cachesim.testing.survey import CHUNK, search_by
from cachesim.testing.workloads import Shape

SMALL = Shape(max_steps=3, longest=30)


def both(profile: str, model: str, examples: int) -> tuple[Report, Report]:
    parsed = Profile.parse(profile)
    alone = search(parsed, model, examples=examples, shape=SMALL)
    with ThreadPoolExecutor(2) as pool:
        together = search_by(pool, 2, parsed, model, examples=examples, shape=SMALL)
    return alone, together


@pytest.mark.parametrize("examples", [1, CHUNK, 2 * CHUNK + 3])
def test_it_plays_the_same_workloads(examples: int) -> None:
    alone, together = both("llama.cpp@b9538", "dense", examples)

    assert examples == together.workloads
    assert alone == together


@pytest.mark.thorough
def test_it_finds_the_same_first_thing() -> None:
    alone, together = both("ik_llama.cpp@d2da6da05+1689", "hybrid-delta", 6 * CHUNK)

    assert alone.counterexample is not None
    assert alone == together


def test_it_ends_when_it_is_told_to() -> None:
    seen: list[int] = []

    def going(report: Report) -> bool:
        seen.append(report.workloads)
        return report.workloads < CHUNK

    with ThreadPoolExecutor(2) as pool:
        report = search_by(
            pool, 2, Profile.parse("llama.cpp@b9538"), "dense",
            examples=10**9, shape=SMALL, going=going,
        )  # fmt: skip

    assert [0, CHUNK] == seen
    assert CHUNK == report.workloads
