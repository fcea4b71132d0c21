"""A search that continues: every distinct failure, its count, and its smallest workload.

A search that ends at its first finding misses rare failures behind frequent ones. Here findings are
distinguished by cause, each workload counts once for each of its causes, and of each cause the
first workload is reduced.

    wrong answer    the patch that fixes it; where none does: which memory was wrong, how, and
                    what had brought it back
    crash, refusal  the sentence of the abort or error, its numbers aside
    lost reuse      the rules that kept matching tokens from being reused, though their states
                    were held
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, TypeVar

from cachesim.engines.events import Event
from cachesim.engines.family import Patch, Profile, family_of, search_of
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.findings import Finding, Trial, play
from cachesim.play.result import Culprit, Run, Step
from cachesim.play.runner import run
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Expect, Kind, Scenario
from cachesim.testing.search import (
    Counterexample,
    Numbered,
    Report,
    expected_of,
    search,
    shrink,
    trials,
    trials_for,
)
from cachesim.testing.workloads import DEFAULT, Shape
from cachesim.verify.oracle import Oracles

Find: TypeAlias = Literal["wrong", "lost", "leak"]

TRIALS: Final = 400
"""Most simplifications tried for each cause."""

BRINGS: Final[Mapping[str, str]] = {
    "restore": "a checkpoint was restored",
    "load": "a stored conversation was loaded",
    "shift": "the context was shifted",
    "rollback": "a draft was taken back",
}
"""Events that restore memory, by the feature that they count for."""

PLACES: Final[Mapping[str, str]] = {
    "attention": "attention cache",
    "window": "window",
    "recurrent": "recurrent state",
}

PAGES: Final = 64
"""Tokens of a prompt that every block size here reuses in part if it is sent again."""

STATELESS: Final = frozenset({"attention"})
"""Layers without a state beside their cells."""


@dataclass(frozen=True, slots=True, order=True)
class Cause:
    """The cause by which findings are grouped."""

    kind: Kind
    marks: tuple[str, ...]
    cure: str = ""  # the patch without which it shows

    def __str__(self) -> str:
        return f"{self.kind}: {'; '.join(self.marks)}"

    @property
    def name(self) -> str:
        """Its name in baselines and reports of tests: the same in every run."""
        marks = self.cure or "; ".join(self.marks)
        words = ["-".join(re.findall(r"[a-z0-9]+", text.lower())) for text in (self.kind, marks)]
        return ".".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A workload that shows a cause, with its step."""

    number: int
    scenario: Scenario
    step: int
    detail: str


@dataclass(slots=True, kw_only=True)
class Survey:
    """Findings of a search that continues."""

    report: Report
    counts: Counter[Cause] = field(default_factory=Counter)
    first: dict[Cause, Sighting] = field(default_factory=dict)

    def see(self, cause: Cause, sighting: Sighting) -> None:
        """Count a workload that shows a cause."""
        self.counts[cause] += 1
        known = self.first.get(cause)
        if known is None or sighting.number < known.number:
            self.first[cause] = sighting

    def join(self, other: "Survey") -> None:
        """Add the findings of another search."""
        self.report.join(other.report)
        self.counts.update(other.counts)
        self.first = other.first | self.first


def survey(
    profile: Profile,
    model: str,
    *,
    examples: int | None = None,
    seed: int = 0,
    first: int = 0,
    arithmetic: ArithmeticName = "ring",
    shape: Shape = DEFAULT,
    among: Iterable[Numbered] | None = None,
    find: Find = "wrong",
    going: Callable[[Report], bool] = lambda _: True,
) -> Survey:
    """Run workloads until all are run or `going` is false; none is shrunk yet."""
    found, oracles = Survey(report=Report(profile=profile, model=model)), Oracles()
    tried = trials(
        profile,
        model,
        seed=seed,
        first=first,
        arithmetic=arithmetic,
        shape=shape,
        among=among,
        stop_early=False,
        only=_only(find),
    )
    left = islice(tried, examples)
    while going(found.report) and (one := next(left, None)) is not None:
        number, scenario, trial = one
        found.report.add(scenario, trial)
        if find != "lost" and trial.finding is None:
            continue
        shown = causes(scenario, profile, arithmetic, find, trial=trial, oracles=oracles)
        for cause, (step, detail) in shown.items():
            sighting = Sighting(number=number, scenario=scenario, step=step, detail=detail)
            found.see(cause, sighting)
    return found


def _only(find: Find) -> Kind | None:
    return "leak" if find == "leak" else None


def _played(
    scenario: Scenario,
    profile: Profile,
    arithmetic: ArithmeticName,
    oracles: Oracles,
    find: Find = "wrong",
) -> Trial:
    return play(
        scenario,
        profile,
        arithmetic=arithmetic,
        stop_early=False,
        oracles=oracles,
        only=_only(find),
    )


