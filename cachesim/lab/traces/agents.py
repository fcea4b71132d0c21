"""Generated traffic of coding agents, with the statistics of a published corpus.

The corpus is kv-cache-tester's (`docs/trace_replay_tester.md`: 642 conversations, 112,176 requests,
13,675,350,647 tokens). Its table gives quantiles of a conversation's first prompt, its last prompt,
the share that an unlimited cache reuses of it, and its duration; those of replies are counted in
142 of its files. Between quartiles values are even in their logarithms, so means differ: 0.91 of a
conversation is reused in the mean, where the corpus has 0.936. A conversation is drawn by these
four, and its number of requests follows:

    first      prompts grow evenly from the first length to the last
    ....       sum of the prompts = last / (1 - reuse), as each token of the last was computed once
    last
"""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final, TypeAlias

from cachesim.lab.traces.reading import TraceRequest

UNIT: Final = 64
"""Tokens of a block, as in the corpus."""

USERS: Final = 32
"""Conversations at once; a new one begins where one has ended."""

Quantiles: TypeAlias = tuple[float, float, float, float, float]
"""The least, the quartiles, and the most."""

FIRST: Final[Quantiles] = (8_832, 16_512, 20_160, 71_168, 639_552)
LAST: Final[Quantiles] = (10_304, 65_600, 115_008, 149_632, 785_280)
COMPUTED: Final[Quantiles] = (0.004, 0.015, 0.031, 0.089, 0.617)  # what is not reused
MINUTES: Final[Quantiles] = (0.2, 11.9, 60.2, 163.0, 11_105.6)
REPLY: Final[Quantiles] = (1, 138, 219, 427, 12_162)


def drawn(quantiles: Quantiles, share: float) -> float:
    """The value below which a share of all values lies; even between the quartiles' logarithms."""
    at = min(3, int(4 * share))
    low, high = quantiles[at : at + 2]
    return exp(log(low) + (4 * share - at) * (log(high) - log(low)))


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation before its first request."""

    lengths: Sequence[int]  # tokens of each prompt
    pause: float  # milliseconds between two requests


def conversation(draw: random.Random) -> Conversation:
    """A conversation by the quantiles; those of the first and the last prompt are drawn together,
    since no prompt shrinks.
    """
    size, computed = draw.random(), drawn(COMPUTED, draw.random())
    first, last = (max(1, round(drawn(each, size))) for each in (FIRST, LAST))
    total = last / computed
    count = max(2, round(2 * total / (first + last)))
    step = (last - first) / (count - 1)
    lengths = [first + round(step * at) for at in range(count)]
    return Conversation(lengths, 60_000 * drawn(MINUTES, draw.random()) / count)


def agent_requests(count: int, seed: int = 0) -> Iterator[TraceRequest]:
    """So many requests of agents, by their times, reproducible by seed."""
    draw, fresh = random.Random(seed), 0
    waiting: list[tuple[float, int, list[int], Iterator[int], float]] = []
    started = 0

    def begin(now: float) -> None:
        nonlocal started
        new = conversation(draw)
        began = now + draw.random() * new.pause
        heapq.heappush(waiting, (began, started, [], iter(new.lengths), new.pause))
        started += 1

    for _ in range(USERS):
        begin(0.0)
    for _ in range(count):
        while True:
            time, number, blocks, lengths, pause = heapq.heappop(waiting)
            length = next(lengths, None)
            if length is not None:
                break
            begin(time)
        whole, rest = divmod(length, UNIT)
        grown = whole - len(blocks)
        blocks += range(fresh, fresh + grown)
        fresh += grown
        tail = (fresh,) if rest else ()
        fresh += bool(rest)
        yield TraceRequest(
            time=time,
            length=length,
            output=round(drawn(REPLY, draw.random())),
            blocks=(*blocks, *tail),
        )
        again = time + pause * (0.5 + draw.random())
        heapq.heappush(waiting, (again, number, blocks, lengths, pause))
