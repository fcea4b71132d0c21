"""A scenario's numbers of its report are compared with the run."""

import tomllib
from typing import Any

import pytest

from cachesim.errors import ScenarioError
from cachesim.play import run_scenario
from cachesim.scenario import scenario_of
from cachesim.scenario.checks import misfits
from cachesim.scenario.files import to_toml
from tests.scenario.stories import story

SEEN: dict[str, Any] = {"profile": "r1", "step": "B", "cached": 27, "of": 34, "error": "none"}


def shows(**changes: Any) -> dict[str, Any]:
    return {"symptom": "the second turn is slow", "before": SEEN | changes}


def mismatches(profile: str = "r1", **changes: Any) -> tuple[str, ...]:
    mapping = story(shows=shows(**changes), expect=[])
    return run_scenario(mapping, profile=profile, arithmetic="ring").mismatches


def test_a_run_that_shows_the_report_is_as_expected() -> None:
    assert () == mismatches()


def test_a_run_that_shows_something_else_is_not() -> None:
    assert mismatches(cached=26) == ("B: cached is 27, and [shows] says 26",)
    assert mismatches(of=35) == ("B: of is 34, and [shows] says 35",)
    assert mismatches(answer="diverged") == ("B: answer is same, and [shows] says diverged",)
    assert mismatches(parked=3) == ("B: parked is 0, and [shows] says 3",)
    assert mismatches(parked_mib=1) == ("B: parked_mib is 0, and [shows] says 1",)
    assert mismatches(checkpoint_mib=1) == ("B: checkpoint_mib is 0, and [shows] says 1",)
    assert mismatches(drafted=3) == ("B: drafted is none, and [shows] says 3",)
    assert mismatches(companion=3) == ("B: companion is none, and [shows] says 3",)
    assert mismatches(checkpoints=3) == ("B: checkpoints is 1, and [shows] says 3",)


def test_other_profiles_are_not_asked() -> None:
    assert () == mismatches("r2", cached=26)


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        ({"profile": "r3"}, "shows.before.profile: "),
        ({"step": "C"}, "shows.before.step: there is no step 'C'"),
        ({"profile": ""}, "shows.before.profile: missing; say which profile shows it"),
        ({"step": ""}, "shows.before.step: "),
        ({"cached": -1}, "shows.before.cached: "),
        ({"color": 1}, "shows.before.color: unknown key"),
    ],
)
def test_a_promise_that_cannot_be_held_is_refused(seen: dict[str, Any], problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem.replace(".", r"\.")):
        scenario_of(story(shows={"before": SEEN | seen}))


def test_a_profile_that_is_not_played_shows_nothing() -> None:
    mapping = story(shows={"before": SEEN | {"profile": "r2"}}, expect=[])
    mapping["engine"] = mapping["engine"] | {"profiles": ["r1"]}

    with pytest.raises(ScenarioError, match=r"'r2' is not among engine\.profiles"):
        scenario_of(mapping)


def test_a_promise_of_nothing_is_refused() -> None:
    with pytest.raises(ScenarioError, match="says nothing of the step"):
        scenario_of(story(shows={"after": {"profile": "r1", "step": "B"}}))


def test_a_written_file_keeps_its_promise() -> None:
    scenario = scenario_of(story(shows=shows(error="refused")))

    assert scenario == scenario_of(tomllib.loads(to_toml(scenario)))


def test_another_profile_is_bound_by_no_promise() -> None:
    assert misfits(scenario_of(story(shows=shows())), ["r2"]) == []
