"""A scenario on the real server of its release, with the simulator beside it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final, get_args

from cachesim.engines.base import Engine
from cachesim.engines.byte_tokenizer import VOCABULARY
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.profile import Profile
from cachesim.errors import InputError, ScenarioError, UpstreamAbort
from cachesim.model.presets import preset
from cachesim.real.environment import EnvironmentUnavailableError
from cachesim.real.llama_cpp.calls import NotStartedError
from cachesim.real.llama_cpp.flags import adapter_file, adapter_names, model_file
from cachesim.real.llama_cpp.gguf import write_adapter, write_model
from cachesim.real.llama_cpp.proof import EXACT, Proof, proven, told_alike
from cachesim.real.llama_cpp.server import SECONDS_FOR_ONE_CALL, RealServer
from cachesim.real.llama_cpp.simulated import SimulatedServer
from cachesim.real.llama_cpp.workload import (
    CRASH,
    ENDLESS,
    SILENT,
    Action,
    Outcome,
    Release,
    Step,
)
from cachesim.scenario.bisect import Play, Played, Seen
from cachesim.scenario.checks import DEFAULT_PREDICT
from cachesim.scenario.format import Scenario
from cachesim.scenario.labels import CONFIRMED
from cachesim.scenario.models import spec_of
from cachesim.scenario.prompts import Vocabulary
from cachesim.scenario.session import SlotFiles, groups_of
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import Answer, judge

PLAYABLE: Final = get_args(Action)

GONE: Final = (CRASH, ENDLESS, SILENT)
"""Errors of a server that is asked no more."""

WRITTEN: Final = "chatml"
"""The chat template that is in the model file."""

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
    asked = {k: v for k, v in scenario.engine.options.items() if k != "flash_attn"}
    try:
        engine = Engine.create(
            Profile(FAMILY.name, release),
            model=spec_of(scenario.model),
            options=asked,
            arithmetic="ring",
            store=SlotFiles(),
        )
    except UpstreamAbort as abort:
        starts = _starts(real, scenario.engine.options, model)
        msg = (
            f"{scenario.name} on {release}: the simulated server ends as it starts ({abort.where}: "
            f"{abort.why}); {'the real one starts' if starts else 'so does the real one'}"
        )
        raise ScenarioError(msg) from None
    simulated, oracle = SimulatedServer(engine), Oracle(engine.network)
    vocabulary = Vocabulary.of(scenario, vocabulary=engine.network.spec.vocabulary)
    with real.started(scenario.engine.options, model, probabilities=VOCABULARY) as server:
        for numbers in groups_of(scenario):
            group = [resolved(scenario, number, vocabulary) for number in numbers]
            answers = server.ask(group)
            ours = simulated.ask(group, answers)
            replies = (*simulated.replies, *(None for _ in group))
            for step, answer, our, reply in zip(group, answers, ours, replies, strict=False):
                vocabulary.replies[step.name] = answer.reply
                verdict = None if reply is None else judge(reply, oracle)
                said = None if verdict is None else verdict.answer
                yield StepPlayed(
                    step=step,
                    real=answer,
                    simulated=our,
                    expected=said,
                    strengths=() if reply is None else reply.strengths,
                )
            if server.lost or simulated.lost:
                return


def _starts(real: RealServer, options: Mapping[str, Any], model: Path) -> bool:
    try:
        with real.started(options, model):
            return True
    except NotStartedError:
        return False


def resolved(scenario: Scenario, number: int, vocabulary: Vocabulary) -> Step:
    """A step with its prompt as tokens; what it says of other replies is what was really said.

    A reply of its own is forced on the real server too, which can be told one for each call.
    """
    step = scenario.step[number]
    name = scenario.step_names[number]
    why = hurdle(scenario, number)
    if why:
        msg = f"{scenario.name}: step {number + 1} is not played on the real server: {why}"
        raise ScenarioError(msg)
    reply = () if step.reply is None else vocabulary.tokens(step.reply)
    predict = step.predict
    if predict is None:
        predict = DEFAULT_PREDICT if step.reply is None else len(reply)
    forced = reply if step.forced and _of_one_mind(scenario, number) else ()
    if forced and not 0 <= predict <= len(forced):
        predict = len(forced)
    return Step(
        name=name,
        do=next(action for action in get_args(Action) if action == step.do),
        prompt=() if step.messages else vocabulary.prompt(step),
        messages=vocabulary.messages(step.messages),
        predict=predict,
        slot=max(step.slot, 0) if step.do.startswith("slot-") else step.slot,
        cache_prompt=step.cache_prompt,
        with_previous=step.with_previous,
        turns=step.turns or 0,
        file=step.file or "",
        suffix=vocabulary.tokens(step.suffix or ""),
        query=step.query,
        completions=step.completions,
        parts=step.parts,
        abandoned=step.leaves is not None,
        half_read=step.leaves == "reading",
        forced=forced,
        options=step.options,
    )


def _of_one_mind(scenario: Scenario, number: int) -> bool:
    call = next(each for each in in_one_call(scenario) if number in each)
    return len({scenario.step[each].reply for each in call}) == 1


def in_one_call(scenario: Scenario) -> Iterator[list[int]]:
    """The numbers of the steps that go out in one call."""
    call: list[int] = []
    for number, step in enumerate(scenario.step):
        if call and not (step.with_previous and not step.turns):
            yield call
            call = []
        call.append(number)
    yield call


def hurdle(scenario: Scenario, number: int) -> str:
    """Why a step is not played on the real server; nothing where it is."""
    step = scenario.step[number]
    same_call = step.with_previous and not step.turns
    before = scenario.step[number - 1] if same_call else step
    alike = all(
        getattr(step, each) == getattr(before, each)
        for each in ("predict", "slot", "cache_prompt", "options")
    )
    replies = [each.reply for each in (before, step) if each.forced]
    lengths = {len(reply) for reply in replies if isinstance(reply, tuple)}
    hurdles: Sequence[tuple[bool, str]] = (
        (not alike, "what goes out in one call asks for the same predict, slot and options"),
        (len(lengths) > 1, "what goes out in one call gets replies of one length"),
        (step.do not in PLAYABLE, f"{step.do!r} depends on the real server's clock"),
        (
            bool(step.messages) and scenario.chat.template != WRITTEN,
            f"its model file's chat template is {WRITTEN}",
        ),
        (bool(scenario.model.sizes), "bytes are those of another model"),
        (bool(step.drafts) and step.forced, "a real companion proposes drafts of its own"),
    )
    return next((why for stands, why in hurdles if stands), "")


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
