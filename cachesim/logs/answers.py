"""Whether the answers would have been right: the same requests with a network of exact words.

The tokens of a rebuilt workload are names; here each gets a number that the ring network reads.
An answer that differs from a cold recompute came from memory that belongs to other tokens.
"""

from dataclasses import replace
from typing import Any, Final

from cachesim.engines.base import Engine, Request, Ticket
from cachesim.engines.rope import Rope
from cachesim.errors import UpstreamAbort
from cachesim.logs.other import Workload
from cachesim.logs.player import Asked, knows_messages
from cachesim.scenario.spans import mixed
from cachesim.units import Token, Tokens
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge

VOCABULARY: Final = 65_536
FIRST: Final = 300

MOST_TURNS: Final = 200_000


def wrong_answers(
    workload: Workload, profile: str, options: dict[str, Any], *, most: int
) -> int | None:
    """How many answers are wrong on a server; None where it has more than so many prompt tokens."""
    if sum(len(each.prompt) for each in workload.asked.values()) > most:
        return None
    spec = replace(workload.spec, vocabulary=VOCABULARY)
    engine = Engine.create(profile, model=spec, options=options, arithmetic="ring")
    oracle = Oracle(engine.network)
    tickets: dict[int, Ticket] = {}
    wrong = 0
    try:
        for what, number in workload.order:
            if what == "erase":
                continue
            asked = workload.asked[number]
            if what == "launch":
                tickets[number] = engine.submit(_request(asked, profile))
            else:
                wrong += _is_wrong(engine, tickets[number], oracle)
    except UpstreamAbort:
        return wrong
    return wrong


def _request(asked: Asked, profile: str) -> Request:
    options: dict[str, Any] = {} if len(asked.prompt) else {"prompt_string": True}
    if asked.user_starts and knows_messages(profile):
        spans = [{"role": "user", "start": at} for at in asked.user_starts]
        options["message_spans"] = spans
    held = asked.cancel_at
    most = len(asked.reply) if held is None else max(1, held - len(asked.prompt) + 1)
    reply = numbered(asked.reply[:most])
    return Request(
        prompt=numbered(asked.prompt),
        predict=max(1, len(reply)),
        reply=reply,
        slot=asked.slot,
        cache_prompt=asked.cache_prompt,
        options=options or None,
    )


def _is_wrong(engine: Engine, ticket: Ticket, oracle: Oracle) -> bool:
    for _ in range(MOST_TURNS):
        reply = engine.reply(ticket)
        if reply is not None:
            verdict = judge(reply, oracle)
            return verdict is not None and verdict.answer == "diverged"
        engine.step()
    return False


def numbered(rope: Rope) -> Tokens:
    """The tokens of a rope as numbers of a vocabulary, the same for the same place of a text."""
    return tuple(Token(FIRST + mixed(token) % (VOCABULARY - FIRST)) for token in rope)
