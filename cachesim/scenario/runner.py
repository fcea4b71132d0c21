"""One entry of "runs": what a scenario did on a profile, as plain data."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from cachesim.engines.events import Event
from cachesim.engines.profile import Profile
from cachesim.errors import ScenarioError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.scenario.checks import full_profile, scenario_of
from cachesim.scenario.detail import Watcher, with_details
from cachesim.scenario.evidence import Evidence, Witness
from cachesim.scenario.expectations import mismatches
from cachesim.scenario.format import Scenario
from cachesim.scenario.session import Record, Session
from cachesim.verify.oracle import Oracle


def run(
    scenario: Scenario,
    profile: Profile,
    *,
    arithmetic: ArithmeticName = "float",
    verify: bool = True,
    oracle: Oracle | None = None,
    detail: bool = False,
) -> dict[str, Any]:
    """Run a scenario on one profile: one entry of "runs".

    Several runs of one scenario may share an oracle: cold answers are computed once. Where an
    answer diverged the run is played once more with every memory keeping, beside its data, whose
    data it is; so the wrong state can be named. With `detail` it is played so at once, and what
    the server held after each event is told too.
    """
    verify = verify and arithmetic != "counts"  # there is nothing to judge
    session = Session(scenario, profile, arithmetic=arithmetic, traced=detail)
    oracle = oracle or Oracle(session.network)
    watcher = Watcher(session) if detail else None
    steps = list(run_steps(session, oracle, verify=verify, watcher=watcher))
    if watcher is None and any(step["answer"] == "diverged" for step in steps):
        traced = Session(scenario, profile, arithmetic=arithmetic, traced=True)
        steps = list(run_steps(traced, oracle))
    unmet = mismatches(scenario, profile, steps, verified=verify)
    entry = {
        "scenario": scenario.name,
        "profile": str(profile),
        "as_expected": not unmet,
        "steps": steps,
        "arithmetic": arithmetic,
        "mismatches": unmet,
    }
    return entry if watcher is None else with_details(entry, watcher, oracle if verify else None)


def run_steps(
    session: Session,
    oracle: Oracle | None = None,
    *,
    verify: bool = True,
    watcher: Watcher | None = None,
) -> Iterator[dict[str, Any]]:
    """The steps of a session, each as soon as it is done."""
    witness = Witness(session, oracle) if verify else None
    for record in session.run():
        if watcher is not None:
            watcher.heard(record)
        yield step_entry(record, witness.judge(record) if witness else Evidence())


def step_entry(record: Record, evidence: Evidence) -> dict[str, Any]:
    """One step as the JSON shows it."""
    reply = record.reply
    return {
        "name": record.name,
        "do": record.step.do,
        "prompt_tokens": len(record.prompt),
        "cached": None if reply is None else plain(reply.cached),
        "processed": None if reply is None else plain(reply.processed),
        "generated": [] if reply is None else [int(token) for token in reply.generated],
        "answer": evidence.answer,
        "max_difference": evidence.max_difference,
        "reuse": evidence.reuse,
        "why": [] if reply is None else [plain(each.as_dict()) for each in reply.losses],
        "slot": plain(record.slot),
        "truncated": reply is not None and bool(reply.truncated),
        "checkpoints": checkpoints_of(record),
        "prompt_cache": prompt_cache_of(record),
        "events": [event_entry(event) for event in record.events],
        "error": record.error,
        "message": record.message,
        "explanation": plain(evidence.explanation),
        "slots": [
            {"id": plain(each["id"]), "n_tokens": len(each.get("tokens", ()))}
            for each in record.snapshot.get("slots", ())
        ],
    }


def event_entry(event: Event) -> dict[str, Any]:
    """An event as the JSON shows it: its data, its tone, its sentence."""
    entry: dict[str, Any] = plain(event.as_dict())
    return entry | {"tone": event.loudness(), "sentence": event.sentence}


def checkpoints_of(record: Record) -> list[dict[str, int]]:
    """The checkpoints of the slot that the step used."""
    slots = record.snapshot.get("slots", ())
    mine: Mapping[str, Any] = next((each for each in slots if each.get("id") == record.slot), {})
    return [
        {key: int(each[key]) for key in ("pos_min", "pos_max", "n_tokens")}
        for each in mine.get("checkpoints", ())
    ]


def prompt_cache_of(record: Record) -> list[dict[str, Any]]:
    """The conversations parked in host memory."""
    return [plain(each) for each in record.snapshot.get("prompt_cache", ())]


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON values
    """A value as JSON can write it: numbers of NumPy become Python's, tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(each) for each in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not isfinite(value):
        return str(value)  # JSON has no word for `nan`
    return value


def run_scenario(
    mapping: Mapping[str, Any],
    *,
    profile: str | None = None,
    arithmetic: ArithmeticName = "float",
    verify: bool = True,
    detail: bool = False,
) -> dict[str, Any]:
    """Run what a scenario file says, given as a mapping: one entry of "runs".

    `profile` overrides what the mapping lists; without it the mapping names exactly one.
    """
    scenario = scenario_of(mapping)
    wanted = chosen(scenario, profile)
    return run(scenario, wanted, arithmetic=arithmetic, verify=verify, detail=detail)


def chosen(scenario: Scenario, profile: str | None) -> Profile:
    """The profile asked for, or the only one that the scenario lists."""
    listed = scenario.engine.profiles
    if profile is None and len(listed) != 1:
        found = ", ".join(listed) if listed else "none"
        msg = f"engine.profiles: say which profile to run; the scenario lists {found}"
        raise ScenarioError(msg)
    return full_profile(scenario.engine.name, listed[0] if profile is None else profile)
