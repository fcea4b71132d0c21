"""A scenario on the real server of its release, with the simulator beside it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cachesim.engines.base import NO_ANSWER
from cachesim.engines.chat import VOCABULARY
from cachesim.engines.family import Profile
from cachesim.engines.llamacpp.server_context import as_field
from cachesim.errors import CachesimError, InputError, ScenarioError
from cachesim.model.presets import preset
from cachesim.play.bisect import Play, Played, StepResult
from cachesim.play.session import AS_TEXT, ENDLESS
from cachesim.play.session import NotStartedError as SimulatedEndsError
from cachesim.prove.environment import EnvironmentUnavailableError
from cachesim.prove.hunt.proof import ProofResult, Prover, refuted_by, result_of, step_of
from cachesim.prove.llama_cpp.calls import NotStartedError
from cachesim.prove.llama_cpp.fitting import PRESETS, Release, fits
from cachesim.prove.llama_cpp.flags import adapter_file, adapter_names, model_file
from cachesim.prove.llama_cpp.gguf import write_adapter, write_model
from cachesim.prove.llama_cpp.server import (
    FIRST,
    SECONDS_FOR_ONE_CALL,
    RealServer,
    environment_for,
    play_on,
)
from cachesim.prove.llama_cpp.simulated import SimulatedServer, observed
from cachesim.prove.llama_cpp.workload import CRASH, SILENT, Outcome, grouped
from cachesim.prove.playing import StepPlayed, in_words
from cachesim.scenario.checks import spec_of
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.labels import CONFIRMED
from cachesim.units import Tokens
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import SHOWN, Answer, judge

if TYPE_CHECKING:
    from cachesim.testing.search import Counterexample

EXACT: Final[Mapping[str, Any]] = {
    "flash_attn": False,
    "cache_type_k": "f32",
    "cache_type_v": "f32",
}
"""Flags of a server whose answers may be compared."""

ROUNDING: Final = 1e-3
"""Limit of the differences of log probabilities: five times the largest of a right server."""

ALIKE: Final = ("ctx_size", "batch_size", "ubatch_size", "swa_full", "lora")
"""Flags that the cold server shares with the warm one, so that both round alike."""

PROMPTING: Final = ("endpoint", AS_TEXT, "tools", "add_generation_prompt")
"""Fields of a request that its prompt depends on."""

PIECES: Final[Mapping[str, Any]] = {"ubatch_size": 5}
"""Options of the second cold server, which shows the size of rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The distance of an answer from the uncached one, its token, and the size of rounding."""

    distance: float
    token: int  # the generated token before which it is so far
    noise: float  # between two cold answers
    cold: Tokens = ()  # the reply of the cold server

    @property
    def wrong(self) -> bool:
        """True when rounding cannot explain the distance."""
        return self.distance > max(ROUNDING, 2 * self.noise)

    def __str__(self) -> str:
        if self.wrong:
            return f"WRONG {self.distance:.2g}, token {self.token + 1}"
        return f"{SHOWN['same']} {self.distance:.0g}"


def divergence_of(one: Outcome, other: Outcome) -> tuple[float, int]:
    """The largest difference of a log probability, and before which token it is.

    Rows are compared up to the first different token.

        one    t0 t1 t2 t3        row 0, 1, 2 and 3 are compared: before t3 both replies are equal
        other  t0 t1 t2 u3 u4     row 4 is not
    """
    largest, token = 0.0, 0
    for at, (ours, theirs) in enumerate(zip(one.top, other.top, strict=False)):
        shared = ours.keys() & theirs.keys()
        apart = max((abs(ours[token] - theirs[token]) for token in shared), default=math.inf)
        if not ours or not theirs:  # a server that verifies drafts gives no row for what it accepts
            apart = 0.0
        if apart > largest:
            largest, token = apart, at
        if one.reply[at : at + 1] != other.reply[at : at + 1]:
            break
    return largest, token


def proven(
    step: Step,
    answer: Outcome,
    options: Mapping[str, Any],
    real: RealServer,
    model: Path,
    *,
    strengths: Sequence[float] = (),
) -> Proof | None:
    """Compare an answer of an exact server with uncached ones; None if there is nothing to compare.

    `strengths` are of the adapters that the answer belongs to, whatever was in force later.
    """
    if step.do != "complete" or answer.error or not answer.top:
        return None
    shared = {key: options[key] for key in ALIKE if key in options}
    alone = alone_of(step, strengths)
    cold, again = (
        _cold(alone, {**shared, **more}, real, model) for more in (EXACT, {**EXACT, **PIECES})
    )
    if not cold.top:
        return None
    distance, token = divergence_of(answer, cold)
    noise, _ = divergence_of(again, cold) if again.top else (0.0, 0)
    return Proof(distance=distance, token=token, noise=noise, cold=cold.reply)


def alone_of(step: Step, strengths: Sequence[float]) -> Step:
    """A step for a server of its own: only the fields of its prompt are kept."""
    fields = {key: step.options[key] for key in PROMPTING if key in step.options}
    if strengths:
        fields["lora"] = as_field(strengths)
    return replace(step, slot=-1, with_previous=False, turns=None, completions=1, options=fields)


def _cold(step: Step, options: Mapping[str, Any], real: RealServer, model: Path) -> Outcome:
    with real.started(options, model, probabilities=VOCABULARY) as server:
        return server.send([step])[0]


ENDED: Final = (CRASH, ENDLESS, SILENT)
"""Errors after which a server gets no further request."""

ROOM: Final = (1, 2)
"""Factors of a limit in bytes: exact keys and values are twice as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answers of both servers to one step."""

    step: Step
    real: Outcome
    simulated: Outcome
    strengths: tuple[float, ...]  # of the adapters that the answer belongs to
    expected: Answer | None  # the simulator's verdict on its own


def step_played(
    answered: Answered, proof: Proof | None = None, expected: Answer | None = None
) -> StepPlayed:
    """A step on both servers.

    Beside the prompt: cached and prefilled tokens of the real server, those of the simulator where
    they differ, its verdict on its own answer, and the real answer, computed with exact numbers,
    against that of a fresh server; the noise is the distance of two fresh ones.
    """
    step, real, ours = answered.step, answered.real, answered.simulated
    made = step.messages or step.options.get("endpoint") == "infill"  # by the server
    whole = (real.cached or 0) + (real.processed or 0)
    agrees = real.agrees_with(ours)
    return StepPlayed(
        name=step.name,
        prompt_tokens=whole if made else len(step.ids),
        real=real,
        simulated=ours,
        agrees=agrees,
        confirmed=agrees
        if real.error in {*ENDED, NO_ANSWER}
        else None
        if proof is None
        else proof.wrong,
        cells=(
            real.error or _count(real.cached),
            _count(real.processed),
            "" if agrees else ours.error or f"{_count(ours.cached)}, {_count(ours.processed)}",
            expected or "",
            *(("", "") if proof is None else (str(proof), f"{proof.noise:.0g}")),
        ),
        proof=proof,
    )


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def play_scenario(
    scenario: Scenario,
    release: Release,
    *,
    patience: float = SECONDS_FOR_ONE_CALL,
    proves: bool = True,
) -> tuple[StepPlayed, ...]:
    """Run a scenario on the real server, and on the simulator with the real replies.

    Then it is run with exact numbers, and every prompt goes to fresh servers of its own: the real
    server's answers are compared with its own uncached ones. If a server with exact numbers reuses
    other tokens, because its states are larger, no answer is proven. `proves` False leaves that
    out: it is most of the work.
    """
    with (
        TemporaryDirectory(prefix="cachesim-models-") as folder,
        RealServer(release, patience=patience, routes=bool(scenario.models)) as real,
    ):
        model = Path(folder) / f"{FIRST}.gguf"
        for name, network in scenario.networks.items():
            write_model(spec_of(network), model.with_stem(name or FIRST))
        for name in adapter_names(scenario.engine.options):
            write_adapter(spec_of(scenario.model), name, adapter_file(model.parent, name))
        if drafts := scenario.engine.options.get("model_draft"):
            write_model(preset(drafts), model_file(model.parent, drafts))
        try:
            played = tuple(_steps(scenario, release, real, model))
        except NotStartedError as error:
            msg = f"{scenario.name} on {release}: the simulated server starts; {error}"
            raise ScenarioError(msg) from None
        if not proves or (played and played[-1].real.error in ENDED):
            return tuple(step_played(answered, expected=answered.expected) for answered in played)
        for times in ROOM:
            flags = {**scenario.engine.options, **EXACT}
            if flags.get("cache_ram", 0) > 0:  # exact numbers are larger
                flags["cache_ram"] *= times
            exact = replace(scenario, engine=replace(scenario.engine, options=flags))
            answers = tuple(_steps(exact, release, real, model))
            reused = [
                [(answered.real.cached, answered.real.error) for answered in one]
                for one in (played, answers)
            ]
            if reused[0] == reused[1]:
                break
        else:
            return tuple(step_played(answered, expected=answered.expected) for answered in played)
        options = scenario.engine.options
        steps = [
            step_played(
                answered,
                proven(twin.step, twin.real, options, real, model, strengths=twin.strengths),
                twin.expected,
            )
            for answered, twin in zip(played, answers, strict=True)
        ]
        if spec_of(scenario.model).recall:
            steps = [
                replace(step, words=_in_words(step, played[:number]))
                for number, step in enumerate(steps, 1)
            ]
        return tuple(steps)


def _in_words(step: StepPlayed, played: Sequence[Answered]) -> str:
    """The wrong reply of the last step as text, beside that of a fresh server."""
    if step.proof is None or not step.proof.wrong:
        return ""
    *earlier, answered = played
    written = [(played.step.name, (*played.step.ids, *played.real.reply)) for played in earlier]
    proof, reply = step.proof, answered.real.reply
    asked = answered.step.ids
    return in_words(step.name, reply, proof.cold, proof.token, prompt=asked, earlier=written)


def _steps(
    scenario: Scenario, release: Release, real: RealServer, model: Path
) -> Iterator[Answered]:
    """Each step on the real server, then on the simulator with the real replies."""
    flags = {k: v for k, v in scenario.engine.options.items() if k != "flash_attn"}
    variant = replace(scenario, engine=replace(scenario.engine, options=flags))
    try:
        simulated = SimulatedServer(variant, "ring", release=release)
    except SimulatedEndsError as ended:
        abort, starts = ended.abort, _starts(real, scenario.engine.options, model)
        raise ScenarioError(
            f"{scenario.name} on {release}: the simulated server ends as it starts ({abort.where}: "
            f"{abort.why}); {'the real one starts' if starts else 'so does the real one'}"
        ) from None
    oracles = {name: Oracle(network) for name, network in simulated.session.networks.items()}
    with real.started(scenario.engine.options, model, probabilities=VOCABULARY) as server:
        sent = list(play_on(server, scenario))
    steps, answers = [step for step, _ in sent], [answer for _, answer in sent]
    written = tuple(
        replace(step, prompt=shrunk.prompt, predict=shrunk.predict, reply=shrunk.reply, forced=True)
        for step, shrunk in zip(variant.step, steps, strict=False)
    )
    at = 0
    for group in grouped(observed(replace(variant, step=written), answers).step):
        for our, record in zip(simulated.send(group), simulated.records, strict=True):
            answered = record.step.do == "complete" and not record.step.leaves
            reply = record.reply if answered else None
            verdict = None if reply is None else judge(reply, oracles[record.step.model])
            yield Answered(
                step=steps[at],
                real=answers[at],
                simulated=our,
                expected=None if verdict is None else verdict.answer,
                strengths=() if reply is None else reply.strengths,
            )
            at += 1
        if simulated.lost:
            return


def _starts(real: RealServer, options: Mapping[str, Any], model: Path) -> bool:
    try:
        with real.started(options, model):
            return True
    except NotStartedError:
        return False


def on_the_wheels(scenario: Scenario) -> Play:
    """Run on the real servers; an answer far from the server's own uncached one is wrong."""
    if scenario.engine.name != "llama.cpp":
        msg = f"{scenario.name}: --real runs llama.cpp; {scenario.engine.name} has no such wheels"
        raise ScenarioError(msg)

    def play(release: str, flags: Mapping[str, Any] = MappingProxyType({})) -> Played:
        options = {**flags, **scenario.engine.options}
        variant = replace(scenario, engine=replace(scenario.engine, options=options))
        try:
            steps = play_scenario(variant, release)
        except (EnvironmentUnavailableError, InputError) as error:
            return Played(profile=release, refused=str(error))
        results = (
            StepResult(
                name=step.name,
                cached=step.real.cached,
                answer=None if step.proof is None else "diverged" if step.proof.wrong else "same",
                error=step.real.error,
                evidence=CONFIRMED,
            )
            for step in steps
        )
        return Played(profile=release, steps=tuple(results))

    return play


