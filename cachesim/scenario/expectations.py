"""What a scenario expects of a profile, held against what it showed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cachesim.engines.profile import Profile
from cachesim.scenario.acceptance import full_profile
from cachesim.scenario.format import Expect, Scenario
from cachesim.scenario.result import Step
from cachesim.scenario.session import ABORTED, ENDLESS, NOT_RUN, TIMEOUT

KEYS_UNVERIFIED = ("cached", "processed", "error")
RIGHT = frozenset({"same", "rounding", "by-design", None})
"""Answers that nobody needs to expect."""


def mismatches(
    scenario: Scenario, profile: Profile, steps: Sequence[Step], *, verified: bool
) -> list[str]:
    """Every expectation that was not met, and whatever went wrong that nobody expected."""
    mine = [each for each in scenario.expect if _is_for(scenario, each, profile)]
    keys = ("cached", "processed", "error", "answer") if verified else KEYS_UNVERIFIED
    found = [line for each in mine for line in _unmet(each, steps, keys)]
    found += _unshown(scenario, profile, steps, verified=verified)
    if not any(each.answer is not None for each in mine):
        found += [
            f"{step.name}: the answer is wrong, and no expectation says so"
            for step in steps
            if step.answer not in RIGHT
        ]
    if not any(each.error is not None for each in mine):
        found += [
            f"{step.name}: {step.error}, and no expectation says so"
            for step in steps
            if _went_wrong(step)
        ]
    return found


def expects_wrong(scenario: Scenario, profile: Profile) -> bool:
    """Whether a scenario says that some answer of a profile diverges."""
    mine = (each.answer for each in scenario.expect if _is_for(scenario, each, profile))
    return any("diverged" in answer for answer in mine if answer is not None)


def _unshown(
    scenario: Scenario, profile: Profile, steps: Sequence[Step], *, verified: bool
) -> Iterator[str]:
    for seen in (scenario.shows.before, scenario.shows.after):
        if not seen.profile or full_profile(scenario.engine.name, seen.profile) != profile:
            continue
        step = steps[scenario.step_names.index(seen.step)]
        values = {
            "cached": step.cached,
            "processed": step.processed,
            "of": step.prompt_tokens,
            "answer": step.answer if verified else seen.answer,
            "error": step.error,
            "checkpoints": len(step.checkpoints),
            "checkpoint_mib": _mib(each.bytes for each in step.checkpoints),
            "parked": len(step.prompt_cache),
            "parked_mib": _mib(each.get("bytes") for each in step.prompt_cache),
            "drafted": step.drafted,
            "accepted": step.accepted,
            "companion": step.companion,
        }
        for key, found in values.items():
            wanted = getattr(seen, key)
            if wanted is not None and str(wanted) != _word(found):
                yield f"{step.name}: {key} is {_word(found)}, and [shows] says {wanted}"


def _mib(sizes: Iterable[int | None]) -> int:
    return sum(each or 0 for each in sizes) // 2**20


def _went_wrong(step: Step) -> bool:
    """The server ended or hung, the step was not run for it, or a slot action failed.

    A refused request is an answer; a scenario that means it says so or not, as it likes.
    """
    if step.do in {"slot-save", "slot-restore", "slot-erase", "set-lora"}:
        return step.error is not None
    return step.error in {ABORTED, ENDLESS, NOT_RUN, TIMEOUT}


def _is_for(scenario: Scenario, expect: Expect, profile: Profile) -> bool:
    if expect.profile is None:
        return True
    return full_profile(scenario.engine.name, expect.profile) == profile


def _unmet(expect: Expect, steps: Sequence[Step], keys: Sequence[str]) -> Iterator[str]:
    for key in keys:
        wanted = getattr(expect, key)
        if wanted is None:
            continue
        for step, item in zip(steps, _per_step(wanted, steps, key), strict=True):
            found = getattr(step, key)
            if item != "any" and found != (None if item in {"none", ""} else item):
                yield f"{step.name}: {key} is {_word(found)}, expected {_word(item)}"
    for step, item in zip(steps, expect.checkpoints or (), strict=False):
        held = tuple(each.n_tokens for each in step.checkpoints)
        wanted = () if item == "none" else item
        if wanted not in ("any", held):
            yield f"{step.name}: checkpoints are {list(held)}, expected {list(wanted)}"


def _per_step(
    wanted: str | Sequence[Any],
    steps: Sequence[Step],
    key: str,
) -> Sequence[Any]:
    if not isinstance(wanted, str):
        return wanted
    if key == "answer":
        return [wanted if step.answer is not None else "any" for step in steps]
    return [wanted] * len(steps)


def _word(value: object) -> str:
    return "none" if value in (None, "") else str(value)
