"""Make a workload smaller while something stays true of it: fewer steps, shorter prompts, no flags.

Greedy and repeated: every simplification that keeps the property is kept, until none does or the
trials are used up.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from cachesim.real.workload import Step, Workload

Property: TypeAlias = Callable[[Workload], bool]

TRIALS: Final = 400


def shrink(workload: Workload, holds: Property, *, trials: int = TRIALS) -> Workload:
    """The smallest workload found of which the property still holds."""
    left = trials
    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _simpler(workload):
            left -= 1
            if holds(candidate):
                workload, smaller = candidate, True
                break
            if left <= 0:
                break
    return workload


def _simpler(workload: Workload) -> Iterator[Workload]:
    """Simplifications, the boldest first."""
    yield from _with_fewer_steps(workload)
    yield from _with_fewer_flags(workload)
    yield from _with_simpler_steps(workload)
    yield from _with_shorter_prompts(workload)


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
    """The first step of all goes out with none before it."""
    return (replace(steps[0], with_previous=False), *steps[1:])


def _with_fewer_flags(workload: Workload) -> Iterator[Workload]:
    for flag in workload.options:
        if flag != "spec_type":
            rest = {name: value for name, value in workload.options.items() if name != flag}
            yield replace(workload, options=rest)


def _with_simpler_steps(workload: Workload) -> Iterator[Workload]:
    for index, step in enumerate(workload.steps):
        simpler = [
            replace(step, options={}),
            replace(step, cache_prompt=True),
            replace(step, with_previous=False),
            replace(step, predict=1),
            replace(step, predict=max(1, step.predict // 2)),
        ]
        if step.do == "complete":
            simpler.append(replace(step, slot=-1))
        for each in simpler:
            if each != step:
                yield _changed(workload, index, each)


def _with_shorter_prompts(workload: Workload) -> Iterator[Workload]:
    """Cut the same tokens out of every prompt, for what prompts share must stay shared."""
    longest = max(len(step.prompt) for step in workload.steps)
    size = longest // 2
    while size:
        for first in range(0, longest, size):
            cut = [
                replace(step, prompt=step.prompt[:first] + step.prompt[first + size :])
                for step in workload.steps
            ]
            if all(step.prompt or step.do != "complete" for step in cut):
                yield replace(workload, steps=tuple(cut))
        size //= 2
    for index, step in enumerate(workload.steps):
        size = len(step.prompt) // 2
        while size:
            yield _changed(workload, index, replace(step, prompt=step.prompt[:-size]))
            size //= 2


def _changed(workload: Workload, index: int, step: Step) -> Workload:
    steps = (*workload.steps[:index], step, *workload.steps[index + 1 :])
    return replace(workload, steps=steps)
