"""Workloads of llama.cpp's servers, which are scenarios, and the outcomes observed of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from cachesim.engines.family import Profile
from cachesim.errors import ScenarioError
from cachesim.prove.llama_cpp.fitting import Release, hurdle
from cachesim.scenario.checks import DEFAULT_PREDICT, spec_of
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step, Turn
from cachesim.scenario.prompts import Vocabulary
from cachesim.units import Token, Tokens

CRASH: Final = "crash"
"""The error of a call during which the real process ended."""

SILENT: Final = "silent"
"""The error of a call that the real process neither works at nor answers."""


def workload(
    name: str,
    *,
    release: Release,
    preset: str,
    window: int = 0,
    options: Mapping[str, Any],
    steps: Sequence[Step],
) -> Scenario:
    """A scenario for one release; window 0 is the preset's own."""
    return Scenario(
        format=FORMAT,
        name=name,
        model=Model(preset=preset, window=window or None),
        engine=Server(name="llama.cpp", profiles=(release,), options=options),
        step=tuple(steps),
    )


def release_of(scenario: Scenario) -> Release:
    """The first release that a scenario names."""
    return Profile.parse(f"{scenario.engine.name}@{scenario.engine.profiles[0]}").release


def grouped(steps: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """Steps that go out together, in order."""
    starts = [at for at, step in enumerate(steps) if not at or not step.with_previous]
    for first, end in pairwise([*starts, len(steps)]):
        yield tuple(steps[first:end])


def arriving(group: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """Steps that go out in one call, of a group that the server has at hand together."""
    starts = [
        at
        for at, step in enumerate(group)
        if not at or step.turns or step.model != group[at - 1].model
    ]
    for first, end in pairwise([*starts, len(group)]):
        yield tuple(group[first:end])


def vocabulary_of(scenario: Scenario) -> Vocabulary:
    """The spans of a scenario, for the model that it names."""
    return Vocabulary.of(scenario, spec_of(scenario.model))


def resolved(scenario: Scenario, number: int, vocabulary: Vocabulary) -> Step:
    """A step with tokens and texts for the names of spans and replies.

    `A.reply` is the real reply. A reply of the step's own is forced on the real server, which takes
    one for each call.
    """
    step = scenario.step[number]
    if why := hurdle(scenario, number):
        msg = f"{scenario.name}: step {number + 1} is not run on the real server: {why}"
        raise ScenarioError(msg)
    reply = None if step.reply is None else vocabulary.tokens(step.reply)
    predict = step.predict
    if predict is None and step.do == "complete":
        predict = DEFAULT_PREDICT if reply is None else len(reply)
    call = next(numbers for numbers in in_one_call(scenario) if number in numbers)
    one_reply = len({scenario.step[number].reply for number in call}) == 1
    forced = reply if step.forced and one_reply else None
    if forced and predict is not None and not 0 <= predict <= len(forced):
        predict = len(forced)
    messages = vocabulary.messages(step.messages)
    return replace(
        step,
        name=scenario.step_names[number],
        prompt=None if messages or step.do != "complete" else vocabulary.prompt(step),
        messages=tuple(Turn(role=message.role, content=message.content) for message in messages),
        suffix=vocabulary.tokens(step.suffix or ()) or None,
        predict=predict,
        reply=forced or None,
        slot=max(step.slot, 0) if step.do.startswith("slot-") else step.slot,
    )


def in_one_call(scenario: Scenario) -> Iterator[list[int]]:
    """The numbers of the steps that go out in one call."""
    number = 0
    for group in grouped(scenario.step):
        for call in arriving(group):
            yield list(range(number, number + len(call)))
            number += len(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The answer of a server to one step; a refusal or a crash has `error` set.

    Chat replies name no slot, and do not say whether it was truncated: None.
    """

    cached: int | None = None
    processed: int | None = None
    reply: Tokens = ()
    slot: int | None = None
    truncated: bool | None = False
    error: str | None = None
    drafts: tuple[Tokens, ...] | None = None  # what a companion proposed, where the log was read
    drafted: int = 0
    accepted: int = 0
    top: tuple[Mapping[Token, float], ...] = ()  # per generated token: the likeliest, by log

    def agrees_with(self, other: "Outcome") -> bool:
        """True when the other one has the same values, as far as this one has any."""
        theirs = other.as_dict()
        return all(theirs.get(k) == v for k, v in self.as_dict().items() if v is not None)

    def __str__(self) -> str:
        return str(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        if self.error is not None:
            return {"error": self.error}
        return {
            "cached": self.cached,
            "processed": self.processed,
            "generated": len(self.reply),
            "slot": self.slot,
            "truncated": self.truncated,
        }
