"""Workloads of coding agents for SGLang's schedulers: thousands of tokens, several users at once.

The models, pages, states, hosts and storages are drawn as for the short workloads.
"""

from random import Random
from typing import Any, Final

from cachesim.engines.sglang.rules import Rules
from cachesim.real.agents import Agents, Row, Sizes
from cachesim.real.prompts import Writer, spell
from cachesim.real.sglang.workloads import CROWDS, KINDS, config_of

LONGEST: Final = (2000, 4000, 8000)
REPLIES: Final = (1, 2, 5, 20, 60, 150)


def draw_agents(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """One workload: users whose agents ask in turn, or all at once."""
    rng = Random(f"sglang agents {seed} {number}")
    kind = KINDS[number % len(KINDS)]
    longest = rng.choice(LONGEST)
    config = config_of(rng, kind, longest, rules)
    config["max_len"] = longest + max(REPLIES) + 10
    page = config["page"]
    config["chunk"] = -(-rng.choice((128, 512, 2048, 8192)) // page) * page
    users = rng.choice((1, 2, 3))
    steps = _Office(rng, kind, users, longest).steps()
    config["mixes"] = rng.random() < 0.3
    return {"id": f"agents-{kind}-{number}", "config": config, "steps": steps}


class _Office:
    """One to three users at their agents."""

    def __init__(self, rng: Random, kind: str, users: int, longest: int) -> None:
        self._rng, self._kind = rng, kind
        writer = Writer(rng, 1, longest)
        self._fresh = writer.fresh
        self._users = [Agents(rng, writer.fresh, Sizes.within(longest)) for _ in range(users)]

    def steps(self) -> list[list[dict[str, Any]]]:
        """All groups of requests."""
        steps = []
        for _ in range(self._rng.randint(5, 14)):
            steps.append(self._group())
            if self._kind == "storage" and self._rng.random() < 0.2:
                steps.append([{"reset": True}])
        return steps

    def _group(self) -> list[dict[str, Any]]:
        """What one user asks, or several who do not wait for one another."""
        rng, turn = self._rng, 0
        crowd = rng.random() < 0.4
        users = rng.sample(self._users, len(self._users)) if crowd else [rng.choice(self._users)]
        group = [wanted for user in users for wanted in self._asked(user)]
        if self._kind not in CROWDS and rng.random() < 0.6:
            return group
        for wanted in group:
            turn += rng.choice((0, 0, 1, 2, 5))
            wanted["arrives"] = turn
            if self._kind == "aborts" and rng.random() < 0.3:
                wanted["aborted"] = turn + rng.choice((0, 1, 1, 2, 3, 6, 12))
        return group

    def _asked(self, user: Agents) -> list[dict[str, Any]]:
        asked = user.next()
        replies = [self._fresh(self._rng.choice(REPLIES)) for _ in asked]
        user.learn(replies)
        pairs = zip(asked, replies, strict=True)
        return [self._request(talk.tokens, reply) for talk, reply in pairs]

    def _request(self, prompt: Row, reply: list[int]) -> dict[str, Any]:
        rng = self._rng
        wanted: dict[str, Any] = {
            "prompt": spell(prompt),
            "generate": len(reply),
            "reply": spell(reply),
        }
        if rng.random() < 0.05:
            wanted["salt"] = "a"
        if rng.random() < 0.1:
            wanted["priority"] = rng.randint(0, 3)
        return wanted
