"""One scenario on one profile, played and judged: a `Run`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final, Protocol

from cachesim.engines.profile import Profile
from cachesim.errors import OutOfTimeError, ScenarioError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.scenario.acceptance import full_profile
from cachesim.scenario.checks import scenario_of
from cachesim.scenario.detail import Watcher, with_details
from cachesim.scenario.evidence import Evidence, Witness
from cachesim.scenario.expectations import expects_wrong, mismatches
from cachesim.scenario.format import Scenario
from cachesim.scenario.labels import label_of
from cachesim.scenario.result import CLAIMS, Finding, Run, Saved, SlotCount, Step, as_json
from cachesim.scenario.session import TIMEOUT, Record, Session
from cachesim.scenario.statements import with_statements
from cachesim.verify.oracle import Oracle


class Pace(Protocol):
    """Who waits for a run: sees it advance, and may have no more time for it."""

    def limit(self) -> AbstractContextManager[None]:
        """While steps are played; raises OutOfTimeError in the middle of one."""
        ...

    def step_done(self) -> None:
        """One more step was played and judged."""
        ...


UNSAID: Final = Finding(fate="right", title="", step=0, event=-1)
"""Before anything is said of a step."""


def run(
    scenario: Scenario,
    profile: Profile,
    *,
    arithmetic: ArithmeticName = "float",
    verify: bool = True,
    oracle: Oracle | None = None,
    detail: bool = False,
    pace: "Pace | None" = None,
) -> Run:
    """Run a scenario on one profile.

    Several runs of one scenario may share an oracle: cold answers are computed once. Where an
    answer diverged the run is played once more with every memory keeping, beside its data, whose
    data it is; so the wrong state can be named. Where the scenario expects that it is played so at
    once; with `detail` too, and what the server held after each event is told.
    """
    traced = detail or (verify and expects_wrong(scenario, profile))
    session = Session(scenario, profile, arithmetic=arithmetic, traced=traced)
    oracle = oracle or Oracle(session.network)
    watcher = Watcher(session) if detail else None
    steps = run_steps(session, oracle, verify=verify, watcher=watcher, pace=pace)
    if session.trace is None and any(step.answer == "diverged" for step in steps):
        session = Session(scenario, profile, arithmetic=arithmetic, traced=True)
        again = run_steps(session, oracle, pace=pace)
        steps = steps if again[-1].error == TIMEOUT else again
    unmet = tuple(mismatches(scenario, profile, steps, verified=verify))
    done = Run(
        scenario=scenario.name,
        profile=str(profile),
        as_expected=not unmet,
        steps=steps,
        arithmetic=arithmetic,
        mismatches=unmet,
    )
    if watcher is None:
        return done
    return with_details(done, watcher, oracle if verify else None)


def run_steps(
    session: Session,
    oracle: Oracle | None = None,
    *,
    verify: bool = True,
    watcher: Watcher | None = None,
    pace: "Pace | None" = None,
) -> tuple[Step, ...]:
    """The steps of a session, in order; those that there was no time for say so."""
    witness = Witness(session, oracle) if verify else None
    done: list[tuple[Step, Record]] = []  # one list: an interruption comes between any two lines

    def add(record: Record, evidence: Evidence) -> None:
        step = step_of(record, evidence)
        if watcher is not None:
            watcher.heard(record)
        done.append((step, record))

    try:
        with pace.limit() if pace else nullcontext():
            for record in session.run():
                add(record, witness.judge(record) if witness else Evidence())
                if pace:
                    pace.step_done()
    except OutOfTimeError:
        pass
    for record in session.undone(len(done)):
        add(record, Evidence())
    steps = with_statements([step for step, _ in done], [record for _, record in done])
    scenario, profile = session.scenario, session.profile
    return tuple(
        replace(step, evidence=label_of(scenario, profile, step.name))
        if step.finding.fate in CLAIMS
        else step
        for step in steps
    )


def step_of(record: Record, evidence: Evidence) -> Step:
    """One step as the server left it; what is to be said of it comes later."""
    reply = record.reply
    return Step(
        name=record.name,
        do=record.step.do,
        prompt_tokens=len(record.prompt),
        cached=None if reply is None else as_json(reply.cached),
        processed=None if reply is None else as_json(reply.processed),
        generated=() if reply is None else tuple(int(token) for token in reply.generated),
        answer=evidence.answer,
        max_difference=evidence.max_difference,
        reuse=evidence.reuse,
        why=() if reply is None else reply.losses,
        slot=as_json(record.slot),
        truncated=reply is not None and bool(reply.truncated),
        checkpoints=_checkpoints_of(record),
        prompt_cache=tuple(as_json(each) for each in record.snapshot.get("prompt_cache", ())),
        events=record.events,
        error=record.error,
        message=record.message,
        explanation=evidence.account,
        slots=tuple(
            SlotCount(id=as_json(each["id"]), n_tokens=len(each.get("tokens", ())))
            for each in record.snapshot.get("slots", ())
        ),
        forced=record.step.reply is not None,
        finding=UNSAID,
        facts=(),
        drafted=None if reply is None else as_json(reply.drafted),
        accepted=None if reply is None else as_json(reply.accepted),
        companion=_slot_of(record).get("companion"),
    )


def _checkpoints_of(record: Record) -> tuple[Saved, ...]:
    return tuple(
        Saved(
            pos_min=int(each["pos_min"]),
            pos_max=int(each["pos_max"]),
            n_tokens=int(each["n_tokens"]),
            bytes=each.get("bytes"),
        )
        for each in _slot_of(record).get("checkpoints", ())
    )


def _slot_of(record: Record) -> Mapping[str, Any]:
    slots: Sequence[Mapping[str, Any]] = record.snapshot.get("slots", ())
    return next((each for each in slots if each.get("id") == record.slot), {})


def run_scenario(
    mapping: Mapping[str, Any],
    *,
    profile: str | None = None,
    arithmetic: ArithmeticName = "float",
    verify: bool = True,
    detail: bool = False,
) -> Run:
    """Run what a scenario file says, given as a mapping.

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
