"""One workload on several engines: what each reused, lost, answered wrong and holds at the end.

rows      each names a profile, its options, and a model where the workload's is not meant
bound     what no cache can beat: all that was computed before, but for the last token
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cachesim.engines.family import FAMILIES
from cachesim.engines.held import Held, sizes_of
from cachesim.engines.profile import Profile
from cachesim.errors import CachesimError, ScenarioError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.spec import ModelSpec
from cachesim.scenario.format import Model, Scenario, Server
from cachesim.scenario.session import Session
from cachesim.verify.ideal import IdealCache
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge

BOUND: Final = "no cache can beat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A policy: an engine at a release, with options; `model` replaces the workload's."""

    name: str
    profile: str
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Model | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a row made of the workload; `problem` says why it was not played."""

    name: str
    cached: tuple[int | None, ...] = ()
    asked: int = 0  # tokens of all prompts
    lost: Mapping[str, int] = field(default_factory=dict)  # cause -> tokens
    wrong: int | None = None  # answers that differ; None: not judged
    bytes: int | None = None
    problem: str = ""

    @property
    def reused(self) -> int:
        """Tokens reused in all."""
        return sum(each or 0 for each in self.cached)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON shows it."""
        return {
            "name": self.name,
            "cached": list(self.cached),
            "reused": self.reused,
            "prompt_tokens": self.asked,
            "lost": dict(self.lost),
            "wrong": self.wrong,
            "bytes": self.bytes,
            "problem": self.problem or None,
        }


def newest(*, releases: bool = False) -> tuple[Row, ...]:
    """Every engine at its newest release, or at each of its releases, with its own defaults."""
    rows = []
    for family in FAMILIES.values():
        chosen = family.releases if releases else family.releases[-1:]
        rows += [
            Row(name=f"{family.name}@{each.name}", profile=f"{family.name}@{each.name}")
            for each in chosen
        ]
    return tuple(rows)


def compare(
    scenario: Scenario,
    rows: Sequence[Row],
    *,
    arithmetic: ArithmeticName = "ring",
    verify: bool = True,
) -> Iterator[Compared]:
    """Play the workload on each row, the bound first."""
    bound: Compared | None = None
    waiting: list[Compared] = []
    for row in rows:
        found, ideal = _play(scenario, row, arithmetic, verify=verify)
        if bound is None and ideal is not None:
            bound = ideal
            yield bound
            yield from waiting
        if bound is None:
            waiting.append(found)
        else:
            yield found
    if bound is None:
        yield from waiting


def _play(
    scenario: Scenario, row: Row, arithmetic: ArithmeticName, *, verify: bool
) -> tuple[Compared, Compared | None]:
    profile = Profile.parse(row.profile)
    server = Server(
        name=profile.engine,
        profiles=(str(profile).partition("@")[2],),
        options=dict(row.options),
    )
    steps = tuple(replace(step, slot=-1) for step in scenario.step)
    asked = replace(
        scenario, engine=server, model=row.model or scenario.model, expect=(), step=steps
    )
    try:
        session = Session(asked, profile, arithmetic=arithmetic, looks=False)
        return _run(row.name, session, verify=verify and arithmetic != "counts")
    except ScenarioError as error:
        return Compared(name=row.name, problem=error.problems[0]), None
    except CachesimError as error:
        return Compared(name=row.name, problem=str(error)), None


def _run(name: str, session: Session, *, verify: bool) -> tuple[Compared, Compared | None]:
    oracle, ideal = Oracle(session.network), IdealCache()
    cached: list[int | None] = []
    best: list[int | None] = []
    lost: Counter[str] = Counter()
    wrong = asked = 0
    for record in session.run():
        reply = record.reply
        if reply is None or reply.error is not None or not reply.prompt:
            continue
        asked += len(reply.prompt)
        cached.append(reply.cached)
        known = int(ideal.common(reply.prompt, reply.strengths))
        best.append(max(0, min(known, len(reply.prompt) - 1)))
        ideal.remember(reply)
        for loss in reply.losses:
            lost[loss.rule] += loss.before - loss.after
        if verify:
            verdict = judge(reply, oracle)
            wrong += verdict is not None and verdict.answer == "diverged"
    found = Compared(
        name=name,
        cached=tuple(cached),
        asked=asked,
        lost=lost,
        wrong=wrong if verify else None,
        bytes=_bytes_of(session.engine.held(), session.network.spec),
    )
    return found, Compared(name=BOUND, cached=tuple(best), asked=asked)


def _bytes_of(held: Held, spec: ModelSpec) -> int | None:
    """What an engine holds: keys and values in half precision, states in single, parked entries.

    None where it does not show what it holds.
    """
    if held == Held():
        return None
    attention, window, state = sizes_of(spec)
    token = {"attention": attention, "window": window}
    cells = sum(token[part.part] * sum(r.count for r in part.runs) for part in held.cells)
    rows = state * len(held.rows)
    saved = sum(state for slot in held.slots for _ in slot.checkpoints)
    return cells + rows + saved + sum(entry.size for entry in held.entries)
