"""A scenario on the real server of its release, with the simulator beside it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final

from cachesim.engines.byte_tokenizer import VOCABULARY
from cachesim.errors import InputError, ScenarioError
from cachesim.model.presets import preset
from cachesim.real.environment import EnvironmentUnavailableError
from cachesim.real.llama_cpp.calls import NotStartedError
from cachesim.real.llama_cpp.flags import adapter_file, adapter_names, model_file
from cachesim.real.llama_cpp.gguf import write_adapter, write_model
from cachesim.real.llama_cpp.proof import EXACT, Proof, proven, told_alike
from cachesim.real.llama_cpp.server import SECONDS_FOR_ONE_CALL, RealServer, play_on
from cachesim.real.llama_cpp.simulated import SimulatedServer, observed
from cachesim.real.llama_cpp.workload import CRASH, SILENT, Outcome, Release, grouped
from cachesim.scenario.bisect import Play, Played, Seen
from cachesim.scenario.format import Scenario, Step
from cachesim.scenario.labels import CONFIRMED
from cachesim.scenario.models import spec_of
from cachesim.scenario.session import ENDLESS
from cachesim.scenario.session import NotStartedError as SimulatedEndsError
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import Answer, judge

GONE: Final = (CRASH, ENDLESS, SILENT)
"""Errors of a server that is asked no more."""

ROOM: Final = (1, 2)
"""What a limit in bytes is multiplied by, for exact keys and values are twice as large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlayed:
    """One step, and what both servers answered."""

    step: Step
    real: Outcome
    simulated: Outcome
    proof: Proof | None = None  # of the real answer, against the real server's own cold one
    strengths: tuple[float, ...] = ()  # of the adapters that the answer belongs to
    expected: Answer | None = None  # what the simulator says of its own

    @property
    def answer(self) -> str:
        """Whether the real server's answer is its own cold answer, rounding aside."""
        return "" if self.proof is None else str(self.proof)

    @property
    def agrees(self) -> bool:
        """True when both say the same."""
        return self.real.agrees_with(self.simulated)

    @property
    def confirmed(self) -> bool | None:
        """Whether the real server answers wrongly, or ends as simulated; None where no answer
        was proven.
        """
        if self.real.error in GONE:
            return self.agrees
        return None if self.proof is None else self.proof.wrong


def play_scenario(
    scenario: Scenario,
    release: Release,
    *,
    patience: float = SECONDS_FOR_ONE_CALL,
    proves: bool = True,
) -> tuple[StepPlayed, ...]:
    """Play a scenario on the real server, and on the simulator with the real replies.

    Then it is played with exact numbers, and every prompt goes to fresh servers of its own: the
    real server's answers are held against its own cold ones. Where a server with exact numbers
    reuses something else, for its states are larger, no answer is proven. `proves` False leaves
    that out: it is most of the work.
    """
    with (
        TemporaryDirectory(prefix="cachesim-models-") as folder,
        RealServer(release, patience=patience) as real,
    ):
        model = Path(folder) / "model.gguf"
        write_model(spec_of(scenario.model), model)
        for name in adapter_names(scenario.engine.options):
            write_adapter(spec_of(scenario.model), name, adapter_file(model.parent, name))
        if drafts := scenario.engine.options.get("model_draft"):
            write_model(preset(drafts), model_file(model.parent, drafts))
        try:
            played = tuple(_steps(scenario, release, real, model))
        except NotStartedError as error:
            msg = f"{scenario.name} on {release}: the simulated server starts; {error}"
            raise ScenarioError(msg) from None
        if not proves or (played and played[-1].real.error in GONE):
            return played
        for times in ROOM:
            exact = _with_flags(scenario, times)
            answers = tuple(_steps(exact, release, real, model))
            if told_alike([each.real for each in played], [each.real for each in answers]):
                break
        else:
            return played
        return tuple(
            replace(
                each,
                proof=proven(
                    twin.step,
                    twin.real,
                    scenario.engine.options,
                    real,
                    model,
                    strengths=twin.strengths,
                ),
                expected=twin.expected,
            )
            for each, twin in zip(played, answers, strict=True)
        )


def _with_flags(scenario: Scenario, times: int) -> Scenario:
    """The scenario with exact numbers, and so much more room for what is parked."""
    options = {**scenario.engine.options, **EXACT}
    if options.get("cache_ram", 0) > 0:
        options["cache_ram"] *= times
    return replace(scenario, engine=replace(scenario.engine, options=options))


def _steps(
    scenario: Scenario, release: Release, real: RealServer, model: Path
) -> Iterator[StepPlayed]:
    """Each step on the real server, then on the simulator with the real replies."""
    flags = {k: v for k, v in scenario.engine.options.items() if k != "flash_attn"}
    asked = replace(scenario, engine=replace(scenario.engine, options=flags))
    try:
        simulated = SimulatedServer(asked, "ring", release=release)
    except SimulatedEndsError as ended:
        abort, starts = ended.abort, _starts(real, scenario.engine.options, model)
        msg = (
            f"{scenario.name} on {release}: the simulated server ends as it starts ({abort.where}: "
            f"{abort.why}); {'the real one starts' if starts else 'so does the real one'}"
        )
        raise ScenarioError(msg) from None
    oracle = Oracle(simulated.session.network)
    with real.started(scenario.engine.options, model, probabilities=VOCABULARY) as server:
        sent = list(play_on(server, scenario))
    steps, answers = [step for step, _ in sent], [answer for _, answer in sent]
    written = tuple(
        replace(step, prompt=each.prompt, predict=each.predict, reply=each.reply, forced=True)
        for step, each in zip(asked.step, steps, strict=False)
    )
    at = 0
    for group in grouped(observed(replace(asked, step=written), answers).step):
        for our, record in zip(simulated.ask(group), simulated.records, strict=True):
            answered = record.step.do == "complete" and not record.step.leaves
            reply = record.reply if answered else None
            verdict = None if reply is None else judge(reply, oracle)
            yield StepPlayed(
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
    """Play on the real servers; an answer far from the server's own cold one is wrong."""
    if scenario.engine.name != "llama.cpp":
        msg = f"{scenario.name}: --real plays llama.cpp; {scenario.engine.name} has no such wheels"
        raise ScenarioError(msg)

    def play(release: str, flags: Mapping[str, Any] = MappingProxyType({})) -> Played:
        options = {**flags, **scenario.engine.options}
        asked = replace(scenario, engine=replace(scenario.engine, options=options))
        try:
            steps = play_scenario(asked, release)
        except (EnvironmentUnavailableError, InputError) as error:
            return Played(profile=release, refused=str(error))
        return Played(profile=release, steps=tuple(_seen(each) for each in steps))

    return play


def _seen(played: StepPlayed) -> Seen:
    answer = None
    if played.proof is not None:
        answer = "diverged" if played.proof.wrong else "same"
    real = played.real
    return Seen(
        name=played.step.name,
        cached=real.cached,
        answer=answer,
        error=real.error,
        evidence=CONFIRMED,
    )
