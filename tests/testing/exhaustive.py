"""The small scope, whole: every workload over a few short prompts, each state visited once.

Two servers that hold the same go on alike, so the search walks states, not workloads: from every
state that is new, every prompt is asked of a copy. What is counted is pinned by tests, so that a
model that has silently become smaller is noticed.
"""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from cachesim.engines import Engine, Profile, Request, Ticket
from cachesim.model.arithmetic import Network
from cachesim.model.build import build
from cachesim.model.presets import preset
from cachesim.testing.workloads import FIRST_WORD
from cachesim.units import Tokens, as_tokens
from cachesim.verify.oracle import Oracle
from cachesim.verify.verdict import judge

REPLY = as_tokens([FIRST_WORD])


@dataclass(slots=True, kw_only=True)
class Explored:
    """What a walk saw."""

    states: int = 0
    requests: int = 0
    wrong: list[tuple[Tokens, ...]] = field(default_factory=list)  # ways to a wrong answer


def prompts_over_two_tokens(*lengths: int) -> tuple[Tokens, ...]:
    """Every prompt of these lengths over the first two words of the vocabulary."""
    words = (FIRST_WORD, FIRST_WORD + 1)
    return tuple(as_tokens(ids) for length in lengths for ids in product(words, repeat=length))


def explore(
    profile: str,
    model: str,
    *,
    prompts: Sequence[Tokens],
    requests: int = 4,
    options: dict[str, Any] | None = None,
) -> Explored:
    """Walk all workloads of up to `requests` requests, breadth first."""
    network = build(preset(model), "ring")
    oracle = Oracle(network)
    seen = Explored()
    start = Engine.create(Profile.parse(profile), model=network, options=options or {})
    known = {fingerprint(start)}
    frontier: list[tuple[Engine, tuple[Tokens, ...]]] = [(start, ())]
    for _ in range(requests):
        reached: list[tuple[Engine, tuple[Tokens, ...]]] = []
        for engine, way in frontier:
            for prompt in prompts:
                after = copied(engine, network)
                right = _ask(after, prompt, oracle)
                seen.requests += 1
                if not right:
                    seen.wrong.append((*way, prompt))
                mark = fingerprint(after)
                if mark not in known:
                    known.add(mark)
                    reached.append((after, (*way, prompt)))
        frontier = reached
    seen.states = len(known)
    return seen


def _ask(engine: Engine, prompt: Tokens, oracle: Oracle) -> bool:
    """One request; whether its answer was the cold one."""
    ticket: Ticket = engine.submit(Request(prompt=prompt, predict=1, reply=REPLY))
    engine.run()
    engine.check_integrity()
    reply = engine.reply(ticket)
    verdict = None if reply is None else judge(reply, oracle)
    return verdict is None or verdict.answer in {"same", "by-design"}


def copied(engine: Engine, network: Network) -> Engine:
    """A server that goes on apart; what keeps nothing of a request is shared."""
    return deepcopy(engine, {id(each): each for each in (network, engine.family)})


def fingerprint(engine: Engine) -> str:
    """What a server holds, without what only counts up; of times of use the order stays."""
    held = engine.snapshot()
    slots = held.get("slots", ())
    order = sorted(range(len(slots)), key=lambda i: slots[i].get("t_last_used", 0))
    return json.dumps([_without_counters(held), order], sort_keys=True, default=str)


def _without_counters(held: Any) -> Any:
    if isinstance(held, dict):
        return {k: _without_counters(v) for k, v in held.items() if k not in COUNTERS}
    if isinstance(held, list | tuple):
        return [_without_counters(each) for each in held]
    return held


COUNTERS = frozenset({"id_task", "task", "t_last_used"})
