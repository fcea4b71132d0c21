"""Make a workload smaller while it still shows what it showed.

Fewer steps, fewer flags, shorter prompts, plainer tokens: every simplification that keeps the
finding is kept, until none does. Tokens are cut out of all prompts at once, for what prompts share
must stay shared.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

from cachesim.scenario.checks import COMPANIONS
from cachesim.scenario.format import Scenario, Step
from cachesim.testing.workloads import FIRST_WORD, said, words_of

T = TypeVar("T")
Holds: TypeAlias = Callable[[Scenario], bool]

TRIALS: Final = 800


def shrink(scenario: Scenario, holds: Holds, *, trials: int = TRIALS) -> Scenario:
    """The smallest scenario found of which the property still holds."""
    smallest = descend(scenario, simpler, holds, trials=trials)
    steps = (replace(step, name=f"r{number}") for number, step in enumerate(smallest.step))
    return _with_steps(smallest, tuple(steps))


def descend(
    value: T,
    simpler_than: Callable[[T], Iterable[T]],
    holds: Callable[[T], bool],
    *,
    trials: int,
) -> T:
    """Keep every simplification of which the property holds, until none does.

    Greedy and repeated: after each success the simplifications are drawn again.
    """
    left, smaller = trials, True
    while smaller and left > 0:
        smaller = False
        for candidate in simpler_than(value):
            left -= 1
            if holds(candidate):
                value, smaller = candidate, True
                break
            if left <= 0:
                break
    return value


def simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Simplifications, the boldest first."""
    yield from _fewer_steps(scenario)
    yield from _fewer_flags(scenario)
    yield from _shorter_prompts(scenario)
    yield from _shorter_chats(scenario)
    yield from _plainer_steps(scenario)
    yield from _plainer_tokens(scenario)


def _fewer_steps(scenario: Scenario) -> Iterator[Scenario]:
    steps = scenario.step
    size = len(steps) // 2
    while size:
        for first in range(len(steps) - size, -1, -1):
            rest = steps[:first] + steps[first + size :]
            if rest and rest[0].do == "complete":
                led = (replace(rest[0], with_previous=False), *rest[1:])
                yield _with_steps(scenario, _without_lost_cancels(led))
        size //= 2


