"""Workloads of coding agents for vLLM's schedulers: thousands of tokens, several users at once.

The groups of a model, its drafts, priorities and stores are drawn as for the short workloads.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from cachesim.engines.vllm.rules import Rules
from cachesim.real.agents import Row
from cachesim.real.prompts import REPLIES, Office
from cachesim.real.vllm.workloads import KINDS, config_of, overlapping, smallest, spread

LONGEST: Final = (1500, 4000, 8000)


def draw_agents(seed: int, number: int, rules: Rules) -> dict[str, Any]:
    """Workload of users whose agents ask in turn, or all at once."""
    rng = Random(f"vllm agents {seed} {number}")
    kind = KINDS[number % len(KINDS)]
    longest = rng.choice(LONGEST)
    config = config_of(rng, kind, rules)
    for group in config["groups"]:
        if group["kind"] == "window":
            group["window"] = rng.choice((group["window"], 100, 500))
    config["budget"] = rng.choice((64, 256, 512, 2048, 8192))
    config["max_seqs"] = rng.choice((2, 4, 16))
    if rng.random() < 0.1:  # a reply may reach the end
        config["max_len"] = longest + 20
    steps = _Office(rng, config, kind, longest).steps()
    tight = kind in {"pressure", "priority"} or rng.random() < 0.5
    room = smallest(config, longest + max(REPLIES))
    config["blocks"] = room + rng.randint(0, room // 8) if tight else room * rng.choice((2, 6))
    drawn = {"id": f"agents-{kind}-{number}", "config": config, "steps": steps}
    return overlapping(drawn, rules) if rng.random() < 0.3 else drawn


class _Office(Office):
    """One to three users at their agents."""

    def __init__(self, rng: Random, config: dict[str, Any], kind: str, longest: int) -> None:
        super().__init__(rng, rng.choice((1, 2, 3)), longest)
        self._kind, self._longest = kind, longest
        self._drafts: int = config.get("drafts", 0)

    def steps(self) -> list[list[dict[str, Any]]]:
        """All groups of requests."""
        return [self.group() for _ in range(self.rng.randint(5, 14))]

    def group(self) -> list[dict[str, Any]]:
        rng = self.rng
        if rng.random() < 0.03:
            return [{"reset": True}]
        group = super().group()
        if self._kind in {"priority", "arrivals"} or rng.random() < 0.4:
            spread(rng, group, urgent=self._kind == "priority")
        return group

    def request(self, prompt: Row, reply: Sequence[int]) -> dict[str, Any]:
        rng, wanted = self.rng, super().request(prompt, reply)
        if self._drafts:
            wanted["accept"] = [rng.randint(0, self._drafts) for _ in range(3)]
        if self._kind == "store":
            most = 2 * self._longest
            wanted["stored"] = rng.choice((0, rng.randint(1, most), most))
        return wanted
