"""`engine_contract`: what every engine promises, as one check for tests of an engine's package.

Requests that share prefixes are drawn, submitted alone and together, and some are cancelled:

    counts        cached + processed = tokens of the prompt; a row of logits for each token
    causes        matched - cached = the sum of the losses, each of a declared cause
    events        of declared classes; each has a sentence, and is plain data
    answers       the logits of a run without a cache, bit for bit
    determinism   the same requests give the same replies and events
    errors        wrong input is refused with an InputError; a cancelled request ends, the next runs

Then the same check has to find faults that are planted in the engine's replies: a check that
cannot fail shows nothing.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from random import Random
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeAlias

from cachesim.engines.base import Engine, Reply, Request, Ticket
from cachesim.engines.events import Event
from cachesim.engines.facts import causes_in, events_in
from cachesim.engines.family import FAMILIES, Family, Profile
from cachesim.engines.tokens import get_common_prefix
from cachesim.errors import ContractError, InputError, SpecError, UpstreamAbort
from cachesim.model.presets import tiny
from cachesim.testing.laws import BrokenLawError, VacuousCheckError
from cachesim.units import Count, Token, Tokens
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge

MODELS: Final = ("dense", "swa", "hybrid")
"""Models without states, with windows, with states."""

MOST_TURNS: Final = 20_000
"""Iterations of a server's loop after which it counts as endless."""

Plan: TypeAlias = tuple[tuple[Request, ...], ...]
"""Requests, in groups that are submitted together."""


@dataclass(slots=True)
class ContractReport:
    """Counts of the checks of a contract; 0: never exercised."""

    requests: int = 0
    reused: int = 0  # tokens
    losses: int = 0
    events: int = 0
    cancelled: int = 0
    aborts: int = 0  # workloads that end the real process
    wrong: int = 0  # answers unlike those of a run without a cache
    died: int = 0  # plain requests that the server did not answer
    planted: list[str] = field(default_factory=list)  # laws of the planted faults that were found


@dataclass(slots=True)
class _Played:
    """A workload on one server."""

    requests: list[Request] = field(default_factory=list)
    replies: list[Reply | None] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    aborted: bool = False


Spoil: TypeAlias = Callable[[Reply], Reply]
"""A planted fault, made of a reply that reused tokens."""


