"""The same workload on another release, with another patch or another flag.

A workload knows when requests came relative to each other, not how long another server would have
taken: requests that were at work together still are, one after the other where they were not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachesim.logs.player import FAILED, Player, Replayed
from cachesim.logs.replay import Replay
from cachesim.logs.settings import Settings
from cachesim.model.spec import ModelSpec


@dataclass(slots=True)
class Otherwise:
    """What became of every request elsewhere."""

    profile: str
    options: Mapping[str, Any]
    replayed: dict[int, Replayed] = field(default_factory=dict)
    peak_bytes: int = 0

    @property
    def read(self) -> int:
        """Tokens that were processed in all."""
        return sum(each.processed or 0 for n, each in self.replayed.items() if n >= 0)


def options_for(release: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that a release has; those it lacks are left at its defaults."""
    missing = {
        "b9093": {"checkpoint_min_step", "kv_unified_per_slot"},
        "b9538": {"checkpoint_every_nt", "kv_unified_per_slot"},
        "b11549": {"checkpoint_every_nt"},
    }
    gone = missing.get(release.partition("+")[0], set())
    return {name: value for name, value in values.items() if name not in gone}


def default_step(settings: Settings) -> set[str]:
    """Flags whose value in the log is the default of its release: elsewhere another is."""
    defaults = {"b9538": 256, "b11549": 8192}
    step = settings.values.get("checkpoint_min_step")
    own = defaults.get(str(settings.release.value))
    return {"checkpoint_min_step"} if step is not None and step == own else set()


def play_otherwise(
    replay: Replay,
    profile: str,
    options: Mapping[str, Any],
    *,
    spec: ModelSpec | None = None,
) -> Otherwise:
    """Play a rebuilt workload on another server."""
    player = Player(profile, spec or replay.settings.spec, options)
    found = Otherwise(profile, dict(options))
    asked = {each.number: each for each in replay.invented}
    asked |= {each.asked.number: each.asked for each in replay.requests if each.asked is not None}
    for what, number in replay.order:
        if what == "launch":
            player.launch(asked[number])
        else:
            found.replayed[number] = player.run_until(number)
        found.peak_bytes = max(found.peak_bytes, player.held_bytes())
        if player.dead:
            break
    for number in asked:
        found.replayed.setdefault(number, FAILED)
    return found
