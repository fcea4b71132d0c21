"""Search for a workload whose answer is wrong, or that breaks an invariant."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count, islice
from typing import Final, Literal, TypeAlias

from cachesim.engines.base import Reply
from cachesim.engines.events import Event
from cachesim.engines.family import Profile, family_of
from cachesim.errors import ContractError, InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.session import ABORTED, CANCELLED, ENDLESS, Record, Session
from cachesim.scenario.format import Expect, Scenario
from cachesim.testing.shrink import shrink
from cachesim.testing.workloads import DEFAULT, Seeded, Shape, draw_workload
from cachesim.verify.oracle import Oracle, Oracles
from cachesim.verify.verdict import judge

Kind: TypeAlias = Literal["wrong answer", "broken invariant", "crash", "lost reuse"]

EXERCISED: Final = (
    "restore",
    "checkpoint",
    "eviction",
    "load",
    "save",
    "shift",
    "rollback",
    "worker death",
    "full reprocessing",
    "cancel",
)
"""Exercised features that a search counts; each engine maps its events to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A wrong answer, broken invariant or crash, and its step."""

    kind: Kind
    step: int
    detail: str

    def same_kind(self, other: "Finding | None") -> bool:
        """True if another one is of this kind: a smaller workload must still show it."""
        return other is not None and other.kind == self.kind


@dataclass(slots=True, kw_only=True)
class Trial:
    """The outcome of one workload."""

    findings: list[Finding] = field(default_factory=list)
    requests: int = 0
    cached: list[int | None] = field(default_factory=list)
    wrong: int = 0
    exercised: Counter[str] = field(default_factory=Counter)

    @property
    def finding(self) -> Finding | None:
        """The first thing that was wrong."""
        return self.findings[0] if self.findings else None


def play(
    scenario: Scenario,
    profile: Profile,
    *,
    arithmetic: ArithmeticName = "ring",
    stop_early: bool = True,
    oracles: Oracles | None = None,
    thin: bool = False,
) -> Trial:
    """Play a workload; the first thing that is wrong ends it unless told otherwise.

    Plays of workloads that are much alike may share `oracles`: cold answers are computed once.
    With `thin` the network has one layer of each kind that the model has.
    """
    trial = Trial()
    session = Session(scenario, profile, arithmetic=arithmetic, looks=False, thin=thin)
    oracle, family = (oracles or Oracles()).of(session.engine.network), family_of(profile.engine)
    try:
        for record in session.run():
            finding = _look(record, oracle, trial)
            if finding is not None:
                trial.findings.append(finding)
                if stop_early:
                    break
        session.engine.check_integrity()
    except ContractError as error:
        broken = Finding(kind="broken invariant", step=trial.requests, detail=str(error))
        trial.findings.insert(0, broken)
    _count(session.engine.events, trial.exercised, family.exercised)
    return trial


def _look(record: Record, oracle: Oracle, trial: Trial) -> Finding | None:
    step = record.index
    if record.error in {ABORTED, ENDLESS}:
        return Finding(kind="crash", step=step, detail=record.message)
    if record.step.do != "complete":
        return None
    trial.requests += 1
    reply = record.reply
    if reply is None or reply.error is not None:
        trial.exercised["cancel" if record.error == CANCELLED else "refusal"] += 1
        trial.cached.append(None)
        return _broken_batch(record, reply)
    trial.cached.append(reply.cached)
    trial.exercised["reuse"] += bool(reply.cached)
    explained = sum(loss.before - loss.after for loss in reply.losses)
    if explained != reply.equal - (reply.cached or 0):
        detail = f"{reply.equal} equal, {reply.cached} cached, the rules explain {explained}"
        return Finding(kind="broken invariant", step=step, detail=detail)
    verdict = judge(reply, oracle)
    if verdict is None or verdict.answer in {"same", "by-design"}:
        trial.exercised["by design"] += verdict is not None and verdict.answer == "by-design"
        return None
    trial.wrong += 1
    off = f"logits off by {verdict.max_difference:.3g}"
    detail = f"{reply.cached} of {len(reply.prompt)} tokens cached, {off}"
    return Finding(kind="wrong answer", step=step, detail=detail)


def _broken_batch(record: Record, reply: Reply | None) -> Finding | None:
    """A batch that memory calls invalid: the server's books do not agree with its memory."""
    if reply is None or "Invalid input batch" not in reply.message:
        return None
    return Finding(kind="broken invariant", step=record.index, detail=reply.message)


def _count(events: Iterable[Event], exercised: Counter[str], words: Mapping[str, str]) -> None:
    kinds: Counter[type[Event]] = Counter(map(type, events))
    for kind, times in kinds.items():
        word = words.get(kind.name())
        if word is not None:
            exercised[word] += times


def playable(scenario: Scenario, profile: Profile) -> bool:
    """True if a profile takes a scenario at all (a simplified one may not fit its options)."""
    try:
        Session(scenario, profile, arithmetic="ring")
    except InputError:
        return False
    return True


