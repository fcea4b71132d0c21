"""One workload played and judged: what was found, and what was exercised on the way."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from cachesim.engines.base import Reply
from cachesim.engines.events import Event
from cachesim.engines.family import family_of
from cachesim.engines.profile import Profile
from cachesim.errors import ContractError, InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.scenario.format import Scenario
from cachesim.scenario.session import ABORTED, CANCELLED, ENDLESS, Record, Session
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
"""What a search says it has exercised; each engine says which of its events count for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was wrong, and with which step."""

    kind: Kind
    step: int
    detail: str

    def same_kind(self, other: "Finding | None") -> bool:
        """Whether another one is of this kind: what a smaller workload must still show."""
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
    for kind, count in kinds.items():
        word = words.get(kind.name())
        if word is not None:
            exercised[word] += count


def playable(scenario: Scenario, profile: Profile) -> bool:
    """Whether a profile takes a scenario at all (a simplified one may not fit its options)."""
    try:
        Session(scenario, profile, arithmetic="ring")
    except InputError:
        return False
    return True