class _Nondeterministic:
    """Replies that depend on the number of replies before."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, reply: Reply) -> Reply:
        self.asked += 1
        return replace(reply, message=str(self.asked))


FAULTS: Final[Mapping[str, Callable[[], Spoil]]] = {
    "counts": lambda: lambda reply: replace(reply, cached=Count((reply.cached or 0) + 1)),
    "causes": lambda: lambda reply: replace(reply, equal=Count(reply.equal + 1)),
    "answers": lambda: lambda reply: replace(reply, logits=reply.logits + 1),
    "determinism": _Nondeterministic,
}
"""Planted faults by the law that has to find them."""


def engine_contract(
    family: Family[Any, Any],
    *,
    releases: Sequence[str] = (),
    models: Sequence[str] = MODELS,
    workloads: int = 6,
    seed: int = 0,
    right: bool = True,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> ContractReport:
    """Check an engine; raises BrokenLawError with the law and the requests that broke it.

    >>> from cachesim.engines import FAMILIES
    >>> from cachesim.testing import engine_contract
    >>> report = engine_contract(FAMILIES["marconi"], models=("hybrid",), workloads=1)
    >>> report.requests > 0
    True

    `releases` are all of its releases by default. `right=False` is for ports of servers that answer
    wrongly or die: wrong answers, and requests without an answer, are counted only. `options` are
    the server's flags, for one whose blocks are longer than the prompts drawn (20 to 160 tokens).
    """
    report = ContractReport()
    for release in releases or family.names():
        for model in models:
            checked = _Contract(
                family, Profile(family.name, release), model, report, right=right, options=options
            )
            if checked.refuses_model():
                continue
            checked.refusals()
            for number in range(workloads):
                checked.check(_drawn(Random(f"{seed} {number}")))
    if not report.reused:
        msg = f"{family.name}: no request reused a token, so nothing was checked"
        raise VacuousCheckError(msg)
    every = [
        (number, release, model)
        for number in range(workloads)
        for release in releases or family.names()
        for model in models
    ]
    laws = FAULTS if right else FAULTS.keys() - {"answers"}
    report.planted = [
        _control(family, law, every, seed, right=right, options=options) for law in sorted(laws)
    ]
    return report


def _control(
    family: Family[Any, Any],
    law: str,
    every: Iterable[tuple[int, str, str]],
    seed: int,
    *,
    right: bool,
    options: Mapping[str, Any],
) -> str:
    """The law, once a workload shows the fault planted for it."""
    for number, release, model in every:
        profile, spoil = Profile(family.name, release), FAULTS[law]()
        planted = _Contract(
            family, profile, model, ContractReport(), right=right, spoil=spoil, options=options
        )
        if planted.refuses_model():
            continue
        try:
            planted.check(_drawn(Random(f"{seed} {number}")))
        except BrokenLawError as error:
            if error.law == law:
                return law
    msg = f"{family.name}: a planted fault of {law!r} was not found"
    raise VacuousCheckError(msg)


def _drawn(draws: Random) -> Plan:
    """Prompts that continue, repeat, cut and diverge from each other."""
    heads = [_words(draws, draws.randrange(20, 70), number) for number in range(2)]
    known: list[Tokens] = []
    groups = []
    for number in range(2, 9):
        group = []
        for part in range(draws.choice((1, 1, 2, 3))):
            before = draws.choice([*heads, *known[-4:]])
            cut = draws.choice((len(before), len(before), draws.randrange(1, len(before) + 1)))
            more = draws.choice((0, 1, 5, 18, 40))
            prompt = before[:cut] + _words(draws, more, number * 4 + part)
            reply = _words(draws, draws.randrange(1, 6), 50 + part)
            known.append(prompt + reply[: draws.randrange(len(reply) + 1)])
            group.append(Request(prompt=prompt, predict=len(reply), reply=reply))
        groups.append(tuple(group))
    return tuple(groups)


def _words(draws: Random, count: int, first: int) -> Tokens:
    """Tokens that differ from the beginning on where `first` differs."""
    return tuple(Token(16 + first if not i else draws.randrange(16, 96)) for i in range(count))


ERRORS: Final = "errors"


class _Contract:
    """A release on a model."""

    def __init__(
        self,
        family: Family[Any, Any],
        profile: Profile,
        model: str,
        report: ContractReport,
        *,
        right: bool = True,
        spoil: Spoil | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.options = options
        self.family, self.profile, self.spec = family, profile, tiny(model)
        self.report, self.right, self.spoil = report, right, spoil
        packages = {family.package, *(FAMILIES[kin].package for kin in family.kin)}
        self.causes = {cause.id for package in packages for cause in causes_in(package)}
        self.kinds = {kind.name() for package in packages for kind in events_in(package)}
        self.where = f"{profile}, model {model}"

    def refuses_model(self) -> bool:
        """True if the engine states that it cannot run the model."""
        try:
            self._server()
        except SpecError:
            return True
        return False

    def _server(self, **options: Any) -> Engine:
        return Engine.create(
            self.profile,
            model=self.spec,
            arithmetic="ring",
            family=self.family,
            options={**self.options, **options},
        )

    # -- runs --------------------------------------------------------------------------------------

    def _play(self, plan: Plan, cancels: Mapping[int, int]) -> _Played:
        """Submit group after group; request `i` is cancelled after `cancels[i]` turns."""
        engine, played = self._server(), _Played()
        try:
            for group in plan:
                first = len(played.tickets)
                played.tickets += [engine.submit(request) for request in group]
                played.requests += group
                due = {i: cancels[i] for i in range(first, len(played.tickets)) if i in cancels}
                self._run(engine, played, due)
                played.replies += map(engine.reply, played.tickets[first:])
        except UpstreamAbort:
            played.aborted = True
            played.replies += [None] * (len(played.tickets) - len(played.replies))
        else:
            try:
                engine.check_integrity()
                json.dumps(engine.books())
            except (ContractError, TypeError) as error:
                self._broken("counts", str(error), played)
        played.events = list(engine.events)
        if self.spoil is not None:
            reused = (
                reply is not None and reply.cached and reply.error is None
                for reply in played.replies
            )
            played.replies = [
                self.spoil(reply) if reply is not None and spoilt else reply
                for reply, spoilt in zip(played.replies, reused, strict=True)
            ]
        return played

    def _run(self, engine: Engine, played: _Played, due: Mapping[int, int]) -> None:
        for turn in range(MOST_TURNS):
            for i in [i for i, at in due.items() if at == turn]:
                engine.cancel(played.tickets[i])
                played.cancelled.add(i)
            if not engine.step() and turn >= max(due.values(), default=0):
                return
        self._broken(ERRORS, f"the server is not idle after {MOST_TURNS} turns", played)

    # -- laws --------------------------------------------------------------------------------------

    def check(self, plan: Plan) -> None:
        """Check one workload, whole, twice, and with cancelled requests."""
        played = self._play(plan, {})
        self._counted(played)
        other = self._play(plan, {})
        if [event.as_dict() for event in played.events] != [
            event.as_dict() for event in other.events
        ]:
            self._broken("determinism", "a second run has other events", played)
        if [_facts(reply) for reply in played.replies] != [
            _facts(reply) for reply in other.replies
        ]:
            self._broken("determinism", "a second run has other replies", played)
        requests = sum(map(len, plan))
        cancelled = self._play(plan, {i: i % 3 for i in range(0, requests, 4)})
        self._counted(cancelled)
        self.report.cancelled += len(cancelled.cancelled)

    def _counted(self, played: _Played) -> None:
        self.report.aborts += played.aborted
        if played.aborted:
            return
        oracle = Oracle(self._server().network)
        for i, (request, reply) in enumerate(zip(played.requests, played.replies, strict=True)):
            self.report.requests += 1
            if reply is None:
                self._broken(ERRORS, f"request {i} has no reply", played)
            if reply.error is not None:
                died = i not in played.cancelled
                self.report.died += died
                if died and self.right:
                    self._broken(ERRORS, f"request {i} is refused: {reply.error}", played)
                continue
            self._counts(request, reply, played, i)
            self._causes(reply, played, i)
            self._answer(reply, oracle, played, i)
        self._events(played)

    def _counts(self, request: Request, reply: Reply, played: _Played, i: int) -> None:
        cached, processed = reply.cached, reply.processed
        prompt = len(request.prompt)
        if reply.prompt != request.prompt or cached is None or processed is None:
            self._broken("counts", f"request {i}: no counts, or another prompt", played)
        if min(cached, processed) < 0 or cached + processed != prompt:
            text = f"request {i}: {cached} cached + {processed} processed, {prompt} in the prompt"
            self._broken("counts", text, played)
        if len(reply.logits) != len(reply.generated):
            self._broken("counts", f"request {i}: not one row of logits for each token", played)
        self.report.reused += cached

    def _causes(self, reply: Reply, played: _Played, i: int) -> None:
        usable = reply.equal
        for loss in reply.losses:
            if loss.before != usable:
                text = f"request {i}: {loss.rule} begins at {loss.before}, where {usable} are left"
                self._broken("causes", text, played)
            if loss.rule not in self.causes:
                self._broken("causes", f"{loss.rule} is not declared in vocabulary.py", played)
            usable = loss.after
        if usable != reply.cached:
            text = (
                f"request {i}: {reply.equal} matched, {reply.cached} cached, causes end at {usable}"
            )
            self._broken("causes", text, played)
        histories = chain(played.requests[:i], played.requests[i + 1 :])
        held = (history.prompt + (history.reply or ()) for history in histories)
        if reply.equal > max(
            (get_common_prefix(history, reply.prompt) for history in held), default=0
        ):
            text = f"request {i}: matches {reply.equal} tokens, more than any other request has"
            self._broken("causes", text, played)
        self.report.losses += len(reply.losses)

    def _answer(self, reply: Reply, oracle: Oracle, played: _Played, i: int) -> None:
        verdict = judge(reply, oracle)
        if verdict is None or verdict.answer in {"same", "by-design"}:
            return
        self.report.wrong += 1
        if self.right:
            text = f"request {i}: {reply.cached} cached, logits off by {verdict.max_difference:.3g}"
            self._broken("answers", text, played)

    def _events(self, played: _Played) -> None:
        for event in played.events:
            if event.name() not in self.kinds:
                self._broken("events", f"{event.name()} is not declared by the package", played)
            try:
                if not event.sentence:
                    self._broken("events", f"{event.name()} has no sentence", played)
                json.dumps(event.as_dict())
            except (KeyError, TypeError, ValueError) as error:
                self._broken("events", f"{event.name()}: {type(error).__name__}: {error}", played)
        if not played.events:
            self._broken("events", "requests were served without an event", played)
        self.report.events += len(played.events)

    # -- refusals ----------------------------------------------------------------------------------

    def refusals(self) -> None:
        """Wrong input is refused by name, before anything runs."""
        self._refuses(lambda: self._server(no_such_option=1), "an unknown option")
        other = replace(self.profile, release="no-such-release")
        self._refuses(
            lambda: Engine.create(other, model=self.spec, family=self.family), "an unknown release"
        )
        unknown = (Token(self.spec.vocabulary),)
        prompts: dict[str, Tokens] = {"an empty prompt": (), "an unknown token": unknown}
        for what, prompt in prompts.items():
            self._refuses(partial(self._asked, prompt), what)

    def _asked(self, prompt: Tokens) -> None:
        engine = self._server()
        ticket = engine.submit(Request(prompt=prompt, predict=1))
        for _ in range(MOST_TURNS):
            if not engine.step():
                break
        reply = engine.reply(ticket)
        if reply is not None and reply.error:
            msg = f"{reply.error}: {reply.message}"
            raise InputError(msg)

    def _refuses(self, wrong: Callable[[], object], what: str) -> None:
        try:
            wrong()
        except (InputError, UpstreamAbort):
            return
        except Exception as error:  # noqa: BLE001 - any other one breaks the law
            text = f"{what} ends with {type(error).__name__}: {error}, not with an InputError"
        else:
            text = f"{what} is accepted"
        raise BrokenLawError(ERRORS, text, [self.where])

    def _broken(self, law: str, why: str, played: _Played) -> NoReturn:
        story = [
            f"{len(request.prompt)} tokens {list(request.prompt[:4])}..., "
            f"{len(request.reply or ())} forced"
            for request in played.requests
        ]
        raise BrokenLawError(law, why, [self.where, *story])


def _facts(reply: Reply | None) -> tuple[Any, ...]:
    if reply is None:
        return ()
    losses = tuple(loss.as_dict() for loss in reply.losses)
    counts = (reply.cached, reply.processed, reply.equal, reply.generated, reply.error)
    return (*counts, reply.message, losses, reply.logits.tobytes())
