"""Small scopes: all workloads of up to a few requests to a tiny server, none of them twice.

An engine's `Family` states the server and the lengths (`Scope`). A prompt is the beginning of an
earlier conversation, or nothing, and then new tokens:

    new        [ new ............... ]   as long as one of the lengths
    again      [ r0 ...... ]             an earlier prompt
    continue   [ r0 ...... reply new ]   an earlier one, its reply, new tokens
    part       [ r0 .. | new ]           cut after one of the lengths
    together                             sent while the request before is served
    cancel                               its client leaves after some turns of the server's loop

New tokens occur in no earlier prompt and are numbered in their order, so two workloads that differ
only in words or in the names of conversations are one and the same. Shorter workloads are the
beginnings of longer ones; only those of the greatest number of requests are run.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from typing import Any, Final, TypeAlias

from cachesim.engines.family import Profile, family_of, search_of
from cachesim.engines.search import Scope
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import preset
from cachesim.scenario.format import FORMAT, Model, Scenario, Server, Step
from cachesim.testing.search import Numbered, Report, search
from cachesim.testing.survey import CHUNK, Survey, search_joined, survey, survey_joined
from cachesim.testing.workloads import FIRST_WORD, LAST_WORD, try_flags
from cachesim.typed import Json

Ids: TypeAlias = tuple[int, ...]
Going: TypeAlias = Callable[[Report], bool]

REQUESTS: Final = (2, 4)
"""Fewest and most requests of a scope."""

WORDS: Final = (*range(FIRST_WORD, LAST_WORD - 1), *range(7, 259))
"""Tokens in the order in which prompts take them: words without a meaning, then bytes."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A prompt, and the conversation with its reply."""

    prompt: Ids
    text: Ids


@dataclass(slots=True, kw_only=True)
class WholeScope:
    """All workloads of up to some requests to the servers of an engine's scopes.

    Several processes give the result of one: workloads and findings are ordered.
    """

    profile: Profile
    model: str
    requests: int
    fixed: Mapping[str, Any] = field(default_factory=dict)  # flags of every server
    servers: tuple[Scope, ...] = ()
    given: int = 0  # workloads handed out
    ended: bool = False  # there are no more

    def __post_init__(self) -> None:
        """Find the servers; refuse a scope without any."""
        fewest, most = REQUESTS
        if not fewest <= self.requests <= most:
            msg = f"--scope is {self.requests}; write a number of requests from {fewest} to {most}"
            raise InputError(msg)
        self.servers = scopes_of(self.profile, self.model, self.fixed)

    def workloads(self) -> Iterator[Numbered]:
        """The workloads with their numbers."""
        for scope in self.servers:
            for steps in _continued(scope, (), (), 0, self.requests):
                window = scope.window if "window" in preset(self.model).layers else 0
                release = str(self.profile).partition("@")[2]
                yield (
                    self.given,
                    Scenario(
                        format=FORMAT,
                        name=f"{self.model}-scope-{self.requests}-{self.given}",
                        about=f"Of the small scope of {self.profile} on {self.model}.",
                        model=Model(preset=self.model, window=window or None),
                        engine=Server(
                            name=self.profile.engine, profiles=(release,), options=dict(scope.flags)
                        ),
                        step=steps,
                    ),
                )
                self.given += 1
        self.ended = True

    def count(self) -> int:
        """The number of workloads, none of them run."""
        each = (_continued(scope, (), (), 0, self.requests) for scope in self.servers)
        return sum(1 for steps in each for _ in steps)

    def search(
        self, arithmetic: ArithmeticName, going: Going, pool: Executor | None = None, ahead: int = 1
    ) -> Report:
        """Run them until one fails."""
        play = partial(search, self.profile, self.model, arithmetic=arithmetic)
        if pool is None:
            return play(among=self.workloads(), going=going)
        tasks = (partial(play, among=chunk) for chunk in self._chunks())
        return search_joined(pool, ahead, self._report(), tasks, going)

    def survey(
        self, arithmetic: ArithmeticName, going: Going, pool: Executor | None = None, ahead: int = 1
    ) -> Survey:
        """Run all workloads, past the failing ones."""
        play = partial(survey, self.profile, self.model, arithmetic=arithmetic)
        if pool is None:
            return play(among=self.workloads(), going=going)
        tasks = (partial(play, among=chunk) for chunk in self._chunks())
        return survey_joined(pool, ahead, Survey(report=self._report()), tasks, going)

    def _report(self) -> Report:
        return Report(profile=self.profile, model=self.model)

    def _chunks(self) -> Iterator[list[Numbered]]:
        numbered = self.workloads()
        while chunk := list(islice(numbered, CHUNK)):
            yield chunk

    def is_whole(self, report: Report) -> bool:
        """True if there are no more workloads than those of the report."""
        return self.ended and report.workloads == self.given

    def as_json(self, report: Report) -> dict[str, Json]:
        """The scope as data."""
        return {
            "requests": self.requests,
            "whole": self.is_whole(report),
            "statement": self.statement(report),
            "servers": [
                {
                    "flags": dict(server.flags),
                    "lengths": list(server.lengths),
                    "more": list(server.more),
                    "reply": server.reply,
                    "acts": list(server.acts),
                }
                for server in self.servers
            ],
        }

    def statement(self, report: Report) -> str:
        """The workloads that were run, and the conclusion."""
        count, failed = counted(report.workloads, "workload"), sum(report.failed.values())
        outcome = f"no wrong answer in {count}"
        if failed:
            kinds = ", ".join(f"{kind} {times}" for kind, times in sorted(report.failed.items()))
            outcome = f"{failed:,} of {count} failed ({kinds})"
        scope = f"the whole scope of up to {self.requests} requests"
        if self.is_whole(report):
            return f"{outcome}: {scope}"
        why = "the search ended at its finding" if report.counterexample else "the time was over"
        return f"{outcome}: not {scope}, {why}"


