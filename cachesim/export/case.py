"""What an exported test asserts: the law of a scenario, and the releases that keep or break it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from cachesim.engines.family import Family, Profile, family_of
from cachesim.errors import CachesimError, ScenarioError
from cachesim.play.result import Run, Step
from cachesim.play.runner import run
from cachesim.scenario.checks import full_profile
from cachesim.scenario.format import Scenario

Law: TypeAlias = Literal["answer", "answered", "reuse", "counts"]
"""What is asserted of the step: its answer is that of a fresh server, it is answered at all, it
reuses as many tokens as elsewhere, or it counts what it counts today."""

OWN_NAME: Final = re.compile("cachesim", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A scenario with the step that a test looks at, and what it asserts of it."""

    scenario: Scenario
    profile: Profile  # that the scenario accuses, or the one that was asked for
    run: Run  # on it
    step: int
    law: Law
    tokens: int  # that are reused where the law is kept; of `reuse` and `counts`
    fixed: Profile | None  # that the scenario names beside it

    @property
    def family(self) -> Family[object, object]:
        """The engine's facts."""
        return family_of(self.profile.engine)

    @property
    def seen(self) -> Step:
        """The step on the profile."""
        return self.run.steps[self.step]

    @property
    def slug(self) -> str:
        """The scenario's name as a part of a Python name."""
        name = self.scenario.name.removeprefix(f"{self.scenario.engine.name}-")
        return re.sub(r"\W+", "_", name).strip("_").lower()

    @property
    def issue(self) -> str:
        """The report that the scenario comes from."""
        return self.scenario.source.issue

    @property
    def about(self) -> str:
        """The scenario's story in one paragraph."""
        story = " ".join(self.scenario.about.split()) or f"{self.scenario.name}."
        return in_upstreams_words(story)

    @property
    def broken(self) -> bool:
        """True if the profile breaks the law: the test fails there."""
        return not self.kept_by(self.seen)

    def kept_by(self, step: Step) -> bool:
        """True if a step of any profile keeps the law."""
        match self.law:
            case "answer":
                return step.error is None and step.answer in {"same", "rounding"}
            case "answered":
                return step.error is None
            case "reuse":
                return step.cached is not None and step.cached >= self.tokens
            case "counts":
                return step.cached == self.tokens

    def verdict(self, profile: Profile) -> bool | None:
        """True if a profile keeps the law, by simulation; None if it does not run the scenario."""
        if profile == self.profile:
            return not self.broken
        try:
            steps = run(self.scenario.without_promises(), profile).steps
        except CachesimError:
            return None
        return self.kept_by(steps[self.step]) if self.step < len(steps) else False

    def keeping(self) -> Profile | None:
        """A release with a package that keeps the law: of the scenario, else the next one."""
        engine, names = self.scenario.engine, self.family.names()
        listed = [full_profile(engine.name, profile) for profile in engine.profiles]
        place = names.index(self.profile.release)
        near = sorted(self.family.real(), key=lambda name: abs(names.index(name) - place))
        tried = [self.fixed] if self.fixed is not None else []
        tried += [*listed, *(Profile(self.family.name, name) for name in near)]
        real = (
            profile
            for profile in dict.fromkeys(tried)
            if not profile.patches and profile.release in near and profile != self.profile
        )
        return next((profile for profile in real if self.verdict(profile)), None)

    def expected(self) -> str:
        """The law in a sentence."""
        name = self.seen.name
        if self.law == "answer":
            return f"the reply to `{name}` is that of a server that has seen no other request"
        if self.law == "answered":
            return f"`{name}` gets an answer"
        return f"`{name}` reuses {self.tokens} of {self.seen.size} prompt tokens"

    def got(self) -> str:
        """What the profile does instead, in a sentence."""
        step = self.seen
        if step.error is not None or self.law == "answered":
            return f"`{step.name}` ends with {step.error!r}"
        counts = f"{step.cached} of {step.size} prompt tokens are reused"
        if self.law != "answer":
            return f"{counts} by `{step.name}`"
        wrong = next((e.sentence for e in step.facts if e.word == "wrong"), "other logits")
        return f"{counts} by `{step.name}`, and {in_upstreams_words(wrong)}"

    def reasons(self) -> Iterator[str]:
        """The rules that decided, as sentences over the run's numbers."""
        for fact in self.seen.facts:
            if fact.word in {"rule", "because", "kept by", "restored", "leak", "match"}:
                yield in_upstreams_words(fact.sentence)


def in_upstreams_words(text: str) -> str:
    """A sentence of ours for readers who have never heard of this program."""
    return OWN_NAME.sub("the simulator", text.replace("an uncached run", "a fresh server"))


def case_of(scenario: Scenario, wanted: str = "") -> Case:
    """The law of a scenario: what its `shows` says of one step before and after a fix."""
    shows, engine = scenario.shows, scenario.engine.name
    accused = full_profile(engine, shows.before.profile or (*scenario.engine.profiles, "")[0])
    steps = run(scenario.without_promises(), accused)
    names = [step.name for step in steps.steps]
    name = shows.before.step or names[-1]
    if name not in names:
        raise ScenarioError(f"{scenario.name}: step {name!r} is not reached on {accused}")
    number = names.index(name)
    seen, tokens = steps.steps[number], 0
    law: Law = "counts"
    fixed = full_profile(engine, shows.after.profile) if shows.after.profile else None
    after = None
    if fixed is not None and shows.after.step in {"", name}:
        found = run(scenario.without_promises(), fixed).steps
        after = found[number] if number < len(found) else None
    if seen.answer == "diverged":
        law = "answer"
    elif seen.error is not None and (after is None or after.error is None):
        law = "answered"
    elif after is not None and (after.cached or 0) > (seen.cached or 0):
        law, tokens = "reuse", after.cached or 0
    else:
        if seen.cached is None:
            raise ScenarioError(
                f"{scenario.name}: what step {name!r} shows is no answer and no number of reused "
                "tokens, so no test can assert it"
            )
        tokens = seen.cached
    case = Case(
        scenario=scenario, profile=accused, run=steps, step=number, law=law, tokens=tokens,
        fixed=fixed if after is not None else None,
    )  # fmt: skip
    if not wanted:
        return case
    asked = full_profile(engine, wanted)
    other = run(scenario.without_promises(), asked)
    if number >= len(other.steps):
        raise ScenarioError(f"{scenario.name}: step {name!r} is not reached on {asked}")
    keeps = other.steps[number]
    tokens = (keeps.cached or 0) if law == "counts" else tokens
    return replace(case, profile=asked, run=other, tokens=tokens)
