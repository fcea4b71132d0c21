"""The comparison of batches, without the release: what is drawn, and that a difference is seen."""

from collections import Counter

import pytest

from cachesim.engines.transformers import scheduler
from cachesim.scenario.shipped import load_all
from conformance.real.transformers.caches import Played, draw, json_of, overrides
from conformance.real.transformers.environments import NEWEST, environment_for
from conformance.real.transformers.scenarios import FURTHER, play_scenario, watched


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


SCENARIOS = ("transformers-cancel-after-set-back", "transformers-prompt-beyond-the-cache")


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_calls_of_a_scenario_are_a_workload_with_the_same_batches(name: str) -> None:
    [(_, scenario)] = load_all([name])
    _, workload, batches = watched(scenario, NEWEST)

    assert batches == json_of(list(Played(workload, Counter()).results()))


def test_a_server_that_answers_nobody_runs_batches_of_nothing_for_ever() -> None:
    [(_, scenario)] = load_all([SCENARIOS[0]])
    records, _, batches = watched(scenario, NEWEST)

    assert [True] * FURTHER == [batch.get("idle") for batch in batches[-FURTHER:]]
    assert ["cancelled", *["endless"] * 3] == [record.error for record in records]


@pytest.mark.wheel
@pytest.mark.skipif(not environment_for(NEWEST).is_ready(), reason="torch is not installed")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_end_of_a_server_is_confirmed_on_the_real_classes(name: str) -> None:
    [(_, scenario)] = load_all([name])
    played = play_scenario(scenario, NEWEST)

    assert [True] * len(played) == [each.agrees for each in played]
    assert [] == [each.name for each in played if each.confirmed is False]


@pytest.mark.wheel
@pytest.mark.skipif(not environment_for(NEWEST).is_ready(), reason="torch is not installed")
def test_every_setting_that_differs_from_a_servers_start_has_a_reason() -> None:
    found = overrides(environment_for(NEWEST).python, NEWEST, 0)

    assert [] == [each.field for each in found if not each.why]
