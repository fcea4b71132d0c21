"""Search for a workload whose answer is wrong, or that breaks an invariant."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, islice
from typing import Any, Final, TypeAlias, TypeVar

from cachesim.engines.family import Profile
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import preset
from cachesim.play.findings import Finding, Trial, judge_session, play
from cachesim.play.loop import FOREVER
from cachesim.play.session import Session
from cachesim.scenario.checks import COMPANIONS, spec_of
from cachesim.scenario.format import Expect, Kind, Scenario, Step
from cachesim.testing.around import Around
from cachesim.testing.facts import neighbours, with_facts
from cachesim.testing.guided import Guided
from cachesim.testing.workloads import (
    DEFAULT,
    FIRST_WORD,
    Seeded,
    Shape,
    draw_workload,
    is_thin,
    turn_of,
    words_of,
)
from cachesim.verify.oracle import Oracles

# Make a workload smaller while it still shows what it showed.
#
# Fewer steps, fewer flags, shorter prompts, plainer tokens: every simplification that keeps the
# finding is kept, until none does. Tokens are cut out of all prompts at once, for what prompts
# share must stay shared.

T = TypeVar("T")
Holds: TypeAlias = Callable[[Scenario], bool]

TRIALS: Final = 800


def shrink(scenario: Scenario, holds: Holds, *, trials: int = TRIALS) -> Scenario:
    """The smallest scenario found for which the property still holds."""
    smallest = descend(scenario, simpler, holds, trials=trials)
    names = {step.name: f"r{number}" for number, step in enumerate(smallest.step)}
    return _with_steps(
        smallest,
        tuple(
            replace(step, name=names[step.name], of=names.get(step.of or ""))
            for step in smallest.step
        ),
    )


def descend(
    value: T,
    simpler_than: Callable[[T], Iterable[T]],
    holds: Callable[[T], bool],
    *,
    trials: int,
) -> T:
    """Keep every simplification for which the property holds, until none does.

    Greedy and repeated: after each success the simplifications are drawn again.
    """
    left, smaller = trials, True
    while smaller and left > 0:
        smaller = False
        for candidate in simpler_than(value):
            left -= 1
            if holds(candidate):
                value, smaller = candidate, True
                break
            if left <= 0:
                break
    return value


def simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Simplifications, the largest first."""
    yield from _fewer_steps(scenario)
    yield from _fewer_flags(scenario)
    yield from _shorter_prompts(scenario)
    yield from _shorter_spans(scenario)
    yield from _shorter_chats(scenario)
    yield from _plainer_steps(scenario)
    yield from _plainer_tokens(scenario)


def _fewer_steps(scenario: Scenario) -> Iterator[Scenario]:
    steps = scenario.step
    size = len(steps) // 2
    while size:
        for first in range(len(steps) - size, -1, -1):
            rest = steps[:first] + steps[first + size :]
            if rest and rest[0].do == "complete":
                led = (replace(rest[0], with_previous=False), *rest[1:])
                yield _with_steps(scenario, _without_lost_cancels(led))
        size //= 2


