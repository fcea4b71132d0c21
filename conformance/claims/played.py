"""A run with all that it went through, as the checks need it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from cachesim.engines.family import Profile
from cachesim.model.trace import Fault
from cachesim.play import session as sessions
from cachesim.play.result import Run, Step
from cachesim.play.runner import Verifier, step_of
from cachesim.play.session import Record, Session
from cachesim.play.statements import side_by_side, with_statements
from cachesim.scenario import full_profile
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Scenario
from cachesim.typed import of_kind
from cachesim.units import Tokens
from cachesim.verify.oracle import Oracle
from conformance.claims.watched import Watch, Watched

NOTHING: Final[tuple[Tokens, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The steps of one run beside their raw records, and the wrong memories that were traced."""

    scenario: str
    profile: str
    steps: tuple[Step, ...]
    records: tuple[Record, ...]
    faults: tuple[Fault | None, ...]
    oracle: Oracle
    padding: int | None
    flags: Mapping[str, Any]  # that the server was started with
    watch: Watch  # the cells that queries attended to
    beside: "tuple[Played, ...]" = ()  # the same scenario on other profiles

    def held_before(self, index: int) -> tuple[Tokens, ...]:
        """The content of slots and prompt cache at the arrival of a step's group."""
        mine = self.records[index].snapshot
        earlier = [record for record in self.records[:index] if record.snapshot is not mine]
        return earlier[-1].holds if earlier else NOTHING

    @property
    def run(self) -> Run:
        return Run(
            scenario=self.scenario,
            profile=self.profile,
            as_expected=True,
            steps=self.steps,
            arithmetic="ring",
            mismatches=(),
        )


def play(scenario: Scenario, profile: Profile) -> Played:
    """Play a scenario in ring arithmetic, traced; in float where the model recalls facts."""
    with patch.object(sessions, "Traced", Watched):
        session = Session(
            scenario,
            profile,
            arithmetic="float" if spec_of(scenario.model).recall else "ring",
            traced=True,
        )
    oracle = Oracle(session.network)
    verifier = Verifier(session, oracle)
    records, steps, faults, leaks = [], [], [], []
    for record in session.run():
        evidence = verifier.judge(record)
        records.append(record)
        steps.append(step_of(record, evidence))
        faults.append(evidence.fault)
        leaks.append(evidence.leak)
    return Played(
        scenario=scenario.name,
        profile=str(profile),
        steps=with_statements(steps, records, leaks if session.recalls else None),
        records=tuple(records),
        faults=tuple(faults),
        oracle=oracle,
        padding=None if session.engine.padding is None else int(session.engine.padding),
        flags=scenario.engine.options,
        watch=of_kind(Watched, session.trace).watch,
    )


def all_profiles(scenario: Scenario, most: int | None = None) -> Iterator[Played]:
    """A scenario on the profiles it lists, each step knowing where another did better.

    Of `most` profiles: the last ones, and the first.
    """
    names = scenario.engine.profiles
    if most is not None and len(names) > most:
        names = (names[0], *names[1 - most :])
    played = [play(scenario, full_profile(scenario.engine.name, name)) for name in names]
    beside = side_by_side([each.run for each in played])
    for one, run in zip(played, beside, strict=True):
        yield replace(one, steps=run.steps, beside=tuple(played))
