"""Replays what SGLang's own scheduler and trees did, as the vector files recorded it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachesim.engines.sglang.family import FAMILY
from cachesim.errors import ProfileError, ScenarioError
from cachesim.real.sglang.playing import Player
from cachesim.scenario.limits import TOTAL_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The first group of requests that differs; `step` counts requests."""

    step: int
    expected: Mapping[str, Any]
    actual: Mapping[str, Any]


def mismatch(line: Mapping[str, Any]) -> Mismatch | None:
    """Play one recorded sequence; where it first differs, or None."""
    try:
        rules = FAMILY.release(line["version"]).rules
    except ProfileError as error:
        raise ScenarioError(str(error)) from error
    for pool in ("tokens", "window_tokens", "states"):
        size = line["config"].get(pool, 0)
        if size > TOTAL_TOKENS:
            msg = f"{pool}: a pool of {size:,}; {TOTAL_TOKENS:,} is the most"
            raise ValueError(msg)
    for asked in (each.get("generate", 0) for group in line["steps"] for each in group):
        if asked > TOTAL_TOKENS:
            msg = f"generate: a reply of {asked:,}; {TOTAL_TOKENS:,} is the most"
            raise ValueError(msg)
    player = Player(line["config"], rules)
    step = 0
    for group, expected in zip(line["steps"], line["results"], strict=True):
        actual = player.play(group)
        if actual != expected:
            return Mismatch(step=step, expected=expected, actual=actual)
        step += len(group)
    return None