def _without_lost_cancels(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps without cancels whose request was removed or no longer directly precedes them."""
    kept: list[Step] = []
    together: set[str] = set()
    for step in steps:
        if step.do == "cancel":
            if step.of not in together and (step.of or not together):
                continue
        elif not step.with_previous:
            together = set()
        if step.do == "complete":
            together.add(step.name)
        kept.append(step)
    return tuple(kept)


def _fewer_flags(scenario: Scenario) -> Iterator[Scenario]:
    endless = any((step.predict or 0) < 0 for step in scenario.step)
    for flag in scenario.engine.options:
        if flag == "ctx_size" and endless:
            continue  # such a request runs to the end of the context
        rest = {key: value for key, value in scenario.engine.options.items() if key != flag}
        fewer = replace(scenario, engine=replace(scenario.engine, options=rest))
        if flag in COMPANIONS:  # without a drafter the steps have no drafts
            fewer = _with_steps(fewer, tuple(replace(step, drafts=None) for step in fewer.step))
        yield fewer
    if scenario.model.window:
        yield replace(scenario, model=replace(scenario.model, window=None))
    if scenario.model.family:
        yield replace(scenario, model=replace(scenario.model, family=None))
    for name in scenario.models:
        rest = {key: model for key, model in scenario.models.items() if key != name}
        first = (replace(e, model="" if e.model == name else e.model) for e in scenario.step)
        yield replace(_with_steps(scenario, tuple(first)), models=rest)


def _shorter_prompts(scenario: Scenario) -> Iterator[Scenario]:
    longest = max(len(step.ids) for step in scenario.step)
    has_prompt = [isinstance(step.prompt, tuple) for step in scenario.step]
    size = longest // 2
    while size:
        for first in range(0, longest, size):
            cut = tuple(
                replace(step, prompt=step.ids[:first] + step.ids[first + size :])
                if wanted
                else step
                for step, wanted in zip(scenario.step, has_prompt, strict=True)
            )
            pairs = zip(scenario.step, cut, strict=True)
            if not any(one.ids and not other.ids for one, other in pairs):
                yield _with_steps(scenario, cut)
        size //= 2
    for index, step in enumerate(scenario.step):
        size = len(step.ids) // 2 if has_prompt[index] else 0
        while size:
            yield _changed(scenario, index, replace(step, prompt=step.ids[:-size]))
            size //= 2


def _shorter_spans(scenario: Scenario) -> Iterator[Scenario]:
    """Shorter texts beside images, which keep a token; without images there are no spans."""
    for name, tokens in scenario.spans.items():
        size = len(tokens) // 2 if isinstance(tokens, tuple) else 0
        while size and isinstance(tokens, tuple):
            yield replace(scenario, spans={**scenario.spans, name: tokens[:-size]})
            yield replace(scenario, spans={**scenario.spans, name: tokens[size:]})
            size //= 2
    used = {word for step in scenario.step for word in str(step.prompt).split()}
    kept = {n: span for n, span in scenario.spans.items() if n in used or n in scenario.images}
    if len(kept) < len(scenario.spans):
        yield replace(scenario, spans=kept)


def _shorter_chats(scenario: Scenario) -> Iterator[Scenario]:
    """Chats without one message, the same one in all; then with shorter messages."""
    for index in range(max(len(step.messages) for step in scenario.step)):
        fewer = tuple(
            replace(step, messages=step.messages[:index] + step.messages[index + 1 :])
            if len(step.messages) > 1
            else step
            for step in scenario.step
        )
        if fewer != scenario.step:
            yield _with_steps(scenario, fewer)
    turns = dict.fromkeys(turn for step in scenario.step for turn in step.messages)
    for turn in turns:
        tokens = words_of(turn)
        size = len(tokens) // 2
        while size:
            shorter = turn_of(turn.role, tokens[:-size])
            yield _with_steps(
                scenario,
                tuple(
                    replace(
                        step,
                        messages=tuple(
                            shorter if message == turn else message for message in step.messages
                        ),
                    )
                    for step in scenario.step
                ),
            )
            size //= 2


def _plainer_steps(scenario: Scenario) -> Iterator[Scenario]:
    for index, step in enumerate(scenario.step):
        if step.do != "complete":
            if (step.turns or 0) > 1:
                yield _changed(scenario, index, replace(step, turns=1))
            continue
        for change in _plainer(step):
            if replace(step, **change) != step:
                yield _changed(scenario, index, replace(step, **change))
                if not step.with_previous:
                    yield from _changed_together(scenario, index, change)


def _plainer(step: Step) -> Iterator[dict[str, Any]]:
    """Simplified fields of a step."""
    reply, predict = step.reply, step.predict
    if step.leaves is not None:
        yield {"leaves": None, "held": None}
    if reply is not None:
        yield {"reply": reply[:1]}
        yield {"reply": reply[: len(reply) // 2] or reply[:1]}
        yield {"reply": reply[:-1] or reply}
    if predict is not None:
        yield {"predict": min(predict, 1) if predict >= 0 else 1}
        yield {"predict": predict // 2 if predict > 1 else predict}
    yield {"drafts": None}
    yield {"drafts": (step.drafts or ())[:-1] or None}
    yield {"with_previous": False}
    yield {"slot": -1}
    yield {"cache_prompt": True}
    yield {"options": {}}
    yield {"model": ""}


def _changed_together(
    scenario: Scenario, first: int, change: Mapping[str, Any]
) -> Iterator[Scenario]:
    """The change in all steps of one call, which share parameters on a real server."""
    steps = list(scenario.step)
    end = first + 1
    while end < len(steps) and steps[end].with_previous and not steps[end].turns:
        end += 1
    if end > first + 1 and all(step.do == "complete" for step in steps[first:end]):
        steps[first:end] = [replace(step, **change) for step in steps[first:end]]
        yield _with_steps(scenario, tuple(steps))


def _plainer_tokens(scenario: Scenario) -> Iterator[Scenario]:
    """Renumber tokens in the order of their first occurrence; equal ones stay equal."""
    texts = scenario.images or any(step.messages for step in scenario.step)
    if texts or spec_of(scenario.model).recall:
        return
    names: dict[int, int] = {}
    for step in scenario.step:
        for token in _tokens_of(step):
            names.setdefault(int(token), FIRST_WORD + len(names))
    if all(old == new for old, new in names.items()) or max(names.values()) >= 512:
        return
    yield _with_steps(
        scenario,
        tuple(
            replace(
                step,
                prompt=tuple(names[token] for token in step.ids),
                reply=step.reply and tuple(names[int(token)] for token in step.reply),
                drafts=step.drafts
                and tuple(tuple(names[int(token)] for token in draft) for draft in step.drafts),
            )
            if step.do == "complete"
            else step
            for step in scenario.step
        ),
    )


def _tokens_of(step: Step) -> Iterator[int]:
    yield from step.ids
    yield from map(int, step.reply or ())
    for draft in step.drafts or ():
        yield from map(int, draft)


def _changed(scenario: Scenario, index: int, step: Step) -> Scenario:
    steps = (*scenario.step[:index], step, *scenario.step[index + 1 :])
    return _with_steps(scenario, _without_lost_cancels(steps))


def _with_steps(scenario: Scenario, steps: tuple[Step, ...]) -> Scenario:
    return replace(scenario, step=steps)


def playable(scenario: Scenario, profile: Profile) -> bool:
    """True if a profile accepts a scenario (a simplified one may not fit its options)."""
    try:
        Session(scenario, profile, arithmetic="ring")
    except InputError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A failing workload, and the smallest one found that still fails."""

    number: int
    finding: Finding
    scenario: Scenario
    arithmetic: ArithmeticName


@dataclass(slots=True, kw_only=True)
class Report:
    """Counts of a search."""

    profile: Profile
    model: str
    workloads: int = 0
    requests: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    exercised: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)  # workloads, by their first finding
    counterexample: Counterexample | None = None
    rate: float = 0.0  # workloads a second, measured by the caller

    @property
    def seconds(self) -> float:
        """Seconds of the run, by the rate."""
        return self.workloads / self.rate if self.rate else 0.0

    def add(self, scenario: Scenario, trial: Trial) -> None:
        """Count a workload."""
        self.workloads += 1
        self.requests += trial.requests
        self.cached_tokens += sum(cached or 0 for cached in trial.cached)
        self.prompt_tokens += sum(len(step.prompt or ()) for step in scenario.step)
        self.exercised.update(trial.exercised)
        if trial.finding is not None:
            self.failed[trial.finding.kind] += 1

    def join(self, other: "Report") -> None:
        """Add the counts of another search."""
        self.workloads += other.workloads
        self.requests += other.requests
        self.cached_tokens += other.cached_tokens
        self.prompt_tokens += other.prompt_tokens
        self.exercised.update(other.exercised)
        self.failed.update(other.failed)
        self.counterexample = self.counterexample or other.counterexample


