"""Source of a trace: file or generator, the part to run, the scale.

conversation_trace.jsonl    a file as its publishers write it, or compressed
made:100000, made:100000:7  generated requests, their number and a seed
made:agents:5000            the same of coding agents

Generated agents have the statistics of kv-cache-tester's corpus (`docs/trace_replay_tester.md`: 642
conversations, 112,176 requests, 13,675,350,647 tokens). Its table gives quantiles of a
conversation's first prompt, its last prompt, the share that an unlimited cache reuses of it, and
its duration; those of replies are counted in 142 of its files. Between quartiles values are even in
their logarithms, so means differ: 0.91 of a conversation is reused in the mean, where the corpus
has 0.936. A conversation is drawn by these four, and its number of requests follows:

    first      prompts grow evenly from the first length to the last
    ....       sum of the prompts = last / (1 - reuse), as each token of the last was computed once
    last
"""

import hashlib
import heapq
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import exp, log
from pathlib import Path
from typing import Final, TypeAlias, get_args

from cachesim.files import readable
from cachesim.traces.forms import open_form
from cachesim.traces.reading import MOST_TOKENS, Clock, TraceError, TraceRequest
from cachesim.typed import check_whole

MOST_REQUESTS: Final = 1 << 40

AGENT_UNIT: Final = 64
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
    """The value below which a share of all values is; even between the quartiles' logarithms."""
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
    first, last = (max(1, round(drawn(mean, size))) for mean in (FIRST, LAST))
    total = last / computed
    count = max(2, round(2 * total / (first + last)))
    step = (last - first) / (count - 1)
    lengths = [first + round(step * at) for at in range(count)]
    return Conversation(lengths, 60_000 * drawn(MINUTES, draw.random()) / count)


def agent_requests(count: int, seed: int = 0) -> Iterator[TraceRequest]:
    """A number of agents' requests, sorted by time, reproducible by seed."""
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
        whole, rest = divmod(length, AGENT_UNIT)
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


UNIT: Final = 512

SYSTEMS: Final = 16
"""Number of system prompts; the n-th has the weight `1 / (n + 1)`."""

CHATS: Final = 400
"""Concurrent chats."""

TURNS: Final = 6
"""Mean turns of a chat."""

GROWTH: Final = 3
"""Most blocks added by a turn."""

LONGEST: Final = 240
"""Number of blocks after which a chat ends."""


def made_requests(count: int, seed: int = 0) -> Iterator[TraceRequest]:
    """Generated requests, reproducible by seed."""
    draw = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(SYSTEMS)]
    chats: list[list[int]] = []
    fresh = SYSTEMS
    for number in range(count):
        if len(chats) < CHATS:
            (system,) = draw.choices(range(SYSTEMS), weights)
            at = len(chats)
            chats.append([system])
        else:
            at = draw.randrange(CHATS)
        chat = chats[at]
        grown = draw.randint(1, GROWTH)
        chat += range(fresh, fresh + grown)
        fresh += grown
        length = UNIT * (len(chat) - 1) + draw.randint(1, UNIT)
        yield TraceRequest(
            time=float(number), length=length, output=draw.randint(1, UNIT), blocks=tuple(chat)
        )
        if len(chat) > LONGEST or draw.random() < 1 / TURNS:
            chats[at] = chats[-1]
            chats.pop()


MADE: Final = re.compile(r"made:(agents:)?(\d{1,10})(?::(\d{1,10}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A trace and its reading options."""

    name: str
    unit: int = 0  # tokens of a block; 0: as the first request has it
    first: int | None = None  # maximum requests; all if None
    scale: int = 1  # tokens that become one
    replies: int | None = (
        None  # tokens of every reply, after scaling; as the trace has them if None
    )
    turn: int = 0  # milliseconds of a turn of the server's loop; 0: only the order counts
    remember: int | None = None  # blocks that count as requested before; all if None
    timestamps: Clock | None = None  # what they count; as the form of the trace has it if None
    rank: int | None = None  # of KV events, the requests of one data-parallel rank; all if None
    file: str = ""  # where the trace is, if its name is not a path

    def __post_init__(self) -> None:
        check_whole("--rank", self.rank, 0)
        check_whole("--first", self.first, 1, MOST_REQUESTS)
        check_whole("--replies", self.replies, 1, MOST_TOKENS)
        check_whole("--remember", self.remember, 1, MOST_REQUESTS)
        check_whole("--scale", self.scale, 1)
        if not 0 <= self.turn <= MOST_REQUESTS:
            msg = f"--turn is {self.turn}; write milliseconds, or 0 where only the order counts"
            raise TraceError(msg)
        if self.timestamps not in {None, *get_args(Clock)}:
            raise TraceError(f"--timestamps is {self.timestamps!r}; write s for seconds or ms")
        made = MADE.fullmatch(self.name)
        if self.name.startswith("made:") and (made is None or not int(made[2])):
            forms = "made:REQUESTS, made:REQUESTS:SEED, or made:agents:REQUESTS"
            raise TraceError(f"{self.name} is not a trace; write {forms}")
        if self.name.startswith("made:") and self.rank is not None:
            raise TraceError(f"--rank is {self.rank}, and only KV events name ranks; leave it out")

    def open(self) -> tuple[int, Iterator[TraceRequest]]:
        """The block size, and the requests."""
        made = MADE.fullmatch(self.name)
        if made:
            count, seed = int(made[2]), int(made[3] or 0)
            unit = AGENT_UNIT if made[1] else UNIT
            requests = (agent_requests if made[1] else made_requests)(count, seed)
        else:
            unit, requests = open_form(
                self.path, self.unit, name=self.name, clock=self.timestamps, rank=self.rank
            )
        if unit % self.scale:
            msg = f"--scale is {self.scale}; it must divide the trace's blocks of {unit} tokens"
            raise TraceError(msg)
        return unit, islice(requests, self.first)

    @property
    def path(self) -> Path:
        return Path(self.file or self.name)

    def longest(self) -> int:
        """Replayed tokens of the longest request and its reply, wherever in the trace it is.

        The part that is run has no say, so that its results are those of the whole trace so far.
        """
        return _longest(replace(self, first=None))

    def digest(self) -> str:
        """Digest of the trace's requests, independent of the file's place."""
        if MADE.fullmatch(self.name):
            return self.name
        digests = []
        with readable(self.name, TraceError):
            for path in sorted(self.path.iterdir()) if self.path.is_dir() else [self.path]:
                with path.open("rb") as file:
                    digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        return "-".join(digests)


@lru_cache(maxsize=64)
def _longest(source: Source) -> int:
    _, requests = source.open()
    scale, replies = source.scale, source.replies
    return max(
        (
            -(-request.length // scale) + (replies or max(1, request.output // scale))
            for request in requests
        ),
        default=0,
    )