def causes(
    scenario: Scenario,
    profile: Profile,
    arithmetic: ArithmeticName,
    find: Find,
    *,
    trial: Trial | None = None,
    oracles: Oracles | None = None,
) -> dict[Cause, tuple[int, str]]:
    """Every cause of a workload, each with its first step and the difference.

    `trial` is the workload run to its end, if already done.
    """
    seen: dict[Cause, tuple[int, str]] = {}
    oracles = oracles or Oracles()
    trial = trial or _played(scenario, profile, arithmetic, oracles, find)
    if trial.finding is not None and trial.finding.kind == "broken invariant":
        if find != "lost":
            broken = Cause("broken invariant", (_unnumbered(trial.finding.detail),))
            seen[broken] = (trial.finding.step, trial.finding.detail)
        return seen
    if find != "lost":
        shown = _wrong(trial, scenario, profile, arithmetic, oracles)
    else:
        shown = lost(run(scenario, profile, arithmetic=arithmetic), scenario)
    for cause, step, detail in shown:
        seen.setdefault(cause, (step, detail))
    return seen


def causes_by_step(
    scenario: Scenario, profile: Profile, arithmetic: ArithmeticName
) -> dict[int, frozenset[Cause]]:
    """The causes of each failing step; none for one that inherits a wrong slot."""
    oracles = Oracles()
    trial = _played(scenario, profile, arithmetic, oracles)
    by_step: dict[int, frozenset[Cause]] = {finding.step: frozenset() for finding in trial.findings}
    if trial.finding is None or trial.finding.kind != "broken invariant":
        for cause, step, _ in _wrong(trial, scenario, profile, arithmetic, oracles):
            by_step[step] |= {cause}
    return by_step


def _wrong(
    trial: Trial,
    scenario: Scenario,
    profile: Profile,
    arithmetic: ArithmeticName,
    oracles: Oracles,
) -> Iterator[tuple[Cause, int, str]]:
    wrong = _wrong_steps(trial)
    cures = cured_by(scenario, profile, arithmetic, wrong=wrong, oracles=oracles) if wrong else {}
    played = None
    for finding in trial.findings:
        if finding.kind in {"broken invariant", "crash", "refusal", "lost reuse"}:
            yield Cause(finding.kind, (_unnumbered(finding.detail),)), finding.step, finding.detail
        elif cures.get(finding.step):
            for patch in cures[finding.step]:
                cause = Cause(finding.kind, (patch.cures,), patch.name)
                yield cause, finding.step, finding.detail
        else:
            played = played or run(scenario, profile, arithmetic=arithmetic)
            if not _inherited(played, finding.step):
                marks = tuple(_marks(played, scenario, finding.step))
                yield Cause(finding.kind, marks), finding.step, finding.detail


def _wrong_steps(trial: Trial) -> frozenset[int]:
    return frozenset(
        finding.step for finding in trial.findings if finding.kind in {"wrong answer", "leak"}
    )


def cured_by(
    scenario: Scenario,
    profile: Profile,
    arithmetic: ArithmeticName,
    *,
    wrong: frozenset[int] | None = None,
    oracles: Oracles | None = None,
) -> dict[int, tuple[Patch[Any], ...]]:
    """Step -> the patches without which its answer is wrong, where all known ones correct it.

    `wrong` are the steps without any, where they are known.

    needed    wrong with all patches but this one, right with all of them
    enough    where several fix the same: the first that does alone
    """
    shared = oracles or Oracles()

    def wrong_with(patches: Iterable[Patch[Any]]) -> frozenset[int]:
        patched = profile.with_patches(*(patch.name for patch in patches))
        return _wrong_steps(_played(scenario, patched, arithmetic, shared))

    known = family_of(profile.engine).cures(profile)
    if not known:
        return {}
    cured = (wrong_with(()) if wrong is None else wrong) - wrong_with(known)
    if not cured:
        return {}
    without = {
        patch.name: wrong_with(other for other in known if other is not patch) for patch in known
    }
    cures: dict[int, tuple[Patch[Any], ...]] = {}
    for step in cured:
        needed = tuple(patch for patch in known if step in without[patch.name])
        enough = (patch for patch in known if step not in wrong_with([patch]))
        cures[step] = needed or tuple(islice(enough, 1))
    return cures


def _inherited(played: Run, index: int) -> bool:
    step = played.steps[index]
    before = [earlier for earlier in played.steps[:index] if earlier.slot == step.slot]
    return bool(before) and before[-1].answer == "diverged" and not _with_cause(played, index)