def workloads(
    profile: Profile, model: str, *, seed: int = 0, first: int = 0, shape: Shape = DEFAULT
) -> Iterator[Scenario]:
    """The workloads of a seed from an index on, without end."""
    for number in count(first):
        draws = Seeded(f"{profile.engine} {model} {seed} {number}")
        drawn = draw_workload(draws, profile, model, shape, name=f"{model}-{seed}-{number}")
        if preset(model).recall:
            steps = neighbours(draws) if number % 2 else drawn.step
            drawn = replace(drawn, step=tuple(with_facts(steps, draws)))
        yield drawn


Numbered: TypeAlias = tuple[int, Scenario]
Tried: TypeAlias = tuple[int, Scenario, Trial]


def search(
    profile: Profile,
    model: str,
    *,
    examples: int | None = None,
    seed: int = 0,
    first: int = 0,
    arithmetic: ArithmeticName = "ring",
    shape: Shape = DEFAULT,
    among: Iterable[Numbered] | None = None,
    only: Kind | None = None,
    going: Callable[[Report], bool] = lambda _: True,
) -> Report:
    """Run workloads until one fails, all are run, or `going` is false.

    >>> from cachesim import Profile
    >>> from cachesim.testing import search
    >>> report = search(Profile.parse("llama.cpp@b11549"), "dense", examples=2)
    >>> report.workloads, report.counterexample
    (2, None)
    """
    report = Report(profile=profile, model=model)
    tried = trials(
        profile,
        model,
        seed=seed,
        first=first,
        arithmetic=arithmetic,
        shape=shape,
        among=among,
        only=only,
    )
    left = islice(tried, examples)
    while going(report) and (one := next(left, None)) is not None:
        number, scenario, trial = one
        report.add(scenario, trial)
        if trial.finding is not None:
            report.counterexample = reduced(number, scenario, trial.finding, profile, arithmetic)
            break
    return report


