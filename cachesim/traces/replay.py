"""A trace on an engine, one request after the other, counts only.

    trace        | block 7: 512 | block 9: 512 | block 12: 86 |       reply: 500
    scaled by 32 |      16      |      16      |      3       |       reply:  15

A trace is scaled so that its blocks stay whole: a prompt of n tokens has n / scale, rounded up, a
reply rounded down and at least one. Only the order counts: there is no time in it, so nothing is
claimed about latency.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, cast

from cachesim.engines import FAMILIES
from cachesim.engines.base import Engine, Request, Ticket
from cachesim.engines.events import EventLog
from cachesim.engines.profile import Profile
from cachesim.engines.rope import Rope
from cachesim.errors import InputError
from cachesim.model.spec import ModelSpec
from cachesim.traces.reading import Asked
from cachesim.units import Tokens

REPLIES: Final = 1 << 37
"""The first text that is a reply: nobody asks for it again, for traces do not tell replies."""


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What a server reused of a trace."""

    profile: Profile
    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # by cause: tokens that were equal once

    @property
    def rate(self) -> float:
        """The share of the prompts' tokens that came from the cache."""
        return self.cached / self.prompt_tokens if self.prompt_tokens else 0.0


def scaled(requests: Iterable[Asked], unit: int, scale: int) -> Iterator[tuple[Rope, Rope]]:
    """Prompts and replies, every block of them a text of its own."""
    if scale < 1 or unit % scale:
        msg = f"--scale is {scale}; it must divide the trace's blocks of {unit} tokens"
        raise InputError(msg)
    size = unit // scale
    for number, each in enumerate(requests):
        last = -(-each.length // scale) - size * (len(each.blocks) - 1)
        runs = [(block + 1, 0, size) for block in each.blocks[:-1]]
        prompt = Rope([*runs, (each.blocks[-1] + 1, 0, last)])
        yield prompt, Rope.of(REPLIES + number, max(1, each.output // scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """On what a trace is played."""

    profile: Profile
    model: ModelSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    scale: int = 1
    first: int | None = None  # so many requests; all if None


def replay(plan: Plan, requests: Iterable[Asked], unit: int) -> Iterator[Replayed]:
    """The running account, after each request."""
    family = FAMILIES[plan.profile.engine]
    quiet = {family.records_provenance: False} if family.records_provenance else {}
    engine = Engine.create(
        plan.profile, model=plan.model, options={**plan.options, **quiet}, arithmetic="counts"
    )
    found = Replayed(profile=plan.profile)
    for prompt, reply in scaled(islice(requests, plan.first), unit, plan.scale):
        ticket = engine.submit(
            Request(prompt=cast("Tokens", prompt), predict=len(reply), reply=cast("Tokens", reply))
        )
        engine.run()
        _count(found, engine, ticket, len(prompt))
        yield found


def _count(found: Replayed, engine: Engine, ticket: Ticket, length: int) -> None:
    answer = engine.reply(ticket)
    found.requests += 1
    if answer is None or answer.cached is None:
        found.refused += 1
    else:
        found.prompt_tokens += length
        found.cached += answer.cached
        for loss in answer.losses:
            found.lost[loss.rule] += loss.before - loss.after
    if isinstance(engine.events, EventLog):
        engine.events.clear()  # what happened is counted; a trace may be larger than memory
