"""What a scenario promises of its profiles and steps, `[[expect]]` and `[shows]`, can be held."""

from collections.abc import Iterator

from cachesim.scenario.acceptance import full_profile, wrong_profile
from cachesim.scenario.format import Expect, Scenario, Seen
from cachesim.scenario.readers import Place, nearest
from cachesim.scenario.reading import Problem


def promises(scenario: Scenario) -> Iterator[Problem]:
    """Every promise that names a profile or a step that is not there, or speaks of too many."""
    for index, expect in enumerate(scenario.expect):
        path: Place = ("expect", index)
        if expect.profile is not None:
            yield from _listed(scenario, expect.profile, (*path, "profile"))
        yield from _one_per_step(scenario, expect, path)
    for key in ("before", "after"):
        seen: Seen = getattr(scenario.shows, key)
        if seen != Seen():
            yield from _seen(scenario, seen, ("shows", key))


def _seen(scenario: Scenario, seen: Seen, path: Place) -> Iterator[Problem]:
    names = scenario.step_names
    if not seen.profile:
        yield Problem((*path, "profile"), "missing; say which profile shows it")
    else:
        yield from _listed(scenario, seen.profile, (*path, "profile"))
    if not seen.step:
        yield Problem((*path, "step"), "missing; say which step shows it")
    elif seen.step not in names:
        hint = nearest(seen.step, names) or f"; there are {', '.join(names)}"
        yield Problem((*path, "step"), f"there is no step {seen.step!r}{hint}")
    if seen == Seen(profile=seen.profile, step=seen.step):
        yield Problem(path, "says nothing of the step; write cached, answer or error, for example")


def _listed(scenario: Scenario, text: str, path: Place) -> Iterator[Problem]:
    engine, listed = scenario.engine.name, scenario.engine.profiles
    if problem := wrong_profile(engine, text):
        yield Problem(path, problem)
        return
    known = {str(full_profile(engine, each)) for each in listed if not wrong_profile(engine, each)}
    if known and str(full_profile(engine, text)) not in known:
        yield Problem(path, f"{text!r} is not among engine.profiles{nearest(text, listed)}")


def _one_per_step(scenario: Scenario, expect: Expect, path: Place) -> Iterator[Problem]:
    steps = len(scenario.step)
    for key in ("cached", "processed", "answer", "error", "checkpoints"):
        value = getattr(expect, key)
        if isinstance(value, tuple) and len(value) != steps:
            text = f"has {len(value)} items for {steps} steps; write one per step"
            yield Problem((*path, key), text)