def _without_lost_cancels(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps without a cancel whose request is gone, or no longer goes out just before it."""
    kept: list[Step] = []
    together: set[str] = set()
    for step in steps:
        if step.do == "cancel":
            if step.of not in together and (step.of or not together):
                continue
        elif not step.with_previous:
            together = set()
        if step.do == "complete":
            together.add(step.name)
        kept.append(step)
    return tuple(kept)


def _fewer_flags(scenario: Scenario) -> Iterator[Scenario]:
    endless = any((step.predict or 0) < 0 for step in scenario.step)
    for flag in scenario.engine.options:
        if flag == "ctx_size" and endless:
            continue  # such a request runs to the end of the context
        rest = {key: value for key, value in scenario.engine.options.items() if key != flag}
        fewer = replace(scenario, engine=replace(scenario.engine, options=rest))
        if flag in COMPANIONS:  # nobody proposes what the steps bring
            fewer = _with_steps(fewer, tuple(replace(step, drafts=None) for step in fewer.step))
        yield fewer
    if scenario.model.window:
        yield replace(scenario, model=replace(scenario.model, window=None))


def _shorter_prompts(scenario: Scenario) -> Iterator[Scenario]:
    longest = max(len(step.ids) for step in scenario.step)
    asked = [step.prompt is not None for step in scenario.step]
    size = longest // 2
    while size:
        for first in range(0, longest, size):
            cut = tuple(
                replace(step, prompt=step.ids[:first] + step.ids[first + size :])
                if wanted
                else step
                for step, wanted in zip(scenario.step, asked, strict=True)
            )
            pairs = zip(scenario.step, cut, strict=True)
            if not any(one.ids and not other.ids for one, other in pairs):
                yield _with_steps(scenario, cut)
        size //= 2
    for index, step in enumerate(scenario.step):
        size = len(step.ids) // 2 if asked[index] else 0
        while size:
            yield _changed(scenario, index, replace(step, prompt=step.ids[:-size]))
            size //= 2


def _shorter_chats(scenario: Scenario) -> Iterator[Scenario]:
    """Chats without a message, the same one in all; then with shorter messages, as shared."""
    for index in range(max(len(step.messages) for step in scenario.step)):
        fewer = tuple(
            replace(step, messages=step.messages[:index] + step.messages[index + 1 :])
            if len(step.messages) > 1
            else step
            for step in scenario.step
        )
        if fewer != scenario.step:
            yield _with_steps(scenario, fewer)
    turns = dict.fromkeys(turn for step in scenario.step for turn in step.messages)
    for turn in turns:
        tokens = words_of(turn)
        size = len(tokens) // 2
        while size:
            shorter = said(turn.role, tokens[:-size])
            yield _with_steps(
                scenario,
                tuple(
                    replace(
                        step,
                        messages=tuple(shorter if each == turn else each for each in step.messages),
                    )
                    for step in scenario.step
                ),
            )
            size //= 2


def _plainer_steps(scenario: Scenario) -> Iterator[Scenario]:
    for index, step in enumerate(scenario.step):
        if step.do != "complete":
            if (step.turns or 0) > 1:
                yield _changed(scenario, index, replace(step, turns=1))
            continue
        for change in _plainer(step):
            if replace(step, **change) != step:
                yield _changed(scenario, index, replace(step, **change))
                if not step.with_previous:
                    yield from _changed_together(scenario, index, change)


def _plainer(step: Step) -> Iterator[dict[str, Any]]:
    """Fields of a step that may become plainer."""
    reply, predict = step.reply, step.predict
    if reply is not None:
        yield {"reply": reply[:1]}
        yield {"reply": reply[: len(reply) // 2] or reply[:1]}
        yield {"reply": reply[:-1] or reply}
    if predict is not None:
        yield {"predict": min(predict, 1) if predict >= 0 else 1}
        yield {"predict": predict // 2 if predict > 1 else predict}
    yield {"drafts": None}
    yield {"drafts": (step.drafts or ())[:-1] or None}
    yield {"with_previous": False}
    yield {"slot": -1}
    yield {"cache_prompt": True}
    yield {"options": {}}


def _changed_together(
    scenario: Scenario, first: int, change: Mapping[str, Any]
) -> Iterator[Scenario]:
    """The change in all steps of one call, which ask for the same on a real server."""
    steps = list(scenario.step)
    end = first + 1
    while end < len(steps) and steps[end].with_previous and not steps[end].turns:
        end += 1
    if end > first + 1 and all(each.do == "complete" for each in steps[first:end]):
        steps[first:end] = [replace(each, **change) for each in steps[first:end]]
        yield _with_steps(scenario, tuple(steps))


def _plainer_tokens(scenario: Scenario) -> Iterator[Scenario]:
    """Number the tokens in the order in which they first occur; equal ones stay equal."""
    if any(step.messages for step in scenario.step):
        return
    names: dict[int, int] = {}
    for step in scenario.step:
        for token in _tokens_of(step):
            names.setdefault(int(token), FIRST_WORD + len(names))
    if all(old == new for old, new in names.items()) or max(names.values()) >= 512:
        return
    yield _with_steps(
        scenario,
        tuple(
            replace(
                step,
                prompt=tuple(names[token] for token in step.ids),
                reply=step.reply and tuple(names[int(token)] for token in step.reply),
                drafts=step.drafts
                and tuple(tuple(names[int(token)] for token in each) for each in step.drafts),
            )
            if step.do == "complete"
            else step
            for step in scenario.step
        ),
    )


def _tokens_of(step: Step) -> Iterator[int]:
    yield from step.ids
    yield from map(int, step.reply or ())
    for draft in step.drafts or ():
        yield from map(int, draft)


def _changed(scenario: Scenario, index: int, step: Step) -> Scenario:
    return _with_steps(scenario, (*scenario.step[:index], step, *scenario.step[index + 1 :]))


def _with_steps(scenario: Scenario, steps: tuple[Step, ...]) -> Scenario:
    return replace(scenario, step=steps)
