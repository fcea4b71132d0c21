"""Requests to any simulated server, one after the other, and whether answers are the cold ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cachesim.engines.base import Engine, Reply, Request
from cachesim.typed import there_is
from cachesim.units import as_tokens
from cachesim.verify.oracle import Oracle, cold_logits
from cachesim.verify.verdict import judge


def answer(engine: Engine, prompt: Sequence[int], predict: int = -1, **fields: Any) -> Reply:
    ticket = engine.submit(Request(prompt=as_tokens(prompt), predict=predict, **fields))
    engine.run()
    engine.check_integrity()
    return there_is(engine.reply(ticket))


def cached(engine: Engine, *prompts: Sequence[int], **fields: Any) -> list[int | None]:
    return [answer(engine, prompt, **fields).cached for prompt in prompts]


def is_cold(engine: Engine, reply: Reply) -> bool:
    first = len(reply.prompt) - 1
    rows = range(first, first + len(reply.generated))
    cold = cold_logits(engine.network, reply.written, rows=rows)
    return np.array_equal(cold, reply.logits)


def names(engine: Engine) -> list[str]:
    return [event.name() for event in engine.events]


def verdict(engine: Engine, reply: Reply) -> str:
    return there_is(judge(reply, Oracle(engine.network))).answer
