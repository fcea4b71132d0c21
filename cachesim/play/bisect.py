"""The releases on which a scenario goes wrong, and the merged change that began or ended it.

    b9093   b9294   b9538   b9713   ...        good, BAD, BAD, good
            ^ first bad     ^ first good again

A release is bad where its server ends, where an answer is not the cold one, or where a step reuses
less than half of what the best release reuses there. Between two neighbours that are not alike,
every merged change is laid over the older one and taken back from the younger one: the change that
turns one into the other is named.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias

from cachesim.engines.family import Profile, family_of
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.runner import run
from cachesim.play.session import ABORTED, ENDLESS, NOT_RUN, WORKER_GONE
from cachesim.scenario.format import Scenario
from cachesim.scenario.labels import Evidence

State: TypeAlias = Literal["good", "bad", "-"]

SHARE: Final = 0.5
"""A step that reuses less than this share of the best release's reuse is bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a step on a server."""

    name: str
    cached: int | None
    answer: str | None  # same, rounding, by-design, diverged; None where nothing was judged
    error: str | None = None
    evidence: Evidence | None = None

    @property
    def wrong(self) -> str:
        """Reason why the step is bad whatever other releases do."""
        if self.error in {ABORTED, ENDLESS, NOT_RUN, "crash"}:
            return "the server ends"
        if self.error is not None and self.error.startswith(WORKER_GONE):
            return "no request is served any more"
        return "wrong answer" if self.answer == "diverged" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A scenario on one release; `refused` is the reason why it was not run."""

    profile: str
    steps: tuple[StepResult, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseVerdict:
    """The verdict on one release, with the reason if it is bad."""

    played: Played
    state: State
    why: str = ""
    step: str = ""  # the first bad one
    evidence: Evidence | None = None  # of a wrong answer, or of a server's end

    def is_like(self, other: "ReleaseVerdict") -> bool:
        """True if both are good, or bad in the same step for the same reason."""
        kinds = [re.sub(r"\d+", "", verdict.why) for verdict in (self, other)]
        return (self.state, self.step, kinds[0]) == (other.state, other.step, kinds[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A merged change or a new default by which two releases differ."""

    patch: str = ""
    flag: str = ""  # a flag whose default changed, and from what to what
    values: tuple[Any, Any] = (None, None)
    laid: bool = False  # the older release with it is like the younger one
    taken_back: bool = False  # the younger release without it is like the older one


@dataclass(frozen=True, slots=True, kw_only=True)
class TurningPoint:
    """Two consecutive releases with different verdicts, and the changes between them."""

    before: str
    after: str
    was: State
    became: State
    causes: tuple[Cause, ...]
    landed: tuple[str, ...]  # every known change that landed between them


class Play(Protocol):
    """Interface: run the scenario on a release, with patches and flags."""

    def __call__(self, release: str, flags: Mapping[str, Any] = MappingProxyType({})) -> Played: ...


def simulated(scenario: Scenario, arithmetic: ArithmeticName = "ring") -> Play:
    """Run on the simulator."""

    def play(release: str, flags: Mapping[str, Any] = MappingProxyType({})) -> Played:
        profile = Profile.parse(f"{scenario.engine.name}@{release}")
        options = {**flags, **scenario.engine.options}
        changed = replace(scenario, engine=replace(scenario.engine, options=options))
        try:
            played = run(changed, profile, arithmetic=arithmetic)
        except InputError as error:
            return Played(profile=release, refused=str(error))
        steps = tuple(
            StepResult(
                name=step.name,
                cached=step.cached,
                answer=step.answer,
                error=step.error,
                evidence=step.evidence,
            )
            for step in played.steps
        )
        return Played(profile=release, steps=steps)

    return play


def judge(played: Sequence[Played]) -> list[ReleaseVerdict]:
    """Good and bad releases; the best reuse of a step is that of releases that answer correctly."""
    best = _best_reuse(played)
    return [_judge_one(run, best) for run in played]


def _best_reuse(played: Sequence[Played]) -> dict[str, int]:
    """The largest reuse of every step among releases that answer correctly."""
    best: dict[str, int] = {}
    for release_run in played:
        for step in release_run.steps:
            if not step.wrong and step.cached is not None:
                best[step.name] = max(best.get(step.name, 0), step.cached)
    return best


def _judge_one(played: Played, best: dict[str, int]) -> ReleaseVerdict:
    if played.refused:
        return ReleaseVerdict(played=played, state="-", why=played.refused)
    for step in played.steps:
        if step.wrong:
            return ReleaseVerdict(
                played=played, state="bad", why=step.wrong, step=step.name, evidence=step.evidence
            )
    for step in played.steps:
        most = best.get(step.name, 0)
        if step.cached is not None and step.cached < SHARE * most:
            why = f"reuses {step.cached} of {most}"
            return ReleaseVerdict(played=played, state="bad", why=why, step=step.name)
    return ReleaseVerdict(played=played, state="good")


def turns(
    scenario: Scenario, judged: Sequence[ReleaseVerdict], play: Play
) -> Iterator[TurningPoint]:
    """Consecutive releases with different verdicts, with the merged changes between them."""
    family = family_of(scenario.engine.name)
    best = _best_reuse([verdict.played for verdict in judged])
    known = [verdict for verdict in judged if verdict.state != "-"]
    for one, other in pairwise(known):
        if one.is_like(other):
            continue
        names = family.names()
        between = names[names.index(one.played.profile) + 1 : names.index(other.played.profile) + 1]
        landed = [patch for patch in family.patches if patch.landed in between]
        tried = [_patch_of(patch.name, one, other, best, play) for patch in landed]
        before, after = one.played.profile, other.played.profile
        for option in family.table():
            having = family.having(option)
            if before not in having or after not in having:
                continue
            was, now = family.default(option, before), family.default(option, after)
            if was != now:
                tried.append(
                    Cause(
                        flag=option.name,
                        values=(was, now),
                        laid=_judge_one(play(before, {option.name: now}), best).is_like(other),
                        taken_back=_judge_one(play(after, {option.name: was}), best).is_like(one),
                    )
                )
        yield TurningPoint(
            before=one.played.profile,
            after=other.played.profile,
            was=one.state,
            became=other.state,
            causes=tuple(cause for cause in tried if cause.laid or cause.taken_back),
            landed=tuple(patch.name for patch in landed),
        )


def _patch_of(
    name: str, one: ReleaseVerdict, other: ReleaseVerdict, best: dict[str, int], play: Play
) -> Cause:
    forth, back = f"{one.played.profile}+{name}", f"{other.played.profile}-{name}"
    return Cause(
        patch=name,
        laid=_judge_one(play(forth), best).is_like(other),
        taken_back=_judge_one(play(back), best).is_like(one),
    )
