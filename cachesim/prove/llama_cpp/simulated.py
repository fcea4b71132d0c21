"""The simulator behind the real server's interface, with the real replies forced."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cachesim.engines.base import NO_ANSWER
from cachesim.engines.family import Family, Profile
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.llamacpp.options import Options
from cachesim.engines.llamacpp.rules import ServerRules
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.session import ABORTED, CANCELLED, ENDLESS, Record, Session
from cachesim.prove.llama_cpp.fitting import Abilities, drafting, nearest_release
from cachesim.prove.llama_cpp.workload import CRASH, Outcome, grouped, release_of
from cachesim.scenario.format import Expect, Scenario, Source, Step
from cachesim.units import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Flags whose default differs from release to release; a server without them ignores them."""

    checkpoint_min_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Rules and defaults that are tried in place of a release's own."""

    rules: ServerRules
    defaults: Defaults

    def with_defaults(self, workload: Scenario) -> Scenario:
        """The workload with the defaults written out, where the server has such flags."""
        if not Abilities(release_of(workload)).has("checkpoint_min_step"):
            return workload
        spacing = {"checkpoint_min_step": self.defaults.checkpoint_min_step}
        options = spacing | dict(workload.engine.options)
        return replace(workload, engine=replace(workload.engine, options=options))

    def family(self, release: str) -> Family[ServerRules, Options]:
        """llama.cpp with these rules in place of those of a build's nearest release."""
        near = nearest_release(release)
        releases = (
            replace(release, rules=self.rules) if release.name == near else release
            for release in FAMILY.releases
        )
        return replace(FAMILY, releases=tuple(releases))


def known_trials() -> dict[str, Trial]:
    """The trial of every known release, from which a search for rules starts."""
    spacing = FAMILY.option("checkpoint_min_step")
    return {
        release.name: Trial(
            rules=release.rules,
            defaults=Defaults(checkpoint_min_step=FAMILY.default(spacing, release.name)),
        )
        for release in FAMILY.releases
    }


SPARE: Final = 2
"""Tokens forced beyond the real reply: a server that continues too long shows."""


class SimulatedServer:
    """A session of the simulator whose records are outcomes."""

    def __init__(
        self,
        workload: Scenario,
        arithmetic: ArithmeticName | None = None,
        *,
        trial: Trial | None = None,
        release: str = "",
    ) -> None:
        """A fresh server with a workload's model and flags.

        What a companion drafts depends on the weights: where the real drafts are not known, only
        the real arithmetic comes close.
        """
        release = release or release_of(workload)
        drafts = drafting(workload.engine.options)
        self.session = Session(
            trial.with_defaults(workload) if trial else workload,
            Profile(FAMILY.name, nearest_release(release)),
            arithmetic=arithmetic or ("float" if drafts else "ring"),
            reads_state=False,
            family=trial.family(release) if trial else None,
        )
        self.records: list[Record] = []  # of the last group

    @property
    def lost(self) -> bool:
        """True if no further request can be sent."""
        return self.session.ended

    def send(self, group: Sequence[Step]) -> tuple[Outcome, ...]:
        """Send steps that go out together; one outcome each."""
        self.records = self.session.send(group)
        if self.lost:
            aborted = any(record.error == ABORTED for record in self.records)
            return (Outcome(error=CRASH if aborted else ENDLESS),) * len(group)
        return tuple(map(outcome_of, self.records))


def outcome_of(record: Record) -> Outcome:
    """A step of the simulator in the form of the real server."""
    step, reply = record.step, record.reply
    if step.do != "complete":
        return Outcome(slot=step.slot, error=record.error)
    if step.held is not None:
        elsewhere = step.leaves == "reading" and record.held != step.held
        error = f"read {record.held}" if elsewhere else CANCELLED
        return Outcome(slot=None, truncated=None, error=error)
    if reply is None:
        return Outcome(error=NO_ANSWER)
    return Outcome(
        cached=reply.cached,
        processed=reply.processed,
        reply=reply.generated,
        slot=reply.slot,
        truncated=reply.truncated,
        error=reply.error,
    )


