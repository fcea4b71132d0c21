"""A scenario on the real server of its release, with the simulator beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, get_args

from cachesim.engines.base import Engine
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.profile import Profile
from cachesim.errors import ScenarioError
from cachesim.real.llama_cpp.gguf import write_model
from cachesim.real.llama_cpp.server import RealServer
from cachesim.real.llama_cpp.simulated import SimulatedServer
from cachesim.real.llama_cpp.workload import Action, Outcome, Release, Step
from cachesim.real.llama_cpp.wrong_answers import VOCABULARY, distance
from cachesim.scenario.checks import DEFAULT_PREDICT
from cachesim.scenario.format import Scenario
from cachesim.scenario.models import spec_of
from cachesim.scenario.prompts import Vocabulary
from cachesim.scenario.session import SlotFiles, groups_of

PLAYABLE: Final = get_args(Action)

HALF_PRECISION: Final = 0.1
"""Answers of a sound server lie closer than this.

Keys and values are kept as 16-bit floats. One token computed alone is off by up to 0.06 from the
same token at the end of a whole prompt; wrong states move answers by 0.18 and more.
"""

ALIKE: Final = ("ctx_size", "batch_size", "ubatch_size", "swa_full")
"""Flags that the cold server shares with the warm one, so that both round alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlayed:
    """One step, and what both servers answered."""

    step: Step
    real: Outcome
    simulated: Outcome
    distance: float | None = None  # of the real answer from the real server's own cold one

    @property
    def answer(self) -> str:
        """Whether the real server's answer is its own cold answer, rounding aside."""
        if self.distance is None:
            return ""
        return "same" if self.distance <= HALF_PRECISION else f"WRONG {self.distance:.2g}"

    @property
    def agrees(self) -> bool:
        """True when both say the same."""
        return self.real.agrees_with(self.simulated)


def play_scenario(scenario: Scenario, release: Release) -> tuple[StepPlayed, ...]:
    """Play a scenario on the real server, and on the simulator with the real replies.

    Then every prompt goes to a fresh server of its own: the real server's answers are held against
    its own cold ones.
    """
    with TemporaryDirectory(prefix="cachesim-models-") as folder, RealServer(release) as real:
        model = Path(folder) / "model.gguf"
        write_model(spec_of(scenario.model), model)
        played = tuple(_steps(scenario, release, real, model))
        return tuple(_held_against_cold(each, scenario, real, model) for each in played)


def _held_against_cold(
    played: StepPlayed, scenario: Scenario, real: RealServer, model: Path
) -> StepPlayed:
    if played.step.do != "complete" or played.real.error or not played.real.top:
        return played
    options = {key: scenario.engine.options[key] for key in ALIKE if key in scenario.engine.options}
    alone = replace(played.step, slot=-1, with_previous=False, turns=0, options={})
    with real.started(options, model, probabilities=VOCABULARY) as server:
        cold = server.ask([alone])[0]
    return replace(played, distance=distance(played.real, cold)) if cold.top else played


def _steps(
    scenario: Scenario, release: Release, real: RealServer, model: Path
) -> Iterator[StepPlayed]:
    engine = Engine.create(
        Profile(FAMILY.name, release),
        model=spec_of(scenario.model),
        options=scenario.engine.options,
        arithmetic="ring",
        store=SlotFiles(),
    )
    simulated = SimulatedServer(engine)
    vocabulary = Vocabulary.of(scenario, vocabulary=engine.network.spec.vocabulary)
    with real.started(scenario.engine.options, model, probabilities=VOCABULARY) as server:
        for numbers in groups_of(scenario):
            group = [_resolved(scenario, number, vocabulary) for number in numbers]
            answers = server.ask(group)
            ours = simulated.ask(group, answers)
            for step, answer, our in zip(group, answers, ours, strict=True):
                vocabulary.replies[step.name] = answer.reply
                yield StepPlayed(step=step, real=answer, simulated=our)
            if server.lost or simulated.lost:
                return


def _resolved(scenario: Scenario, number: int, vocabulary: Vocabulary) -> Step:
    """A step with its prompt as tokens; replies in it are the real server's own."""
    step = scenario.step[number]
    name = scenario.step_names[number]
    _check_playable(scenario, number)
    predict = step.predict
    if predict is None:
        predict = DEFAULT_PREDICT if step.reply is None else len(vocabulary.tokens(step.reply))
    return Step(
        name=name,
        do=next(action for action in get_args(Action) if action == step.do),
        prompt=vocabulary.prompt(step),
        predict=predict,
        slot=max(step.slot, 0) if step.do != "complete" else step.slot,
        cache_prompt=step.cache_prompt,
        with_previous=step.with_previous,
        turns=step.turns or 0,
        file=step.file or "",
        options=step.options,
    )


def _check_playable(scenario: Scenario, number: int) -> None:
    step = scenario.step[number]
    same_call = step.with_previous and not step.turns
    before = scenario.step[number - 1] if same_call else step
    alike = all(
        getattr(step, each) == getattr(before, each)
        for each in ("predict", "slot", "cache_prompt", "options")
    )
    hurdles: Sequence[tuple[bool, str]] = (
        (not alike, "what goes out in one call asks for the same predict, slot and options"),
        (step.do not in PLAYABLE, f"{step.do!r} depends on the real server's clock"),
        (bool(step.messages), "messages are rendered by the real server's own template"),
        (step.completions > 1, "several completions of one prompt are not compared"),
    )
    for stands, why in hurdles:
        if stands:
            msg = f"{scenario.name}: step {number + 1} is not played on the real server: {why}"
            raise ScenarioError(msg)
