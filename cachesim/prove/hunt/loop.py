"""The hunt itself: search from every target, shrink, prove, and continue past known findings."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Final

from cachesim.engines.family import Profile, family_of, search_of
from cachesim.engines.llamacpp.family import FAMILY as LLAMA_CPP
from cachesim.errors import InputError
from cachesim.model.presets import PRESETS, preset
from cachesim.play.findings import play
from cachesim.prove.hunt.arrivals import draw_arrival, draw_pinned
from cachesim.prove.hunt.proof import ProofResult, Prover, prover_of
from cachesim.scenario.checks import full_profile
from cachesim.scenario.format import Scenario, Source
from cachesim.scenario.shipped import load_all, shipped_folder
from cachesim.testing.search import Counterexample, Report, expected_of
from cachesim.testing.survey import (
    STATELESS,
    Cause,
    Sighting,
    Survey,
    causes,
    in_order,
    made_small,
    survey,
)
from cachesim.testing.workloads import Shape, try_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A release with some patches laid over it, a model and flags."""

    profile: Profile  # the release, and what is laid over it
    model: str
    flags: Mapping[str, Any]

    @property
    def seeks(self) -> str:
        """The fix that is left out, whose defect the search looks for; empty if none is."""
        left = family_of(self.profile.engine).cures(self.profile)
        return left[0].name if len(left) == 1 and self.profile.patches else ""


def targets(profile: Profile, models: Sequence[str]) -> Iterator[Target]:
    """Each model with each set of flags, once; fixes are distinguished at default flags.

    Fixes are of checkpoints and saved states: a model with full attention only is searched once.
    """
    family = family_of(profile.engine)
    sets = unmasked(profile)
    for flags in search_of(family).hunted:
        for patched in dict.fromkeys((sets[0], sets[-1]) if flags else sets):
            for model in models:
                if patched == profile or not set(preset(model).layers) <= STATELESS:
                    yield Target(profile=patched, model=model, flags=flags)


def unmasked(profile: Profile) -> tuple[Profile, ...]:
    """The release itself; with all fixes but one, for each; with all of them."""
    names = [cure.name for cure in family_of(profile.engine).cures(profile)]
    without = [[other for other in names if other != name] for name in names]
    laid = [[], *without, names]
    return tuple(dict.fromkeys(profile.with_patches(*patches) for patches in laid))


WORKLOADS: Final = 25
"""Workloads run from one target before the next."""

SHAPE: Final = Shape(alike=True)
"""Workload shape in which the requests of one call are alike."""

ARRIVALS: Final = 2
"""Workloads with requests that arrive during another prefill; they are long."""

REPLY: Final = (300, 301, 302, 303)
"""The beginning of every reply in these: nothing quotes it."""

MOST_TRIES: Final = 3
"""Sightings of a cause that are tried before the real engine's no is taken."""

SMALL: Final = 220
"""Simplifications tried of each cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenFinding:
    """A cause, its smallest workload, and the real engine's result."""

    cause: Cause
    found: Counterexample
    result: ProofResult
    target: Profile  # the release with the fixes under which it was seen
    known: str = ""  # the shipped scenario that shows the same


@dataclass(slots=True)
class Findings:
    """The findings of a hunt so far."""

    survey: Survey  # of all targets
    proven: dict[Cause, ProvenFinding] = field(default_factory=dict)
    missed: dict[Cause, ProvenFinding] = field(default_factory=dict)
    tries: Counter[Cause] = field(default_factory=Counter)

    def wanted(self, cause: Cause) -> bool:
        """True if a cause has no proof and tries are left."""
        return cause not in self.proven and self.tries[cause] < MOST_TRIES

    def put(self, finding: ProvenFinding) -> None:
        self.tries[finding.cause] += 1
        kept = self.proven if finding.result.confirmed else self.missed
        kept[finding.cause] = finding
        if finding.result.confirmed:
            self.missed.pop(finding.cause, None)


def hunt(
    profile: Profile,
    *,
    seed: int = 0,
    models: Sequence[str] = (),
    going: Callable[[Report], bool],
    report: Callable[[ProvenFinding], None] = lambda _: None,
    pool: Executor | None = None,
    ahead: int = 0,
    task: Callable[[Prover], Survey] | None = None,
) -> Findings:
    """Search a release while `going`; findings are proven on its real engine.

    A `pool` searches targets ahead of the proofs. With a `task` that search alone takes the place
    of those of all targets, and each of its causes is proven, however long it took.
    """
    prover = prover_of(profile, tuple(PRESETS))
    prover.ready(profile.release)
    findings = Findings(Survey(report=Report(profile=profile, model=", ".join(models) or "all")))

    def goes_on(_: Report | None = None) -> bool:
        return going(findings.survey.report)

    if task is not None:
        surveys: Iterator[Survey] = iter((task(prover),))
    else:
        playable = [model for model in models or prover.models if not _refused(profile, model, {})]
        tasks = _tasks(profile, playable, prover, seed=seed, findings=findings, going=goes_on)
        surveys = (
            (task(going=goes_on) for task in tasks)
            if pool is None
            else in_order(tasks, pool, ahead, goes_on)
        )
    known: dict[Cause, str] | None = None  # takes as long as all shipped scenarios
    for target_survey in surveys:
        findings.survey.join(target_survey)
        for cause, _ in target_survey.counts.most_common():
            if not findings.wanted(cause) or (task is None and not goes_on()):
                continue
            finding = _reduced(
                cause, target_survey.first[cause], target_survey.report.profile, profile, prover
            )
            if finding is None:
                findings.tries[cause] += 1
                continue
            known = known_causes(profile) if known is None else known
            finding = replace(finding, known=known.get(cause, ""))
            findings.put(finding)
            report(finding)
    return findings


