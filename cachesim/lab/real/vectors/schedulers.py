"""Replays the vector files of vLLM's and SGLang's own schedulers, and of vLLM's model runners."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from cachesim.engines.sglang.family import FAMILY as SGLANG
from cachesim.engines.vllm.family import FAMILY as VLLM
from cachesim.errors import ProfileError, ScenarioError
from cachesim.lab.real.agreement import Difference
from cachesim.lab.real.sglang.playing import Player as SglangPlayer
from cachesim.lab.real.vllm.playing import Player as VllmPlayer
from cachesim.lab.real.vllm.steps import Runs, difference
from cachesim.scenario.limits import TOTAL_TOKENS
from cachesim.typed import JsonObject

POOLS: Final = ("blocks", "tokens", "window_tokens", "states")
"""Pool sizes in a configuration: vLLM's blocks, SGLang's tokens and states."""


class Player(Protocol):
    """A scheduler that plays groups of requests one after the other."""

    def play(self, group: list[JsonObject]) -> JsonObject: ...


def mismatch(line: Mapping[str, Any]) -> Difference | None:
    """Play one recorded sequence; where it first differs, or None."""
    for pool in POOLS:
        size = line["config"].get(pool, 0)
        if size > TOTAL_TOKENS:
            msg = f"a pool of {size:,} {pool}; {TOTAL_TOKENS:,} is the most"
            raise ValueError(msg)
    for asked in (each.get("generate", 0) for group in line["steps"] for each in group):
        if asked > TOTAL_TOKENS:
            msg = f"generate: a reply of {asked:,}; {TOTAL_TOKENS:,} is the most"
            raise ValueError(msg)
    player = _player_for(line)
    step = 0
    for group, expected in zip(line["steps"], line["results"], strict=True):
        actual = player.play(group)
        if difference([expected], [actual]) if "part" in line else actual != expected:
            return Difference(step=step, real=expected, simulated=actual)
        step += len(group)
    return None


def _player_for(line: Mapping[str, Any]) -> Player:
    config, release = line["config"], line["version"]
    try:
        if line.get("part") == "runner":
            return Runs(config, VLLM.release(release).rules)
        if "groups" in config:
            return _recorded_as(VllmPlayer(config, VLLM.release(release).rules))
        return SglangPlayer(config, SGLANG.release(release).rules)
    except ProfileError as error:
        raise ScenarioError(str(error)) from error


def _recorded_as(player: VllmPlayer) -> VllmPlayer:
    """The recordings were made with the states' block as `cache_config.block_size`.

    A server's engine core makes it the smallest block of all groups, and prefill is cut in it.
    """
    splitter = player.scheduler.splitter
    if splitter is not None:
        states = next(each for each in player.manager.groups if each.kind == "mamba")
        player.scheduler.splitter = replace(splitter, size=states.block)
    return player
