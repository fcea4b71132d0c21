"""The comparison of batches, without the release: what is drawn, and that a difference is seen."""

from collections import Counter

import pytest

from cachesim.engines.transformers import scheduler
from cachesim.lab.real.transformers.batches import Played, draw, json_of


def test_the_same_seed_draws_the_same_workload() -> None:
    assert draw(1, 2) == draw(1, 2)
    assert draw(1, 2) != draw(1, 3)


def test_another_margin_leads_to_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the comparison would see a port with another one."""

    def played() -> list[object]:
        found = [
            json_of(list(Played(draw(1, number), Counter()).results())) for number in range(30)
        ]
        return list(found)

    usual = played()
    assert usual == played()
    monkeypatch.setitem(scheduler.MARGINS, "fifo", 0.9)
    assert usual != played()


def test_workloads_reach_matches_evictions_and_requests_set_back() -> None:
    seen = Counter[str]()
    for number in range(30):
        list(Played(draw(1, number), seen).results())
    wanted = {"matches", "blocks-evicted", "block-merged", "requests set back", "ended by an error"}
    assert set() == {each for each in wanted if not seen[each]}