def _tasks(
    profile: Profile,
    models: Sequence[str],
    prover: Prover,
    *,
    seed: int,
    findings: Findings,
    going: Callable[[], bool],
) -> Iterator[Callable[..., Survey]]:
    """Searches in rounds over all targets; of arrivals in between.

    Workloads are drawn as a whole, and guided by the server's events in every second round.

    A target from which one defect alone is seen is left out as soon as that one is proven.
    """
    for turn in count():
        for number, target in enumerate(targets(profile, models)):
            if not going():
                return
            if target.seeks in {cause.cure for cause in findings.proven} - {""} or _refused(
                target.profile, target.model, target.flags
            ):
                continue
            windowed = "window" in preset(target.model).layers
            window, longest = prover.sizes[turn % len(prover.sizes)]
            shape = replace(
                SHAPE,
                longest=longest,
                fixed=target.flags,
                incidents=bool(prover.kinds),
                kinds=prover.kinds,
                chats=prover.chats,
                guided=turn % 2 == 1,
                window=window if windowed else 0,
            )
            yield partial(
                survey,
                target.profile,
                target.model,
                examples=WORKLOADS,
                first=turn * WORKLOADS,
                seed=seed,
                shape=shape,
            )
            if family_of(profile.engine).has_slots and number % 3 == 0:
                first = (turn * 1000 + number) * ARRIVALS
                yield partial(_arrived, profile, models, seed, range(first, first + ARRIVALS))


def _arrived(
    profile: Profile,
    models: Sequence[str],
    seed: int,
    numbers: range,
    going: Callable[[Report], bool] = lambda _: True,
) -> Survey:
    found = Survey(report=Report(profile=profile, model="arrivals"))
    for number in numbers if profile.engine == LLAMA_CPP.name else ():  # whose clock is known
        if not going(found.report):
            break
        draw = draw_arrival if number % 2 else draw_pinned
        drawn = draw(seed, number, release=profile.release, presets=tuple(models))
        steps = (replace(step, reply=REPLY[: step.predict]) for step in drawn.step)
        scenario = replace(drawn, about=f"Drawn for {profile}.", step=tuple(steps))
        found.report.add(scenario, play(scenario, profile, stop_early=False))
        for cause, (step, detail) in causes(scenario, profile, "ring", "wrong").items():
            found.see(cause, Sighting(number=number, scenario=scenario, step=step, detail=detail))
    return found


def _reduced(
    cause: Cause, sighting: Sighting, target: Profile, profile: Profile, prover: Prover
) -> ProvenFinding | None:
    """Reduce a sighting and prove it; None if the release alone does not have it."""

    def fits(candidate: Scenario) -> bool:
        return prover.fits(candidate) and (
            target == profile or _shown_by(profile, candidate, target)
        )

    if target != profile and not fits(sighting.scenario):
        return None
    small = made_small(cause, sighting, target, "ring", "wrong", fits=fits, trials=SMALL)
    scenario = replace(
        small.scenario,
        name=f"hunt-{profile.engine}-{profile.release}-{small.scenario.name}",
        about=f"{cause}. {small.finding.detail.rstrip('.')}.",
        source=Source(upstream=profile.release, note="found by search"),
        engine=replace(small.scenario.engine, profiles=(profile.release,)),
        expect=expected_of(small.finding),
    )
    small = replace(small, scenario=scenario)
    result = ProofResult(confirmed=False, seen=f"cannot be run on {prover.where}")
    if prover.fits(scenario):
        result = prover.prove(small, profile)
    return ProvenFinding(cause=cause, found=small, result=result, target=target)


def _shown_by(profile: Profile, candidate: Scenario, target: Profile) -> bool:
    seen = play(candidate, target, stop_early=False).findings
    plain = play(candidate, profile, stop_early=False).findings
    return bool(
        {(finding.kind, finding.step) for finding in seen}
        & {(finding.kind, finding.step) for finding in plain}
    )


def _refused(profile: Profile, model: str, flags: Mapping[str, Any]) -> bool:
    try:
        try_flags(profile, model, flags)
    except InputError:
        return True
    return False


def known_causes(profile: Profile) -> dict[Cause, str]:
    """The causes that shipped scenarios show on a release, each with the first that does."""
    shipped = shipped_folder()
    folder = shipped and shipped / profile.engine  # an engine may have none
    known: dict[Cause, str] = {}
    for _, scenario in load_all([str(folder)]) if folder and folder.is_dir() else ():
        listed = [full_profile(scenario.engine.name, text) for text in scenario.engine.profiles]
        if profile in listed:
            for cause in causes(scenario, profile, "ring", "wrong"):
                known.setdefault(cause, scenario.name)
    return known