def described(scope: Scope) -> str:
    """The server and the requests of a scope."""
    flags = ", ".join(f"{name} = {value}" for name, value in scope.flags.items())
    parts = [
        f"{flags or 'all flags default'}: prompts of {_listed(scope.lengths)} tokens",
        f"requests: {', '.join(scope.acts)}",
        f"{_listed(scope.more)} new tokens after what is kept",
        f"replies of {counted(scope.reply, 'token')}",
    ]
    if "cancel" in scope.acts:
        turns = "turn" if scope.turns == (1,) else "turns"
        parts.append(f"clients leave after {_listed(scope.turns)} {turns} of the server's loop")
    return "; ".join(parts)


def _listed(numbers: tuple[int, ...]) -> str:
    return " or ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def scopes_of(profile: Profile, model: str, fixed: Mapping[str, Any]) -> tuple[Scope, ...]:
    """The scopes of an engine for this release and model, each with the flags of its server."""
    family, layers = family_of(profile.engine), frozenset(preset(model).layers)
    scopes, refused = [], ["its Search states none (`scopes`)"]
    for scope in search_of(family).scopes:
        if (scope.layers and not scope.layers & layers) or scope.without & layers:
            continue
        # The flags that a release has.
        flags = scope.flags
        known = {option.name: option for option in family.declared}
        for unknown in flags.keys() - known.keys():
            msg = f"a scope of {family.name} has an unknown flag {unknown!r}"
            raise InputError(msg)
        flags = {
            name: flag for name, flag in flags.items() if family.has(known[name], profile, flag)
        } | dict(fixed)
        try:
            try_flags(profile, model, flags)
        except InputError as error:
            refused.append(str(error))
        else:
            scopes.append(replace(scope, flags=flags))
    if not scopes:
        msg = f"{profile} has no small scope for {model}: {refused[-1]}"
        raise InputError(msg)
    return tuple(scopes)


def _continued(
    scope: Scope, steps: tuple[Step, ...], sent: tuple[_Sent, ...], words: int, left: int
) -> Iterator[tuple[Step, ...]]:
    """Possible continuations of a workload."""
    if not left:
        yield steps
        return
    number = len(sent)
    for kept, new in _prompts(scope, sent):
        fresh = WORDS[words : words + new + scope.reply]
        if len(fresh) < new + scope.reply:
            msg = f"prompts of {scope.lengths} need more than {len(WORDS)} tokens: fewer requests"
            raise InputError(msg)
        prompt, reply = kept + fresh[:new], fresh[new:]
        step = Step(name=f"r{number}", prompt=prompt, reply=reply)
        then = (*sent, _Sent(prompt, prompt + reply))
        for more in _variants(scope, step, first=not number):
            yield from _continued(scope, steps + more, then, words + len(fresh), left - 1)


def _prompts(scope: Scope, sent: tuple[_Sent, ...]) -> dict[tuple[Ids, int], None]:
    """Each prompt once: what it keeps of an earlier conversation, and its number of new tokens."""
    prompts: dict[tuple[Ids, int], None] = {}
    if "new" in scope.acts or not sent:
        prompts |= {((), length): None for length in scope.lengths}
    for request in reversed(sent):
        if "again" in scope.acts:
            prompts[request.prompt, 0] = None
        if "continue" in scope.acts:
            prompts |= {(request.text, more): None for more in scope.more}
        if "part" in scope.acts:
            cuts = (cut for cut in scope.lengths if cut < len(request.text))
            prompts |= {(request.text[:cut], more): None for cut, more in product(cuts, scope.more)}
    return prompts


def _variants(scope: Scope, step: Step, *, first: bool) -> Iterator[tuple[Step, ...]]:
    """Variants of a request: alone, with the one before, left by its client."""
    together = (False, True) if "together" in scope.acts and not first else (False,)
    turns = scope.turns if "cancel" in scope.acts else ()
    for beside in together:
        sent = replace(step, with_previous=beside)
        yield (sent,)
        for number in turns:
            gone = Step(name=f"c{step.name[1:]}", do="cancel", of=step.name, turns=number)
            yield sent, gone