WHOLE: Final = 16
"""Every so many workloads one is played on all layers: a mix-up among them shows only there."""

BYTES: Final = ("bytes", "MiB")
"""Units of flags that set how much memory there is."""

UNLIMITED: Final = (None, 0, -1)
"""Such a flag left out, nothing kept, no limit: whatever the bytes, the decisions are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterexample:
    """A workload that shows something wrong, and the smallest one found that still does."""

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
    counterexample: Counterexample | None = None
    rate: float = 0.0  # workloads a second, as whoever watches the clock measured it

    def add(self, scenario: Scenario, trial: Trial) -> None:
        """Count one more workload."""
        self.workloads += 1
        self.requests += trial.requests
        self.cached_tokens += sum(cached or 0 for cached in trial.cached)
        self.prompt_tokens += sum(len(step.prompt or ()) for step in scenario.step)
        self.exercised.update(trial.exercised)

    def join(self, other: "Report") -> None:
        """Count what another search did after this one."""
        self.workloads += other.workloads
        self.requests += other.requests
        self.cached_tokens += other.cached_tokens
        self.prompt_tokens += other.prompt_tokens
        self.exercised.update(other.exercised)
        self.counterexample = self.counterexample or other.counterexample


def workloads(
    profile: Profile, model: str, *, seed: int = 0, first: int = 0, shape: Shape = DEFAULT
) -> Iterator[Scenario]:
    """The workloads of a seed from a number on, one after another without end."""
    for number in count(first):
        draws = Seeded(f"{profile.engine} {model} {seed} {number}")
        yield draw_workload(draws, profile, model, shape, name=f"{model}-{seed}-{number}")


def search(
    profile: Profile,
    model: str,
    *,
    examples: int,
    seed: int = 0,
    first: int = 0,
    arithmetic: ArithmeticName = "ring",
    shape: Shape = DEFAULT,
    going: Callable[[Report], bool] = lambda _: True,
) -> Report:
    """Play workloads until one shows something wrong, all are played, or told to stop."""
    report = Report(profile=profile, model=model)
    drawn = islice(workloads(profile, model, seed=seed, first=first, shape=shape), examples)
    for number, scenario in enumerate(drawn, first):
        if not going(report):
            break
        trial = look(number, scenario, profile, arithmetic=arithmetic)
        report.add(scenario, trial)
        if trial.finding is not None:
            report.counterexample = reduced(number, scenario, trial.finding, profile, arithmetic)
            break
    return report


def look(
    number: int,
    scenario: Scenario,
    profile: Profile,
    *,
    arithmetic: ArithmeticName,
    stop_early: bool = True,
    oracles: Oracles | None = None,
) -> Trial:
    """Play a workload on one layer of each kind; what it finds has to show on all of them.

    A cache takes the same decisions for more layers of a kind, which only make the network slow.
    The replies of a workload are given, so the network has no say in what comes next.
    """
    played = partial(
        play, scenario, profile, arithmetic=arithmetic, stop_early=stop_early, oracles=oracles
    )
    if number % WHOLE and not weighs(scenario, profile):
        trial = played(thin=True)
        if trial.finding is None:
            return trial
    return played()


def weighs(scenario: Scenario, profile: Profile) -> bool:
    """True if a flag limits memory in bytes, so that the number of layers decides too."""
    given = scenario.engine.options
    return any(given.get(name) not in UNLIMITED for name in _limits(profile.engine))


@cache
def _limits(engine: str) -> tuple[str, ...]:
    table = family_of(engine).table()
    return tuple(each.name for each in table if each.kind == "size" or each.unit in BYTES)


def reduced(
    number: int,
    scenario: Scenario,
    finding: Finding,
    profile: Profile,
    arithmetic: ArithmeticName,
) -> Counterexample:
    """The smallest workload found that shows the same kind of thing."""
    oracles = Oracles()

    def shows(candidate: Scenario) -> bool:
        try:
            trial = play(candidate, profile, arithmetic=arithmetic, oracles=oracles)
        except InputError:  # what was simplified no longer fits together
            return False
        return finding.same_kind(trial.finding)

    smallest = shrink(scenario, shows)
    whole = play(smallest, profile, arithmetic=arithmetic, stop_early=False)
    return Counterexample(
        number=number,
        finding=whole.finding or finding,
        scenario=_expecting_the_cold_answer(smallest, profile, whole),
        arithmetic=arithmetic,
    )


def _expecting_the_cold_answer(scenario: Scenario, profile: Profile, trial: Trial) -> Scenario:
    """The scenario with the cold answer as its expectation: it fails until the bug is fixed."""
    about = f"Found by search on {profile}: {trial.finding.detail if trial.finding else ''}."
    return replace(scenario, about=about, expect=(Expect(answer="same"),))
