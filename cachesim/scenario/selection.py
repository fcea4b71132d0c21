"""Which profiles a scenario is played on when others are asked for than those it lists."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cachesim.engines import FAMILIES
from cachesim.engines.profile import Profile
from cachesim.scenario.acceptance import full_profile
from cachesim.scenario.checks import capped, check
from cachesim.scenario.format import Scenario


def _profile_for(scenario: Scenario, text: str) -> Profile | None:
    """The profile that a text names on this scenario; None where it is one of another engine."""
    engine = scenario.engine.name
    if "@" in text:
        profile = Profile.parse(text)
        return profile if profile.engine == engine else None
    family = FAMILIES.get(engine)
    release = text.partition("+")[0]
    if family is None or family.current_name(release) not in family.names():
        return None
    return full_profile(engine, text)


def chosen_profiles(scenario: Scenario, wanted: Sequence[str]) -> list[Profile]:
    """Those of the wanted profiles that are of the scenario's engine."""
    found = (_profile_for(scenario, text) for text in wanted)
    return [profile for profile in found if profile is not None]


def misfits(scenario: Scenario, profiles: Sequence[str]) -> list[str]:
    """What is wrong with a scenario on these profiles, such as options that they lack."""
    return capped([str(each) for each in _problems(scenario, tuple(profiles))])


def _problems(scenario: Scenario, profiles: tuple[str, ...]) -> Iterator[object]:
    engine = replace(scenario.engine, profiles=profiles)
    for each in check(replace(scenario.without_promises(), engine=engine)):
        if each.path[:2] == ("engine", "profiles"):
            yield each.text
        else:
            yield each
