"""Simulated releases, flags and kinds of models that explain the cached counts of a server.

Each candidate is a simulated server that gets the same requests with the server's own replies.
One whose count differs is ruled out. Of several drawn workloads the one is sent next on which those
that are left disagree most.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from cachesim.engines import Engine, Request
from cachesim.engines.family import Profile, family_of
from cachesim.engines.words import counted
from cachesim.errors import CachesimError
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.play.findings import play
from cachesim.probe.answers import Answer, Query, Word
from cachesim.scenario.format import Scenario
from cachesim.testing.survey import Cause, causes_by_step
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracles

Options: TypeAlias = dict[str, Any]

MODELS: Final = ("dense", "swa", "recurrent", "hybrid", "hybrid-swa")
"""Kinds of memory; the layers of `hybrid-delta` are kept as those of `hybrid`."""

FLAGS: Final[Mapping[str, tuple[Options, ...]]] = {
    "llama.cpp": (
        {"ctx_checkpoints": 0},
        {"cache_ram": 0},
        {"swa_full": True},
        {"slot_prompt_similarity": 0.5},
        {"cache_reuse": 4},
        {"checkpoint_min_step": 64},
    ),
    "vllm": ({"enable_prefix_caching": False}, {"block_size": 32}),
    "sglang": ({"page_size": 16},),
}
"""Flags other than the default that candidates have, one set each."""

VOCABULARY: Final = 1 << 16
"""Different tokens of one run that simulated servers can hold."""

JUDGES: Final = 8
"""Candidates that drawn workloads are tried on."""

RARER: Final = 8
"""Factor of workloads drawn for each one that is sent, after a finding."""

STATES: Final = 60
"""States of a simulated server that are kept after a client has left."""

TURNS: Final = 50_000
"""Turns of a simulated server for one request."""


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A simulated server, and the releases that have the same rules."""

    releases: list[str]
    engine_name: str
    model: str
    options: Options
    shown: Options  # flags that differ from the default
    engine: Engine
    others: list[Engine] = field(default_factory=list)  # if clients left after another turn

    @property
    def profile(self) -> Profile:
        """The newest of its releases."""
        return Profile.parse(f"{self.engine_name}@{self.releases[-1]}")

    @property
    def flags(self) -> str:
        """Flags that differ from the default."""
        return " ".join(f"{name}={value}" for name, value in self.shown.items())

    def __str__(self) -> str:
        first, last = self.releases[0], self.releases[-1]
        named = first if first == last else f"{first} to {last}"
        return f"{named} {self.model} {self.flags}".strip()

    def cached(
        self, query: Query, numbers: Mapping[Word, int], reply: Sequence[Word]
    ) -> int | str | None:
        """The count that it reports; the refusal where it refuses."""
        try:
            ticket = self.engine.submit(_request(query, numbers, reply))
            for _ in range(TURNS):
                if not self.engine.step():
                    break
            answer = self.engine.reply(ticket)
            if answer is not None:
                self.engine.forget(ticket)  # a copy of this server then has no events to copy
        except CachesimError as error:
            return type(error).__name__
        return "no answer" if answer is None else answer.error or answer.cached

    def counts(
        self, query: Query, numbers: Mapping[Word, int], answer: Answer
    ) -> set[int | str | None]:
        """The counts of all states; those states that explain the answer's are kept."""
        states = [replace(self, engine=other, others=[]) for other in (self.engine, *self.others)]
        found = [state.cached(query, numbers, answer.tokens) for state in states]
        kept = [s.engine for s, count in zip(states, found, strict=True) if count == answer.cached]
        if len(kept) > 1:
            kept = list({repr(engine.snapshot()): engine for engine in kept}.values())
        self.engine, *self.others = kept or [self.engine]
        return set(found)

    def causes(self, scenario: Scenario) -> Mapping[int, frozenset[Cause]]:
        """Causes of the wrong answers of a workload from a fresh start, by step."""
        flags = replace(scenario.engine, name=self.engine_name, options=self.options)
        whole = replace(scenario, engine=flags, model=replace(scenario.model, preset=self.model))
        with suppress(CachesimError):
            return causes_by_step(whole, self.profile, "ring")
        return {}

    def leave(self, query: Query, numbers: Mapping[Word, int]) -> None:
        """Divide each state by the turn after which the client of a request leaves.

        state    before   1 turn   2 turns ... answered
        """
        states = list[Engine]()
        for engine in (self.engine, *self.others):
            states.append(_copied(engine))
            ticket = engine.submit(_request(query, numbers, query.reply))
            while engine.reply(ticket) is None and len(states) < STATES:
                left = _copied(engine)
                left.cancel(ticket)
                left.run()
                states.append(left)
                engine.step()
            engine.run()
            states.append(engine)
        self.engine, *self.others = states


