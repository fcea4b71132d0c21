"""Replays what mlx-lm's own cache classes and store did, as the vector files recorded it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from cachesim.engines.mlx_lm.family import FAMILY, MlxRules
from cachesim.errors import ProfileError, ScenarioError
from cachesim.lab.real.agreement import Difference
from cachesim.lab.real.mlx_lm.cache_player import CachePlayer, Operation, StorePlayer, TriePlayer
from cachesim.typed import Json


class Player(Protocol):
    """Whatever can play operations one by one."""

    def play(self, op: Operation) -> dict[str, Json]:
        """Play an operation: its value or exception, and what it left behind."""
        ...


def _player_for(line: Mapping[str, Any], rules: MlxRules | None) -> Player:
    """Fresh objects of the release that a sequence was recorded with, or under other rules."""
    release = line["version"]
    try:
        rules = rules or FAMILY.release(release).rules
    except ProfileError as error:
        msg = f"sequence {line['id']}: {error}"
        raise ScenarioError(msg) from None
    if line["group"] == "trie":
        return TriePlayer()
    if line["group"] == "store":
        return StorePlayer(rules.caches, rules.store, line["args"])
    return CachePlayer(rules.caches)


def played(line: Mapping[str, Any], rules: MlxRules | None = None) -> Iterator[dict[str, Json]]:
    """The port's results of a sequence, in the form of the recorded ones."""
    player = _player_for(line, rules)
    for op in line["ops"]:
        yield json.loads(json.dumps(player.play(op)))


def mismatch(line: Mapping[str, Any], rules: MlxRules | None = None) -> Difference | None:
    """The first operation that differs; None if every one is equal, those after exceptions too."""
    pairs = zip(line["results"], played(line, rules), strict=True)
    for step, (expected, actual) in enumerate(pairs):
        if _either_way(expected) != _either_way(actual):
            return Difference(step=step, real=expected, simulated=actual)
    return None


def _either_way(result: Json) -> Json:
    """A result in one way of writing, where recorders have two.

    A mask without columns has no row to show, as an empty text or an empty list. A chunked cache
    that holds nothing starts at 0, said or not.
    """
    if isinstance(result, list):
        return [_either_way(each) for each in result]
    if not isinstance(result, dict):
        return result
    read = {name: _either_way(value) for name, value in result.items()}
    if 0 in (read.get("shape") or ()):
        read.pop("rows", None)
    if read.get("class") == "ChunkedKVCache" and read.get("buffer") is None:
        read["start_position"] = read.get("start_position") or 0
    return read