PATIENCE: Final = 10.0
"""Seconds after which a toy model's server gets no further request."""


def _proven_on_the_wheel(found: "Counterexample", profile: Profile) -> ProofResult:
    try:
        played = play_scenario(found.scenario, profile.release, patience=PATIENCE)
    except CachesimError as error:
        return ProofResult(confirmed=False, seen=str(error))
    finding, at = found.finding, step_of(found, played)
    real, crash = at.real, finding.kind == "crash"
    if real.error in ENDED:
        same = crash and at.agrees and finding.step < len(played)
        return ProofResult(confirmed=same, seen=f"{at.name}: {real.error}")
    if refuted := refuted_by(played):
        return refuted
    seen = f"{real.cached} cached and {real.processed} processed of {at.prompt_tokens} tokens"
    if at.proof is not None:
        seen += f", {at.proof}, noise {at.proof.noise:.0g}"
    return result_of(
        found,
        played,
        wrong=at.proof is not None and at.proof.wrong,
        ended=not crash and real.error is not None,
        cached=real.cached,
        seen=real.error or seen,
    )


PROVER: Final = Prover(
    where="the wheel",
    models=tuple(name for name in PRESETS if name != "hybrid-mtp"),
    kinds=("slot file", "trips", "trips"),
    chats=False,  # the server renders them itself, and keeps its slot to itself
    fits=fits,
    prove=_proven_on_the_wheel,
    ready=lambda release: environment_for(release).ready(),
)