def _marks(played: Run, scenario: Scenario, index: int) -> Iterator[str]:
    step = played.steps[index]
    if _named_while_at_work(scenario, index):
        yield "a request that names the slot came while it was busy"
        return
    fault = None if step.explanation is None else step.explanation.fault
    if fault is None:
        adapters = search_of(family_of(Profile.parse(played.profile).engine)).adapter_flag
        under = scenario.engine.options.get(adapters)
        yield ("memory computed under other adapters" if under else "no wrong memory") + " was read"
        if under:  # states are no part of it: what is wrong is wherever it comes from
            yield from (mark for mark in _with_cause(played, index) if mark == BRINGS["load"])
            if any(_filled(step) for step in played.steps[:index]):
                yield "a slot file was restored before"
            return
    else:
        yield f"the {PLACES.get(fault.place, fault.place)} {_nature(fault)}"
    brought = _with_cause(played, index)
    yield from brought
    restored = (earlier.slot == step.slot for earlier in played.steps[:index] if _filled(earlier))
    if not brought and any(restored):
        yield "a slot file was restored before"


def _filled(step: Step) -> bool:
    return step.do == "slot-restore" and step.error is None


def _named_while_at_work(scenario: Scenario, index: int) -> bool:
    for later in scenario.step[index + 1 :]:
        if not later.with_previous:
            return False
        if later.turns and later.slot >= 0:
            return True
    return False


def _with_cause(played: Run, index: int) -> list[str]:
    words = search_of(family_of(Profile.parse(played.profile).engine)).exercised
    brought = {words.get(event.name(), "") for event in played.steps[index].events}
    return sorted(BRINGS[word] for word in brought & BRINGS.keys())


def _nature(fault: Culprit) -> str:
    if fault.padding:
        return "holds padding"
    if fault.holds is None:
        return "lacks tokens"
    if fault.expected is None:
        return "holds tokens too many"
    return "holds another token"


def lost(played: Run, scenario: Scenario) -> Iterator[tuple[Cause, int, str]]:
    """Steps that reprocessed matched tokens although a state to resume from was available."""
    search = search_of(family_of(scenario.engine.name))
    options, flags = scenario.engine.options, search.reuse_flags
    if any(options.get(flag) is False for flag in flags):
        return
    stateful = not set(spec_of(scenario.model).layers) <= STATELESS
    for index, step in enumerate(played.steps):
        rules = [loss for loss in step.why if loss.after < loss.before]
        declined = not scenario.step[index].cache_prompt
        if step.explanation is None or step.cached is None or not rules or declined:
            continue
        there = [_equal(step)] if not stateful else list(_checkpoints(played, index))
        best = max((length for length in there if length <= _equal(step)), default=0)
        if best - 1 > step.cached:  # the last token is always reprocessed
            marks = tuple(dict.fromkeys(rule.rule for rule in rules))
            yield Cause("lost reuse", marks), index, f"{step.cached} cached, {best} held"
        elif stateful and (before := max(_resumable(played, scenario, index), default=0)):
            marks = tuple(dict.fromkeys(rule.rule for rule in rules))
            detail = f"{step.cached} cached, {before} held before, and nothing was evicted"
            yield Cause("lost reuse", marks), index, detail


def _resumable(played: Run, scenario: Scenario, index: int) -> Iterator[int]:
    """Positions beyond those reused that had a checkpoint, or that an earlier step resumed from.

    Without those that a lack of room, or another conversation in the slot, took away since.
    """
    tokens, cached = scenario.step[index].ids, played.steps[index].cached or 0
    has_slots = family_of(Profile.parse(played.profile).engine).has_slots
    shared = len(tokens) - 1
    for before in reversed(range(index)):
        step, given = played.steps[before], scenario.step[before]
        if given.do != "complete":
            return
        common = 0
        for one, other in zip(given.ids + tuple(step.generated), tokens, strict=False):
            if one != other:
                break
            common += 1
        if has_slots:
            shared = min(shared, common)
        elif before < index - 1:
            common = min(common, step.cached or 0)
        states = (
            [checkpoint.n_tokens for checkpoint in step.checkpoints]
            if has_slots
            else [step.cached or 0]
        )
        yield from (state for state in states if cached + 1 < state <= min(shared, common))
        again = not has_slots or common >= len(given.ids)
        if again and not cached and step.cached is not None and common >= PAGES:
            yield common
        if any(map(_is_loss, step.events)):
            return


def _is_loss(event: Event) -> bool:
    return event.name().endswith(("evicted", "dropped", "trimmed"))


def _equal(step: Step) -> int:
    return 0 if step.explanation is None else min(step.explanation.equal, step.size)


