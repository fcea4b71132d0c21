"""Searches that `python -m benchmarks bugs` measures: each looks for one defect from one seed.

    random      draws each workload as a whole, with the same corners and incidents
    guided      draws each request from what the server has done, as `cachesim check` does
    hypothesis  Hypothesis draws the workloads of `random`
    scope       all small workloads in their order (`cachesim check --scope`)

Only the profile with the defect is searched, and only its processor time counts, unless the search
compares both profiles. A workload has found the defect if it fails, and the profile without the
defect does not fail at that step.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, TypeAlias

import hypothesis
from hypothesis import strategies as st

from benchmarks.defects import SHAPE, Defect
from cachesim.errors import ContractError, InputError
from cachesim.play.findings import Trial, finding_of
from cachesim.play.result import Run, Step
from cachesim.play.runner import Verifier, step_of
from cachesim.play.session import Record, Session
from cachesim.scenario.format import Scenario
from cachesim.testing.guided import Guided
from cachesim.testing.scope import WholeScope
from cachesim.testing.search import workloads
from cachesim.testing.survey import lost
from cachesim.testing.workloads import Drawn, draw_workload
from cachesim.verify.oracle import Oracle


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search for one defect from one seed."""

    defect: Defect
    seed: int
    seconds: float
    workloads: int
    found: Scenario | None


Method: TypeAlias = Callable[[Defect, int, float], Search]


def random(defect: Defect, seed: int, seconds: float) -> Search:
    """Workloads drawn as a whole."""
    drawn = workloads(defect.profile, defect.model, seed=seed, shape=SHAPE)
    return _among(defect, drawn, seed, seconds)


def scope(defect: Defect, seed: int, seconds: float, requests: int = 3) -> Search:
    """The workloads of a small scope; none where the server of the model has no scope."""

    def small() -> Iterator[Scenario]:
        try:
            whole = WholeScope(profile=defect.profile, model=defect.model, requests=requests)
        except InputError:
            return
        for _, scenario in whole.workloads():
            yield scenario

    return _among(defect, small(), seed, seconds)


def _among(defect: Defect, drawn: Iterator[Scenario], seed: int, seconds: float) -> Search:
    spent, number = 0.0, 0
    found = None
    while found is None and spent < seconds:
        begin = time.process_time()
        scenario = next(drawn, None)
        if scenario is None:
            break
        steps = defect.shown(scenario, number)
        middle = time.process_time()
        if steps and defect.is_own(scenario, steps):
            found = scenario
        spent += (time.process_time() if defect.effect == "less" else middle) - begin
        number += 1
    return Search(defect=defect, seed=seed, seconds=spent, workloads=number, found=found)


class _OverError(Exception):
    """The time of a search is over."""


def with_hypothesis(defect: Defect, seed: int, seconds: float) -> Search:
    """Workloads drawn by Hypothesis, which generates and does not shrink."""
    spent, number = 0.0, 0
    found: list[Scenario] = []
    began = time.process_time()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=1 << 20,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def play(data: st.DataObject) -> None:
        nonlocal began, spent, number
        drawn = draw_workload(Drawn(data.draw), defect.profile, defect.model, SHAPE)
        number += 1
        steps = defect.shown(drawn, number)
        middle = time.process_time()
        if steps and defect.is_own(drawn, steps):
            found.append(drawn)
        now = time.process_time()
        spent += (now if defect.effect == "less" else middle) - began
        began = now
        if found or spent > seconds:
            raise _OverError

    with suppress(_OverError):
        play()
    return Search(
        defect=defect, seed=seed, seconds=spent, workloads=number, found=found[0] if found else None
    )