def trials(
    profile: Profile,
    model: str,
    *,
    seed: int = 0,
    first: int = 0,
    arithmetic: ArithmeticName = "ring",
    shape: Shape = DEFAULT,
    among: Iterable[Numbered] | None = None,
    stop_early: bool = True,
    only: Kind | None = None,
) -> Iterator[Tried]:
    """Workloads with their outcomes: those of a seed from an index on, without end, or these.

    The latter are run on all layers.
    """
    how: dict[str, Any] = {"arithmetic": arithmetic, "stop_early": stop_early, "only": only}
    oracles = Oracles()
    if shape.guided and among is None:
        for number in count(first):
            begin = Around if shape.around else Guided
            client = begin(profile, model, number, seed=seed, shape=shape, arithmetic=arithmetic)
            records = chain.from_iterable(client.run())
            trial = judge_session(
                client.session, records, oracles, stop_early=stop_early, only=only
            )
            if trial.findings and client.thin:
                trial = play(client.scenario, profile, oracles=oracles, **how)
            yield number, client.scenario, trial
    drawn = workloads(profile, model, seed=seed, first=first, shape=shape)
    for number, scenario in enumerate(drawn, first) if among is None else among:
        at = number if among is None else 0
        yield number, scenario, trial_of(at, scenario, profile, oracles=oracles, **how)


def trial_of(
    number: int,
    scenario: Scenario,
    profile: Profile,
    *,
    arithmetic: ArithmeticName,
    stop_early: bool = True,
    oracles: Oracles | None = None,
    only: Kind | None = None,
) -> Trial:
    """Run a workload on one layer of each kind; findings are confirmed on all layers.

    A cache takes the same decisions for more layers of a kind, which only make the network slow.
    The replies of a workload are given, so the network does not affect its later steps. A leak
    needs a wrong answer, which ring arithmetic shows sooner.
    """
    if only == "leak":
        trial = play(scenario, profile, arithmetic="ring")
        if trial.finding is None:
            return trial
    played = partial(
        play,
        scenario,
        profile,
        arithmetic=arithmetic,
        stop_early=stop_early,
        oracles=oracles,
        only=only,
    )
    if is_thin(number, scenario, profile):
        trial = played(thin=True)
        if trial.finding is None:
            return trial
    return played()


def trials_for(finding: Finding, most: int) -> int:
    """Simplifications tried of a workload: none where each try would compute to its bound."""
    return 0 if finding.detail == FOREVER else most