def _checkpoints(played: Run, index: int) -> Iterable[int]:
    slot = played.steps[index].slot
    before = [step for step in played.steps[:index] if step.slot == slot]
    return (checkpoint.n_tokens for checkpoint in before[-1].checkpoints) if before else ()


def _unnumbered(text: str) -> str:
    return re.sub(r"\d+", "N", text)


def made_small(
    cause: Cause,
    sighting: Sighting,
    profile: Profile,
    arithmetic: ArithmeticName,
    find: Find,
    *,
    fits: Callable[[Scenario], bool] = lambda _: True,
    trials: int | None = None,
) -> Counterexample:
    """The smallest workload found that still shows the cause."""
    oracles, whole = Oracles(), fits(sighting.scenario)

    def shows(candidate: Scenario) -> bool:
        try:
            if whole and not fits(candidate):  # else what is left of it may fit
                return False
            trial = _played(candidate, profile, arithmetic, oracles, find)
            if find != "lost" and trial.finding is None:
                return False
            return cause in causes(
                candidate, profile, arithmetic, find, trial=trial, oracles=oracles
            )
        except InputError:  # what was simplified no longer fits together
            return False

    seen = Finding(kind=cause.kind, step=sighting.step, detail=sighting.detail)
    most = trials_for(seen, trials or TRIALS)
    smallest = shrink(sighting.scenario, shows, trials=most)
    trial = _played(smallest, profile, arithmetic, oracles, find)
    step, detail = causes(smallest, profile, arithmetic, find, trial=trial)[cause]
    plain = Finding(kind=cause.kind, step=step, detail=detail)
    alike = (finding for finding in trial.findings if replace(finding, due=0) == plain)
    finding = next(alike, plain)
    about = f"Found by search on {profile}: {cause}; {detail.rstrip('.')}."
    expected = expected_of(finding)
    if find == "lost":  # no law is broken: the step is to reuse more
        cached = run(smallest, profile, arithmetic=arithmetic).steps[step].cached or 0
        least = (cached + 1 if n == step else "any" for n in range(len(smallest.step)))
        expected = (Expect(least=tuple(least)),)
    return Counterexample(
        number=sighting.number,
        finding=finding,
        scenario=replace(smallest, about=about, expect=expected),
        arithmetic=arithmetic,
    )


T = TypeVar("T")

CHUNK: Final = 25
"""Workloads per task of a process: a fraction of a second's work."""


def search_by(
    pool: Executor,
    ahead: int,
    profile: Profile,
    model: str,
    *,
    examples: int,
    going: Callable[[Report], bool] = lambda _: True,
    **how: Any,
) -> Report:
    """Search as `search` does, with a number of chunks in flight."""
    tasks = _chunks(partial(search, profile, model, **how), examples)
    return search_joined(pool, ahead, Report(profile=profile, model=model), tasks, going)


def search_joined(
    pool: Executor,
    ahead: int,
    report: Report,
    tasks: Iterator[Callable[[], Report]],
    going: Callable[[Report], bool],
) -> Report:
    """The report with those of searches in their order, up to the first counterexample."""

    def goes_on() -> bool:
        return report.counterexample is None and going(report)

    for part in in_order(tasks, pool, ahead, goes_on):
        report.join(part)
    return report


def survey_by(
    pool: Executor,
    profile: Profile,
    model: str,
    *,
    examples: int,
    going: Callable[[Report], bool] = lambda _: True,
    ahead: int = 4,
    **how: Any,
) -> Survey:
    """Survey as `survey` does; the first workload of each cause is the same."""
    tasks = _chunks(partial(survey, profile, model, **how), examples)
    found = Survey(report=Report(profile=profile, model=model))
    return survey_joined(pool, ahead, found, tasks, going)


def survey_joined(
    pool: Executor,
    ahead: int,
    found: Survey,
    tasks: Iterator[Callable[[], Survey]],
    going: Callable[[Report], bool],
) -> Survey:
    """The survey with several others, in their order."""
    for part in in_order(tasks, pool, ahead, lambda: going(found.report)):
        found.join(part)
    return found


def _chunks(play: Callable[..., T], examples: int) -> Iterator[Callable[[], T]]:
    for first in range(0, examples, CHUNK):
        yield partial(play, examples=min(CHUNK, examples - first), first=first)


def in_order(
    tasks: Iterator[Callable[[], T]], pool: Executor, ahead: int, going: Callable[[], bool]
) -> Iterator[T]:
    """The results of tasks in their order, with some of them in flight."""
    under_way: deque[Future[T]] = deque()
    while going():
        while len(under_way) <= ahead and (task := next(tasks, None)) is not None:
            under_way.append(pool.submit(task))
        if not under_way:
            break
        yield under_way.popleft().result()
    for left in under_way:
        left.cancel()
