"""Verification of sampled answers: computed from the server's cache, and cold.

    counts   1  2  3  4  5  6  7 ...        which requests reuse something, and how much
    ring     1  2  3  4  5  6  7 ...        the same server with arithmetic, the same requests
    cold           3        6               the sample's answers, without any cache

A server that reuses much because it reuses what it must not is found that way: its answers differ.
The whole trace goes through the server, for what is reused depends on all that came before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, cast

from cachesim.engines.base import Engine, Reply
from cachesim.engines.family import Profile
from cachesim.errors import InputError
from cachesim.scenario.labels import Evidence, label_of_release
from cachesim.traces.replay import Cell, Served, Serving
from cachesim.units import Token, Tokens
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge

VOCABULARY: Final = 65_536
"""Largest vocabulary of a toy network."""

STRIDE: Final = 40_503
"""Distance of a block's consecutive tokens; odd, so that none repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A request whose answer differs from the cold one."""

    number: int
    prompt_tokens: int
    cached: int
    step: int  # the first wrong token of the reply

    @property
    def sentence(self) -> str:
        """Sentence on the wrong answer."""
        return (
            f"request {self.number}, {self.cached} of {self.prompt_tokens} tokens reused: the "
            f"logits of its reply differ from an uncached run's, first at token {self.step}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Verdicts on a sample of the answers."""

    played: int  # requests up to the last one of the sample
    reusing: int  # requests of the trace that reused something
    sampled: int
    wrong: tuple[Wrong, ...] = ()
    by_design: int = 0  # answers that differ by design of the server
    otherwise: int = 0  # requests of which arithmetic made the server reuse another number
    evidence: Evidence | None = None  # of the wrong answers

    @property
    def sentence(self) -> str:
        """Sentence on the sample and the right answers in it."""
        if not self.sampled:
            return "no request reused anything, so no answer was computed"
        text = (
            f"{self.sampled} of {self.reusing:,} requests that reused something were computed with "
            f"and without the cache: {self.sampled - len(self.wrong) - self.by_design} answers are "
            "the same"
        )
        if self.by_design:
            verb = "differs" if self.by_design == 1 else "differ"
            text += f", {self.by_design:,} {verb} by design of the server"
        if self.otherwise:
            text += f"; {self.otherwise:,} of {self.played:,} requests were decided differently"
        return text

    @property
    def right(self) -> bool:
        """True without a wrong answer."""
        return not self.wrong and not self.otherwise


def verified(cell: Cell, count: int) -> Verified:
    """Replay a cell with arithmetic, and compare sampled answers with cold ones."""
    if count < 1:
        raise InputError(f"--verify is {count}; write how many requests are to be computed, from 1")
    replayed = Serving(cell.engine()).serve(cell.requests(), cell.source.turn)
    reused = {played.request.number: _cached(played.answer) for played in replayed}
    reusing = sorted(number for number, cached in reused.items() if cached)
    sample = set(spread(reusing, count))
    last = max(sample, default=-1)
    server = cell.engine("ring", vocabulary=VOCABULARY)
    oracle, wrong, by_design, otherwise = Oracle(server.network), [], 0, 0
    for served in spelled(server, cell, last + 1):
        number, answer = served.request.number, served.answer
        otherwise += _cached(answer) != reused[number]
        verdict = judge(answer, oracle) if answer is not None and number in sample else None
        by_design += verdict is not None and verdict.answer == "by-design"
        if answer is None or verdict is None or verdict.answer == "by-design":
            continue
        if verdict.wrong is not None:
            wrong.append(
                Wrong(
                    number=number,
                    prompt_tokens=len(answer.prompt),
                    cached=answer.cached or 0,
                    step=verdict.wrong.step,
                )
            )
    return Verified(
        played=last + 1,
        reusing=len(reusing),
        sampled=len(sample),
        wrong=tuple(wrong),
        by_design=by_design,
        otherwise=otherwise,
        evidence=label_of_release(Profile.parse(cell.profile)) if wrong else None,
    )


def spread(numbers: list[int], count: int) -> list[int]:
    """Evenly spaced samples, the first and the last included."""
    if len(numbers) <= count:
        return numbers
    if count == 1:
        return numbers[-1:]
    return [numbers[at * (len(numbers) - 1) // (count - 1)] for at in range(count)]


def _cached(answer: Reply | None) -> int | None:
    return None if answer is None else answer.cached or 0


def spelled(server: Engine, cell: Cell, count: int) -> Iterator[Served]:
    """The first requests, in tokens of a network's vocabulary."""
    spelling = Spelling()
    requests = (
        replace(request, prompt=spelling.of(request.prompt), reply=spelling.of(request.reply))
        for request in islice(cell.requests(), count)
    )
    return Serving(server).serve(requests, cell.source.turn)


class Spelling:
    """Every block as tokens of a toy's vocabulary.

    Blocks are numbered as they come, and the first token of each is its number: what follows one
    prefix differs in its first token, as it does in the trace, up to 65,536 blocks.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def of(self, tokens: Tokens) -> Tokens:
        """The tokens of a rope."""
        numbers = self._numbers
        spelt = []
        for text, first, last in cast("Any", tokens).runs:
            number = numbers.setdefault(text, len(numbers))
            spelt += [Token((number + at * STRIDE) % VOCABULARY) for at in range(first, last)]
        return tuple(spelt)