def guided(defect: Defect, seed: int, seconds: float) -> Search:
    """Workloads drawn while they are played."""
    judging = {"less": _Less, "lost": _Lost}.get(defect.effect, _Failing)
    spent, found = 0.0, None
    number = 0
    for number in count(1):
        judge = judging(defect)
        begin = time.process_time()
        client = Guided(
            defect.profile,
            defect.model,
            number - 1,
            seed=seed,
            shape=SHAPE,
            arithmetic="counts" if defect.effect in {"less", "lost"} else "ring",
            reads_state=defect.effect == "lost",
        )
        try:
            any(judge(client.scenario, client.session, records) for records in client.run())
            if not client.session.ended:
                client.session.engine.check_integrity()
        except ContractError:  # a broken book, which fails at the last step
            steps = client.scenario.step
            judge.found = bool(steps) and judge.check(client.scenario, {len(steps) - 1: 0})
        scenario = client.scenario
        # as `check` confirms it: once more, on all layers
        if judge.found and judge.check(scenario, defect.shown(scenario, 0)):
            found = scenario
        spent += time.process_time() - begin - judge.aside
        if found is not None or spent >= seconds:
            break
    return Search(defect=defect, seed=seed, seconds=spent, workloads=number, found=found)


@dataclass(slots=True)
class _Judge:
    """The judge of one workload; `aside` are seconds that the search would not spend."""

    defect: Defect
    found: bool = False
    aside: float = 0.0

    def check(self, scenario: Scenario, steps: Mapping[int, int]) -> bool:
        """Compare with the profile without the defect."""
        begin = time.process_time()
        own = bool(steps) and self.defect.is_own(scenario, steps)
        self.aside += time.process_time() - begin
        return own

    def __call__(self, scenario: Scenario, session: Session, records: list[Record]) -> bool:
        """True if these records show the defect."""
        raise NotImplementedError


@dataclass(slots=True)
class _Failing(_Judge):
    """A wrong answer, a broken invariant, a crash."""

    trial: Trial = field(default_factory=Trial)
    oracle: Oracle | None = None

    def __call__(self, scenario: Scenario, session: Session, records: list[Record]) -> bool:
        """True if these records show the defect."""
        self.oracle = self.oracle or Oracle(session.engine.network)
        failed = {}
        for record in records:
            finding = finding_of(record, self.oracle, self.trial, scenario.engine.options)
            if finding is None:
                continue
            self.trial.findings.append(finding)
            if (finding.kind in {"crash", "refusal"}) == (self.defect.effect == "crash"):
                failed[finding.step] = 0
        self.found = self.check(scenario, failed)
        return self.found


@dataclass(slots=True)
class _Less(_Judge):
    """Less reuse than on the profile without the defect, which is played beside."""

    control: Session | None = None

    def __call__(self, scenario: Scenario, session: Session, records: list[Record]) -> bool:
        """True if a request of these reused less than on the other profile."""
        steps = [record.step for record in records]
        try:
            if self.control is None:
                self.control = Session(
                    replace(scenario, step=()),
                    self.defect.control,
                    arithmetic="counts",
                    reads_state=False,
                    thin=True,
                )
            self.control.vocabulary.spans |= session.vocabulary.spans  # of drawn images
            others = self.control.send(steps)
        except (InputError, ContractError):  # not a workload of both
            return True
        pairs = zip(records, others, strict=True)
        self.found = any(_cached(other) > _cached(one) for one, other in pairs if one.reply)
        return self.found or self.control.ended


def _cached(record: Record) -> int:
    return 0 if record.reply is None or record.reply.cached is None else record.reply.cached


@dataclass(slots=True)
class _Lost(_Judge):
    """Lost reuse that the search reports by itself."""

    steps: list[Step] = field(default_factory=list)
    verifier: Verifier | None = None

    def __call__(self, scenario: Scenario, session: Session, records: list[Record]) -> bool:
        """True if these records show the defect."""
        self.verifier = self.verifier or Verifier(session)
        new = [step_of(record, self.verifier.judge(record)) for record in records]
        self.steps += new
        if not any(loss.after < loss.before for step in new for loss in step.why):
            return False
        run = Run(
            scenario=scenario.name,
            profile=str(self.defect.profile),
            as_expected=True,
            steps=tuple(self.steps),
            mismatches=(),
            arithmetic="counts",
        )
        shown = {at: self.steps[at].cached or 0 for _, at, _ in lost(run, scenario)}
        first = records[0].index
        self.found = self.check(scenario, {at: n for at, n in shown.items() if at >= first})
        return self.found


METHODS: Final[Mapping[str, Method]] = {
    "random": random,
    "guided": guided,
    "hypothesis": with_hypothesis,
    "scope": scope,
}
