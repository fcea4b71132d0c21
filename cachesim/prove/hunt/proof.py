"""Proof of a finding on the real engine, for each engine that has one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias

from cachesim.engines.family import FAMILIES, Profile
from cachesim.errors import InputError
from cachesim.prove import workbench
from cachesim.prove.command import ANSWERING
from cachesim.prove.playing import Difference, StepPlayed, differing
from cachesim.scenario.format import Scenario
from cachesim.scenario.labels import CONFIRMED, DERIVED, SOURCE, Evidence

if TYPE_CHECKING:  # a command that prints the line of a proof searches for nothing
    from cachesim.testing.search import Counterexample


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """The result of a proof: confirmed or not, and the real engine's answer."""

    confirmed: bool
    seen: str
    label: Evidence = CONFIRMED  # of a confirmed finding

    @property
    def evidence(self) -> Evidence:
        """The label of the finding."""
        return self.label if self.confirmed else SOURCE


Prove: TypeAlias = "Callable[[Counterexample, Profile], ProofResult]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prover:
    """The proof of an engine's findings."""

    where: str
    models: tuple[str, ...]  # that the real engine loads
    kinds: tuple[str, ...]  # incidents that can be run there
    fits: Callable[[Scenario], bool]  # whether a workload can be
    prove: Prove
    ready: Callable[[str], object]  # set the release's environment up
    chats: bool = True  # whether requests may be chats
    sizes: tuple[tuple[int, int], ...] = ((8, 80), (8, 80), (16, 80))
    """In turn: the window of models that have one, small, so that short prompts cross it, and the
    longest prompt. Where ten short ones show a defect that needs long ones seldom, ten are drawn.
    """


def refuted_by(played: Sequence[StepPlayed]) -> ProofResult | None:
    """The refutation of a finding: the first field of a step that the real engine has otherwise."""
    step = next((step_played for step_played in played if not step_played.agrees), None)
    if step is None:
        return None
    whole = ("", step.real, step.simulated)
    where, real, simulated = next(differing(step.real, step.simulated, ""), whole)
    place = f"{step.name}, {where}" if where else step.name
    return ProofResult(confirmed=False, seen=f"{place}: {real}, simulated {simulated}")


def step_of(found: "Counterexample", played: Sequence[StepPlayed]) -> StepPlayed:
    """The step of a finding, as it was run; some steps, as of cancellation, are not compared."""
    name = "".join(found.scenario.step_names[found.finding.step :][:1])
    return next((step_played for step_played in played if step_played.name == name), played[-1])


ENDS: Final = frozenset({"crash", "refusal"})
"""Kinds of findings that an error shows."""

UNSEEN: Final = "the counts returned there do not show the law"


def result_of(
    found: "Counterexample",
    played: Sequence[StepPlayed],
    *,
    wrong: bool,
    ended: bool,
    cached: int | None,
    seen: str,
) -> ProofResult:
    """The result where every step agrees: a finding is confirmed by the criterion of its kind.

    A wrong answer confirms no broken law: that takes the counts of cached or prefilled tokens.
    """
    finding, seen = found.finding, f"{step_of(found, played).name}: {seen}"
    if finding.kind in {"wrong answer", *ENDS}:
        shown = ended if finding.kind in ENDS else wrong
        return ProofResult(confirmed=shown and finding.step < len(played), seen=seen)
    short = f"{cached} of {finding.due} tokens cached"
    if finding.detail.startswith(short) if finding.due else finding.detail in seen:
        return ProofResult(confirmed=True, seen=seen)
    return ProofResult(confirmed=not finding.due, label=SOURCE, seen=f"{seen}; {UNSEEN}")


def by_metadata(
    play: Callable[[Scenario, str], Sequence[StepPlayed]],
    differs_in: Callable[[Scenario, str], Difference | None] | None = None,
) -> Prove:
    """Proof by a release's scheduler and, if given, its model runner's metadata; no kernel runs."""

    def prove(found: "Counterexample", profile: Profile) -> ProofResult:
        finding, seen = found.finding, found.finding.detail
        try:
            played = play(found.scenario, profile.release)
            if refuted := refuted_by(played):
                return refuted
            counted = finding.due > 0  # and counts agree
            if counted or (finding.kind in ENDS and step_of(found, played).confirmed):
                return ProofResult(confirmed=True, seen=seen)
            if differs_in is None or finding.kind not in {"wrong answer", *ENDS}:
                return ProofResult(confirmed=True, label=SOURCE, seen=seen)
            difference = differs_in(found.scenario, profile.release)
        except InputError:  # a workload that they are not given
            return ProofResult(confirmed=True, label=SOURCE, seen=seen)
        if difference is not None:
            seen = f"step {difference.step} of the model runner differs from the simulated one"
            return ProofResult(confirmed=False, seen=seen)
        return ProofResult(confirmed=True, label=DERIVED, seen=seen)

    return prove


def always(_: object) -> bool:
    """True: any workload, or any step."""
    return True


BY_METADATA: Final = ("vllm", "sglang", "transformers")
"""Engines without a model on this machine: the workbench proves by their scheduler and runner."""


def real_prover(engine: str) -> Prover | None:
    """The prover of an engine that answers on this machine; imported here, as it is heavy."""
    if engine not in ANSWERING:
        return None
    prover: Prover = import_module(f"cachesim.prove.{ANSWERING[engine]}.scenarios").PROVER
    return prover


def prover_of(profile: Profile, models: tuple[str, ...]) -> Prover:
    """The engine's prover, or one whose workloads are run on the simulator."""
    real = real_prover(profile.engine)
    if real is not None:
        return real
    prove: Prove = _simulated
    if profile.engine in BY_METADATA and profile.release in FAMILIES[profile.engine].real():
        proofs = workbench.added(workbench.PROVERS)
        if profile.engine not in proofs:
            raise workbench.missing(f"the installed package proves no finding of {profile.engine}")
        prove = proofs[profile.engine].load()
    return Prover(
        where="the simulator",
        models=models,
        kinds=(),
        fits=always,
        prove=prove,
        ready=lambda _: None,
    )


def _simulated(found: "Counterexample", _: Profile) -> ProofResult:
    return ProofResult(confirmed=True, label=SOURCE, seen=found.finding.detail)
