"""Workloads of coding agents for SGLang's schedulers: thousands of tokens, several users at once.

The models, pages, states, hosts and storages are drawn as for the short workloads.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from cachesim.engines.sglang.rules import Rules
from cachesim.lab.real.agents import Row
from cachesim.lab.real.prompts import REPLIES, Office
from cachesim.lab.real.sglang.workloads import CROWDS, KINDS, config_of

LONGEST: Final = (2000, 4000, 8000)


def draw_agents(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """Draw a workload: users whose agents send requests in turn, or all at once."""
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


class _Office(Office):
    """Requests of one to three users' agents."""

    def __init__(self, rng: Random, kind: str, users: int, longest: int) -> None:
        super().__init__(rng, users, longest)
        self._kind = kind

    def steps(self) -> list[list[dict[str, Any]]]:
        steps = []
        for _ in range(self.rng.randint(5, 14)):
            steps.append(self.group())
            if self._kind == "storage" and self.rng.random() < 0.2:
                steps.append([{"reset": True}])
        return steps

    def group(self) -> list[dict[str, Any]]:
        rng, turn = self.rng, 0
        group = super().group()
        if self._kind not in CROWDS and rng.random() < 0.6:
            return group
        for wanted in group:
            turn += rng.choice((0, 0, 1, 2, 5))
            wanted["arrives"] = turn
            if self._kind == "aborts" and rng.random() < 0.3:
                wanted["aborted"] = turn + rng.choice((0, 1, 1, 2, 3, 6, 12))
        return group

    def request(self, prompt: Row, reply: Sequence[int]) -> dict[str, Any]:
        rng, wanted = self.rng, super().request(prompt, reply)
        if rng.random() < 0.1:
            wanted["priority"] = rng.randint(0, 3)
        return wanted
