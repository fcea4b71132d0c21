"""Jobs of a command: scenarios on profiles, all validated before the first run."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.text import Text

from cachesim.engines.family import Profile
from cachesim.errors import InputError, ScenarioError
from cachesim.model.spec import LARGEST
from cachesim.report.consoles import notes, show
from cachesim.scenario import Scenario, full_profile
from cachesim.scenario.checks import chosen_profiles, misfits
from cachesim.scenario.shipped import load_all

WORD: Final = re.compile(r"""[^\s"'\[\]{}#=]+""")
"""A string that needs no quotes: a name, a path, names separated by commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A scenario on one profile."""

    source: str
    scenario: Scenario
    profile: Profile
    changed: bool = False  # by a seed or flags of the command: no file holds it so


def jobs_of(
    names: Sequence[str],
    profiles: Sequence[str],
    seed: int | None,
    settings: Mapping[str, Any] | None = None,
) -> list[Job]:
    """The requested jobs in order; all are validated before the first run.

    One scenario is run on every named profile. Several are each run on the profiles of
    their engine that have their options; skipped profiles are reported.
    """
    if not names:
        msg = "name a scenario to run: a file, a folder, `-`, or one that `cachesim list` names"
        raise InputError(msg)
    loaded = [(source, changed(each, seed, settings or {})) for source, each in load_all(names)]
    if len(loaded) == 1 or not profiles:
        jobs = _requested(loaded, profiles, changed=bool(profiles or settings))
    else:
        jobs = _fitting(loaded, profiles)
    if seed is None and not settings:
        return jobs
    return [replace(each, changed=True) for each in jobs]


def only_scenario(name: str, use: str) -> Scenario:
    """The scenario of that name; an error where a folder holds several."""
    loaded = load_all([name])
    if len(loaded) > 1:
        msg = f"{name}: {use} takes one scenario, and these are {len(loaded)}"
        raise InputError(msg)
    return loaded[0][1]


def changed(scenario: Scenario, seed: int | None, settings: Mapping[str, Any]) -> Scenario:
    """The scenario with another seed and other flags; expectations hold for the original flags
    only.
    """
    if seed is not None:
        if not 0 <= seed <= LARGEST["seed"]:
            msg = f"--seed is {seed}; write a whole number from 0 to {LARGEST['seed']}"
            raise InputError(msg)
        scenario = replace(scenario, model=replace(scenario.model, seed=seed))
    if settings:
        options = {**scenario.engine.options, **settings}
        engine = replace(scenario.engine, options=options)
        scenario = replace(scenario.without_promises(), engine=engine)
    return scenario


def _requested(
    loaded: Sequence[tuple[str, Scenario]], profiles: Sequence[str], *, changed: bool
) -> list[Job]:
    jobs, problems = [], []
    for source, scenario in loaded:
        wanted = profiles or scenario.engine.profiles
        if not wanted:
            problems.append(f"{source}: lists no profile; name one with --profile")
        if changed:
            problems += [f"{source}: {each}" for each in misfits(scenario, wanted)]
        if not problems:
            played = (full_profile(scenario.engine.name, each) for each in wanted)
            jobs += [Job(source=source, scenario=scenario, profile=each) for each in played]
    if problems:
        raise ScenarioError(*problems)
    return jobs


def _fitting(loaded: Sequence[tuple[str, Scenario]], profiles: Sequence[str]) -> list[Job]:
    """Scenarios on the profiles of their engine that have their options."""
    jobs: list[Job] = []
    foreign, reasons = 0, []
    for source, scenario in loaded:
        own = chosen_profiles(scenario, profiles)
        foreign += not own
        for profile in own:
            wrong = misfits(scenario, [str(profile)])
            if wrong:
                reasons.append(f"{source}: left out: {wrong[0]}")
            else:
                jobs.append(Job(source=source, scenario=scenario, profile=profile))
    if not jobs:
        engines = ", ".join(sorted({scenario.engine.name for _, scenario in loaded}))
        wanted = ", ".join(profiles)
        msg = f"none of the {len(loaded)} scenarios ({engines}) can be run on {wanted}"
        raise ScenarioError(msg, *reasons[:5])
    lines = [*reasons[:5]]
    if len(reasons) > len(lines):
        lines.append(f"{len(reasons) - len(lines)} more left out, as flags or patches do not fit")
    if foreign:
        lines.append(f"{foreign} of {len(loaded)} scenarios are for other engines: left out")
    show(notes(), *map(Text, lines))
    return jobs


def setting(text: str) -> tuple[str, Any]:
    """A flag and its value in the syntax of a scenario file."""
    name, equals, value = text.partition("=")
    flag = name.strip().lstrip("-").replace("-", "_")
    if flag and equals and not value.strip():
        return flag, ""
    try:
        return flag, tomllib.loads(f"v = {value if flag else ''}")["v"]
    except tomllib.TOMLDecodeError:
        if flag and WORD.fullmatch(value.strip()):  # a shell takes the quotes of a string away
            return flag, value.strip()
        msg = f"--set {text} cannot be read; write a flag and its value, as in cache_reuse=0"
        raise InputError(msg) from None