def reduced(
    number: int,
    scenario: Scenario,
    finding: Finding,
    profile: Profile,
    arithmetic: ArithmeticName,
) -> Counterexample:
    """The smallest workload found with the same kind of failure."""
    oracles = Oracles()
    only: Kind | None = "leak" if finding.kind == "leak" else None

    def shows(candidate: Scenario) -> bool:
        try:
            trial = play(candidate, profile, arithmetic=arithmetic, oracles=oracles, only=only)
        except InputError:  # what was simplified no longer fits together
            return False
        return finding.same_kind(trial.finding)

    smallest = shrink(scenario, shows, trials=trials_for(finding, TRIALS))
    whole = play(smallest, profile, arithmetic=arithmetic, stop_early=False, only=only)
    shown = whole.finding or finding
    about = f"Found by search on {profile}: {shown.detail.rstrip('.')}."
    return Counterexample(
        number=number,
        finding=shown,
        scenario=replace(smallest, about=about, expect=expected_of(shown)),
        arithmetic=arithmetic,
    )


def expected_of(finding: Finding) -> tuple[Expect, ...]:
    """The expectation of a counterexample, which fails until the defect is fixed.

    Other kinds of defects of the same workload are left to files of their own.
    """
    kind = finding.kind
    answer = None if kind in {"wrong answer", "leak"} else "any"
    error = None if kind in {"crash", "refusal"} else "any"
    return (Expect(finding=kind, answer=answer, error=error),)


# Two profiles on the same workloads: which reuses more, and which answers wrong.


@dataclass(slots=True, kw_only=True)
class Side:
    """The totals of one profile."""

    profile: Profile
    cached: int = 0
    wrong: int = 0
    crashed: int = 0
    more: int = 0  # requests of which this side reused more than the other
    first_wrong: Scenario | None = None

    def add(self, scenario: Scenario, trial: Trial, other: Trial) -> None:
        """Count a workload."""
        self.cached += sum(cached or 0 for cached in trial.cached)
        self.wrong += trial.wrong
        self.crashed += trial.finding is not None and trial.finding.kind == "crash"
        pairs = zip(trial.cached, other.cached, strict=False)
        self.more += sum((mine or 0) > (theirs or 0) for mine, theirs in pairs)
        if trial.wrong and self.first_wrong is None:
            self.first_wrong = scenario


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Totals of both sides over the same requests."""

    one: Side
    other: Side
    workloads: int = 0
    requests: int = 0
    prompt_tokens: int = 0

    @property
    def verdict(self) -> tuple[str, str]:
        """The comparison in words: reuse and correctness."""
        one, other = self.one, self.other
        more = other.cached - one.cached
        share = f"{100 * abs(more) / max(1, self.prompt_tokens):.2f} % of all"
        better = "as many tokens"
        if more:
            better = f"{counted(abs(more), 'token')} {'more' if more > 0 else 'fewer'} ({share})"
        if other.wrong == one.wrong:
            safe = f"{other.wrong} from each profile"
        else:
            safe = f"{one.wrong} from {one.profile}, {other.wrong} from {other.profile}"
        return f"{other.profile} reuses {better}.", f"Wrong answers: {safe}."


def compare(
    one: Profile,
    other: Profile,
    model: str,
    *,
    examples: int,
    seed: int = 0,
    arithmetic: ArithmeticName = "ring",
    shape: Shape = DEFAULT,
    going: Callable[[Comparison], bool] = lambda _: True,
) -> Comparison:
    """Run the same workloads on both; those that only one accepts are left out."""
    comparison = Comparison(one=Side(profile=one), other=Side(profile=other))
    for scenario in islice(workloads(one, model, seed=seed, shape=shape), examples):
        if not going(comparison):
            break
        if not playable(scenario, other):
            continue
        trials = [
            trial_of(
                comparison.workloads, scenario, profile, arithmetic=arithmetic, stop_early=False
            )
            for profile in (one, other)
        ]
        comparison.workloads += 1
        comparison.requests += trials[0].requests
        comparison.prompt_tokens += sum(len(step.prompt or ()) for step in scenario.step)
        comparison.one.add(scenario, *trials)
        comparison.other.add(scenario, *reversed(trials))
    return comparison