def observed(workload: Scenario, outcomes: Sequence[Outcome]) -> Scenario:
    """The part of the workload that was run, with the real server's replies."""
    return replace(workload, step=tuple(map(observed_step, workload.step, outcomes)))


def observed_step(step: Step, outcome: Outcome) -> Step:
    """A step with the reply of a real server, sampled or forced.

    Some tokens more than it replied are forced, so that a server that continues too long shows. A
    client that left did so while the slot held the prompt and the reply so far, or a part of the
    prompt. Any reply will do where a refusal hides it.
    """
    if step.do != "complete":
        return step
    drafts, forced = outcome.drafts or None, step.reply if step.forced else None
    if step.leaves is not None:
        prompt = step.prompt if isinstance(step.prompt, tuple) else ()
        reply = forced or outcome.reply + (outcome.reply or prompt)[-1:] * SPARE
        read = len(prompt) if outcome.processed is None else outcome.processed
        held = read + len(outcome.reply)
        free = not forced and bool(reply)
        return replace(step, reply=reply or None, forced=not free, held=held)
    spoken = () if outcome.error is not None else outcome.reply + swallowed(outcome)
    reply = forced or spoken + spoken[-1:] * SPARE
    free = not forced and bool(reply or drafts)
    return replace(step, reply=reply or None, drafts=drafts, forced=not free)


def swallowed(real: Outcome) -> Tokens:
    """Tokens that were accepted but never sent, because the context ended within their draft.

    reply  [ t | draft 0 accepted ... | draft 1: sent )[ accepted, swallowed )
    """
    at, accepted = 1, 0
    for draft in real.drafts or ():
        known = real.reply[at:]
        pairs = zip(draft, known, strict=False)
        count = next((n for n, (token, sent) in enumerate(pairs) if token != sent), None)
        if count is None:
            count = min(len(draft), len(known))
            if count == len(known):
                return draft[count : max(count, real.accepted - accepted)]
        accepted += count
        at += count + 1
    return ()


def as_scenario(
    workload: Scenario, outcomes: Sequence[Outcome], *, profile: str = "", about: str = ""
) -> Scenario:
    """The workload with the real replies, and the real counts as expectations."""
    played = observed(workload, outcomes)
    return replace(
        played,
        name=f"llama.cpp-{release_of(workload)}-{workload.name}",
        about=about,
        source=Source(
            upstream=release_of(workload), note="expected: what the real server answered"
        ),
        engine=replace(played.engine, profiles=(profile or release_of(workload),)),
        expect=(_expected(played, outcomes),),
    )


def _expected(played: Scenario, outcomes: Sequence[Outcome]) -> Expect:
    """The real counts and errors, except refusals that do not name the request, or the reason.

    A call with several prompts has one error for all of them. Where completions of one prompt, or
    drafts, do not fit, a race decides between a refusal and an abort.
    """
    cached: list[int | str] = []
    errors: list[str] = []
    for group in grouped(played.step):
        answers = outcomes[len(cached) : len(cached) + len(group)]
        several = len(group) > 1 or group[0].completions > 1
        open_ended = several or drafting(played.engine.options)
        if open_ended and answers[0].error not in {None, CANCELLED}:
            cached += ["any"] * len(group)
            errors += ["any"] * len(group)
            continue
        cached += map(_count, group, answers)
        errors += [ABORTED if e.error == CRASH else e.error or "none" for e in answers]
    return Expect(cached=tuple(cached), error=tuple(errors))


def _count(step: Step, outcome: Outcome) -> int | str:
    """The cached tokens, or a text for an answer without numbers."""
    if outcome.cached is not None:
        return outcome.cached
    unknown = step.do == "complete" and outcome.error in {None, CANCELLED}
    return "any" if unknown else "none"
