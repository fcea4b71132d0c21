"""A workload and what the real server answered, as a scenario that anybody can run."""

from collections.abc import Sequence

from cachesim.real.llama_cpp.workload import Outcome, Step, Workload
from cachesim.scenario.format import FORMAT, Expect, Model, Scenario, Server, Source, Turn
from cachesim.scenario.format import Step as ScenarioStep
from cachesim.units import Tokens


def as_scenario(
    workload: Workload, outcomes: Sequence[Outcome], *, profile: str, about: str
) -> Scenario:
    """The workload with the real replies, and the real counts as what is expected."""
    steps = workload.steps[: len(outcomes)]
    return Scenario(
        format=FORMAT,
        name=f"llama.cpp-{workload.release}-{workload.name}",
        about=about,
        source=Source(upstream=workload.release, note="expected: what the real server answered"),
        model=Model(preset=workload.preset, window=workload.window or None),
        engine=Server(name="llama.cpp", profiles=(profile,), options=dict(workload.options)),
        step=tuple(
            step_of(step, outcome.reply, outcome.drafts)
            for step, outcome in zip(steps, outcomes, strict=True)
        ),
        expect=(
            Expect(
                cached=tuple(_count(each.cached) for each in outcomes),
                error=tuple(each.error or "none" for each in outcomes),
            ),
        ),
    )


def step_of(step: Step, reply: Tokens, drafts: tuple[Tokens, ...] | None = None) -> ScenarioStep:
    """A step with what was said to it, as a scenario writes it."""
    if step.do != "complete":
        return ScenarioStep(name=step.name, do=step.do, slot=step.slot, file=step.file or None)
    turns = tuple(Turn(role=each.role, content=each.content) for each in step.messages)
    return ScenarioStep(
        name=step.name,
        prompt=None if turns else tuple(map(int, step.prompt)),
        messages=turns,
        predict=step.predict,
        reply=tuple(map(int, reply)) or None,
        drafts=drafts or None,
        slot=step.slot,
        cache_prompt=step.cache_prompt,
        with_previous=step.with_previous,
        turns=step.turns or None,
        options=dict(step.options),
    )


def _count(cached: int | None) -> int | str:
    return "none" if cached is None else cached