def _request(query: Query, numbers: Mapping[Word, int], reply: Sequence[Word]) -> Request:
    return Request(
        prompt=as_tokens([numbers[word] for word in query.prompt]),
        predict=len(query.reply),
        reply=as_tokens([numbers[word] for word in reply]) or None,
        slot=query.slot,
        cache_prompt=query.cache_prompt,
    )


@dataclass(slots=True)
class Fingerprint:
    """The remaining candidates, and the first count that none of them explains."""

    left: list[Candidate]
    first: int = 0
    requests: int = 0
    leavers: int = 0  # clients that left
    unexplained: str = ""
    fresh: bool = True  # the server was started for this
    _numbers: dict[Word, int] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: str, slots: int, context: int) -> "Fingerprint":
        """Every distinguishable release, kind of model and set of flags."""
        found = list(_candidates(engine, slots, context)) if engine else []
        return cls(found, first=len(found))

    def add(self, query: Query, answer: Answer) -> None:
        """Rule out candidates with another count."""
        numbers = self.numbered(query.prompt, query.reply, answer.tokens)
        if query.leaves:
            self.leavers += 1
            for candidate in self.left:
                candidate.leave(query, numbers)
        if answer.error or answer.cached is None or not self.left:
            return
        self.requests += 1
        counts = [candidate.counts(query, numbers, answer) for candidate in self.left]
        agree = [c for c, found in zip(self.left, counts, strict=True) if answer.cached in found]
        if not agree:
            named = ", ".join(sorted({str(count) for found in counts for count in found})[:4])
            left = f", after {counted(self.leavers, 'client')} left," if self.leavers else ""
            self.unexplained = (
                f"request {self.requests}{left} reports {answer.cached} of {len(query.prompt)} "
                f"tokens cached; the simulated servers that explained all before report {named}"
            )
        self.left = agree

    def numbered(self, *texts: Sequence[Word]) -> Mapping[Word, int]:
        """Tokens of the simulated servers for all words so far."""
        for text in texts:
            for word in text:
                self._numbers.setdefault(word, len(self._numbers) % VOCABULARY)
        return self._numbers

    def dividing(self, drawn: Sequence[tuple[Scenario, Sequence[Query]]]) -> Scenario:
        """The drawn workload on which most candidates disagree."""
        judges = self.left[:: max(1, len(self.left) // JUDGES)]

        def kinds(queries: Sequence[Query]) -> int:
            for query in queries:
                self.numbered(query.prompt, query.reply)
            engines = [replace(judge, engine=_copied(judge.engine)) for judge in judges]
            return len(
                {tuple(e.cached(q, self._numbers, q.reply) for q in queries) for e in engines}
            )

        return max(drawn, key=lambda setting: kinds(setting[1]))[0]

    @property
    def ranked(self) -> list[Candidate]:
        """The candidates: those with default flags first, newer releases first."""
        if not self.left:
            return []
        order = family_of(self.left[0].engine_name).names()
        return sorted(self.left, key=lambda e: (len(e.shown), -order.index(e.releases[-1])))

    def names(self) -> str:
        """The candidates in words: releases, kinds of models, flags."""
        order = family_of(self.left[0].engine_name).names()
        releases = {release for one in self.left for release in one.releases}
        named = [release for release in order if release in releases]
        gaps = order.index(named[-1]) - order.index(named[0]) + 1 - len(named)
        range_ = ", ".join(named) if gaps or len(named) < 3 else f"{named[0]} to {named[-1]}"
        models = ", ".join(dict.fromkeys(candidate.model for candidate in self.left))
        flags = dict.fromkeys(candidate.flags or "default flags" for candidate in self.left)
        return f"{self.left[0].engine_name} {range_}; model {models}; {', '.join(flags)}"


def _copied(engine: Engine) -> Engine:
    """A copy of the mutable state; network, family and rules are shared."""
    shared = (engine.network, engine.family, engine.profile, engine.family.rules(engine.profile))
    return deepcopy(engine, {id(part): part for part in shared})


def _candidates(engine: str, slots: int, context: int) -> Iterator[Candidate]:
    family = family_of(engine)
    base: Options = {"parallel": slots, "ctx_size": slots * context} if family.has_slots else {}
    variants = [{}, *FLAGS.get(engine, ())]
    if slots > 1 and family.has_slots:
        variants += [{"kv_unified": True, "ctx_size": context}]
    seen: dict[tuple[str, str, str], Candidate] = {}
    for model in MODELS:
        network = build(replace(preset(model), vocabulary=VOCABULARY), "counts")
        for release in family.names():
            profile = Profile(engine, release)
            for shown in variants:
                options = base | shown
                try:
                    key = model, repr(family.rules(profile)), repr(family.read(profile, options))
                    if key in seen:
                        seen[key].releases.append(release)
                        continue
                    made = Engine.create(profile, model=network, options=options)
                except CachesimError:  # a flag that this release does not have
                    continue
                seen[key] = Candidate(
                    releases=[release],
                    engine_name=engine,
                    model=model,
                    options=options,
                    shown=shown,
                    engine=made,
                )
    yield from seen.values()


class Guide:
    """Choice of the next workload by coverage: events that were rare in candidates so far."""

    def __init__(
        self, candidates: Sequence[Candidate], tries: int, cured: Collection[str] = ()
    ) -> None:
        """`cured` are patches of earlier findings."""
        self._candidates = candidates
        self._tries = tries
        self._cured = cured
        self._reached: dict[str, int] = {}
        self._oracles = Oracles()

    def choose(self, draw: Callable[[], Scenario]) -> Scenario:
        """The best of several drawn workloads; the first where nothing guides."""
        if not self._candidates or self._tries == 1:
            return draw()
        scored = list[tuple[frozenset[str], Scenario]]()
        for _ in range(self._tries * (RARER if self._cured else 1)):
            one = draw()
            scored.append((self._reaches(one), one))
            if self._cured and "wrong" in scored[-1][0]:
                break
        reached, best = max(scored, key=lambda setting: self._score(setting[0]))
        for kind in reached:
            self._reached[kind] = self._reached.get(kind, 0) + 1
        return best

    def _score(self, reached: frozenset[str]) -> float:
        return math.fsum(
            (3.0 if kind == "wrong" else 1.0) / (1 + self._reached.get(kind, 0)) ** 0.5
            for kind in reached
        )

    def _reaches(self, scenario: Scenario) -> frozenset[str]:
        found: set[str] = set()
        for candidate in self._candidates:
            flags = replace(scenario.engine, options=candidate.options)
            model = replace(scenario.model, preset=candidate.model)
            workload = replace(scenario, engine=flags, model=model)
            cures = family_of(candidate.engine_name).cures(candidate.profile)
            patches = (patch.name for patch in cures if patch.name in self._cured)
            profile = candidate.profile.with_patches(*patches)
            try:
                trial = play(workload, profile, stop_early=False, oracles=self._oracles, thin=True)
            except CachesimError:
                continue
            found |= trial.exercised.keys() | ({"wrong"} if trial.wrong else set())
        return frozenset(found)
