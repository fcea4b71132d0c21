"""Make a workload smaller while something stays true of it: fewer steps, shorter prompts, no flags.

Greedy and repeated: every simplification that keeps the property is kept, until none does or the
trials are used up.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from cachesim.real.llama_cpp.workload import Step, Workload
from cachesim.testing.shrink import descend

Property: TypeAlias = Callable[[Workload], bool]

TRIALS: Final = 400


def shrink(workload: Workload, holds: Property, *, trials: int = TRIALS) -> Workload:
    """The smallest workload found of which the property still holds."""
    return descend(workload, _simpler, holds, trials=trials)


def _simpler(workload: Workload) -> Iterator[Workload]:
    yield from _with_fewer_steps(workload)
    yield from _with_fewer_flags(workload)
    yield from _with_simpler_steps(workload)
    yield from _with_shorter_prompts(workload)
    yield from _with_shorter_chats(workload)


def _with_fewer_steps(workload: Workload) -> Iterator[Workload]:
    count = len(workload.steps)
    size = count // 2
    while size:
        for first in range(count - size, -1, -size):
            rest = workload.steps[:first] + workload.steps[first + size :]
            if rest:
                yield replace(workload, steps=_led(rest))
        size //= 2


def _led(steps: Sequence[Step]) -> tuple[Step, ...]:
    return (replace(steps[0], with_previous=False), *steps[1:])


def _with_fewer_flags(workload: Workload) -> Iterator[Workload]:
    kept = {"spec_type", "model_draft"}
    if any(step.predict < 0 for step in workload.steps):
        kept.add("ctx_size")  # such a request runs to the end of the context
    for flag in workload.options:
        if flag not in kept:
            rest = {name: value for name, value in workload.options.items() if name != flag}
            yield replace(workload, options=rest)


def _with_simpler_steps(workload: Workload) -> Iterator[Workload]:
    for index, step in enumerate(workload.steps):
        if step.with_previous:
            yield _changed(workload, index, replace(step, with_previous=False))
            continue
        for change in (_plain, _cached, _anywhere, _one_token, _half_the_tokens):
            simpler = _for_group(workload, index, change)
            if simpler != workload:
                yield simpler


def _plain(step: Step) -> Step:
    return replace(step, options={})


def _cached(step: Step) -> Step:
    return replace(step, cache_prompt=True)


def _anywhere(step: Step) -> Step:
    return replace(step, slot=-1) if step.do == "complete" else step


def _one_token(step: Step) -> Step:
    return replace(step, predict=1)


def _half_the_tokens(step: Step) -> Step:
    return replace(step, predict=max(1, step.predict // 2))


def _for_group(workload: Workload, first: int, change: Callable[[Step], Step]) -> Workload:
    steps = list(workload.steps)
    steps[first] = change(steps[first])
    for index in range(first + 1, len(steps)):
        if not steps[index].with_previous:
            break
        steps[index] = change(steps[index])
    return replace(workload, steps=tuple(steps))


def _with_shorter_prompts(workload: Workload) -> Iterator[Workload]:
    """Cut the same tokens out of every prompt, for what prompts share must stay shared."""
    steps = workload.steps
    longest = max(len(step.prompt) for step in steps)
    size = longest // 2
    while size:
        for first in range(0, longest, size):
            cut = [
                replace(step, prompt=step.prompt[:first] + step.prompt[first + size :])
                for step in steps
            ]
            emptied = (
                one.prompt and not other.prompt for one, other in zip(steps, cut, strict=True)
            )
            if not any(emptied):
                yield replace(workload, steps=tuple(cut))
        size //= 2
    for index, step in enumerate(steps):
        size = len(step.prompt) // 2
        while size:
            yield _changed(workload, index, replace(step, prompt=step.prompt[:-size]))
            size //= 2


def _with_shorter_chats(workload: Workload) -> Iterator[Workload]:
    for index in range(max(len(step.messages) for step in workload.steps)):
        yield replace(
            workload,
            steps=tuple(
                replace(step, messages=step.messages[:index] + step.messages[index + 1 :])
                if len(step.messages) > 1
                else step
                for step in workload.steps
            ),
        )


def _changed(workload: Workload, index: int, step: Step) -> Workload:
    steps = (*workload.steps[:index], step, *workload.steps[index + 1 :])
    return replace(workload, steps=steps)
