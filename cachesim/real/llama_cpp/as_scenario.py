"""A workload and what the real server answered, as a scenario that anybody can run, and back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cachesim.engines.byte_tokenizer import VOCABULARY
from cachesim.engines.profile import Profile
from cachesim.real.llama_cpp.calls import grouped
from cachesim.real.llama_cpp.flags import drafting
from cachesim.real.llama_cpp.scenarios import resolved
from cachesim.real.llama_cpp.simulated import SPARE
from cachesim.real.llama_cpp.workload import CANCELLED, CRASH, Outcome, Step, Workload
from cachesim.scenario.format import FORMAT, Expect, Model, Scenario, Server, Source, Turn
from cachesim.scenario.format import Step as ScenarioStep
from cachesim.scenario.prompts import PLACE, Vocabulary
from cachesim.scenario.session import ABORTED
from cachesim.units import Tokens

BRACE: Final = "brace"
"""The span of an opening brace, for texts in which one would begin the name of a span."""


def as_scenario(
    workload: Workload, outcomes: Sequence[Outcome], *, profile: str, about: str
) -> Scenario:
    """The workload with the real replies, and the real counts as what is expected."""
    steps = workload.steps[: len(outcomes)]
    texts = [each.content for step in steps for each in step.messages]
    return Scenario(
        format=FORMAT,
        name=f"{_prefix(workload.release)}{workload.name}",
        about=about,
        source=Source(upstream=workload.release, note="expected: what the real server answered"),
        model=Model(preset=workload.preset, window=workload.window or None),
        engine=Server(name="llama.cpp", profiles=(profile,), options=dict(workload.options)),
        spans={BRACE: "{"} if any(map(PLACE.search, texts)) else {},
        step=tuple(map(played_step, steps, outcomes)),
        expect=(_expected(steps, outcomes, drafts=drafting(workload.options)),),
    )


def _expected(steps: Sequence[Step], outcomes: Sequence[Outcome], *, drafts: bool) -> Expect:
    """The real counts and errors, but for refusals that do not say who was refused, or how.

    A call with several prompts has one error for all of them. Where completions of one prompt, or
    drafts, do not fit, a race decides between a refusal and an abort.
    """
    cached: list[int | str] = []
    errors: list[str] = []
    for group in grouped(steps):
        answers = outcomes[len(cached) : len(cached) + len(group)]
        open_ended = len(group) > 1 or group[0].completions > 1 or drafts
        if open_ended and answers[0].error not in {None, CANCELLED}:
            cached += ["any"] * len(group)
            errors += ["any"] * len(group)
            continue
        cached += map(_count, group, answers)
        errors += [_error(each.error) for each in answers]
    return Expect(cached=tuple(cached), error=tuple(errors))


def as_workload(scenario: Scenario) -> Workload:
    """The reverse of `as_scenario`, for the scenario's first release."""
    vocabulary = Vocabulary.of(scenario, vocabulary=VOCABULARY)
    release = Profile.parse(f"{scenario.engine.name}@{scenario.engine.profiles[0]}").release
    return Workload(
        name=scenario.name.removeprefix(_prefix(release)),
        release=release,
        preset=scenario.model.preset or "",
        window=scenario.model.window or 0,
        options=scenario.engine.options,
        steps=tuple(resolved(scenario, number, vocabulary) for number in range(len(scenario.step))),
    )


def _prefix(release: str) -> str:
    return f"llama.cpp-{release}-"


def step_of(step: Step, reply: Tokens) -> ScenarioStep:
    """A step with the reply that is forced on every server, as a scenario writes it."""
    if step.do != "complete":
        return ScenarioStep(
            name=step.name,
            do=step.do,
            slot=step.slot,
            file=step.file or None,
            options=dict(step.options),
        )
    turns = tuple(Turn(role=e.role, content=_written(e.content)) for e in step.messages)
    return ScenarioStep(
        name=step.name,
        prompt=None if turns else tuple(map(int, step.prompt)),
        messages=turns,
        suffix=tuple(map(int, step.suffix)) or None,
        query=step.query,
        predict=step.predict,
        reply=tuple(map(int, reply)) or None,
        slot=step.slot,
        cache_prompt=step.cache_prompt,
        completions=step.completions,
        with_previous=step.with_previous,
        turns=step.turns or None,
        parts=step.parts,
        options=dict(step.options),
    )


def played_step(step: Step, outcome: Outcome) -> ScenarioStep:
    """A step with what a real server replied, of its own accord or because it had to.

    A client that left did so while the slot held the prompt and the reply so far, or a part of the
    prompt. The scenario's reply has some tokens more, so that it does not end before.
    """
    reply, drafts = step.forced or outcome.reply, outcome.drafts or None
    if step.abandoned and not step.forced:
        reply += (reply or step.prompt)[-1:] * SPARE
    free = not step.forced and (reply or drafts)
    written = replace(step_of(step, reply), drafts=drafts, forced=not free)
    if not step.abandoned:
        return written
    read = len(step.prompt) if outcome.processed is None else outcome.processed
    leaves = "reading" if step.half_read else "replying"
    return replace(written, leaves=leaves, held=read + len(outcome.reply))


def _written(text: str) -> str:
    return PLACE.sub(lambda place: f"{{{BRACE}}}{place[0][1:]}", text)


def _count(step: Step, outcome: Outcome) -> int | str:
    """The cached tokens, or a word: an answer without numbers leaves them open."""
    if outcome.cached is not None:
        return outcome.cached
    unknown = step.do == "complete" and outcome.error in {None, CANCELLED}
    return "any" if unknown else "none"


def _error(error: str | None) -> str:
    return ABORTED if error == CRASH else error or "none"
