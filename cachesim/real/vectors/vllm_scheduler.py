"""Replays what vLLM's own scheduler did, as the vector files recorded it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachesim.engines.vllm.rules import RELEASES
from cachesim.errors import ScenarioError
from cachesim.real.vllm.playing import Player


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The first group of requests that differs; `step` counts requests."""

    step: int
    expected: Mapping[str, Any]
    actual: Mapping[str, Any]


def mismatch(line: Mapping[str, Any]) -> Mismatch | None:
    """Play one recorded sequence; where it first differs, or None."""
    rules = RELEASES.get(line["version"])
    if rules is None:
        known = ", ".join(RELEASES)
        msg = f"no vLLM release {line['version']!r}; there are {known}"
        raise ScenarioError(msg)
    player = Player(line["config"], rules)
    step = 0
    for group, expected in zip(line["steps"], line["results"], strict=True):
        actual = player.play(group)
        if actual != expected:
            return Mismatch(step=step, expected=expected, actual=actual)
        step += len(group)
    return None
