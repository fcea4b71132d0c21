"""How many examples the suite needs to catch a mutant."""

import gzip
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from cachesim.engines import Profile
from cachesim.errors import CachesimError, InputError
from cachesim.real.vectors import ik_server, llama_server, mlx_classes, mlx_server
from cachesim.testing.search import workloads
from cachesim.testing.trial import play
from cachesim.testing.workloads import Shape
from tests.mutants.switches import Mutant

VECTORS: Final = Path(__file__).parent.parent / "vectors"
PATIENCE: Final = 400

Mismatch = Callable[[Mapping[str, Any]], object]

REPLAYS: Final[Mapping[str, Mismatch]] = {
    "server-b9093": llama_server.mismatch,
    "server-b9538": llama_server.mismatch,
    "server-b11549": llama_server.mismatch,
    "server-ik-d2da6da05": ik_server.mismatch,
    "mlx-caches": mlx_classes.mismatch,
    "mlx-store": mlx_classes.mismatch,
    "mlx-server": mlx_server.mismatch,
}


@cache
def recorded(name: str) -> tuple[dict[str, Any], ...]:
    """The lines of a file of recorded workloads."""
    with gzip.open(VECTORS / f"{name}.jsonl.gz", "rt") as lines:
        return tuple(json.loads(line) for line in lines)


def caught_after(mutant: Mutant) -> int | None:
    """Examples until the mutant is caught; None: it got away."""
    with mutant.on():
        return _by_records(mutant) if mutant.caught_by == "records" else _by_answers(mutant)


def _by_answers(mutant: Mutant) -> int | None:
    profile = Profile.parse(mutant.profile)
    shape = Shape(**mutant.shape)
    drawn = workloads(profile, mutant.model, shape=shape)
    for number in range(PATIENCE):
        scenario = next(drawn)
        try:
            finding = play(scenario, profile).finding
        except InputError:
            raise  # what was asked does not fit the profile: nothing was caught
        except (CachesimError, ValueError, IndexError, AssertionError):
            return number + 1  # the engine itself fell over it
        if finding is not None:
            return number + 1
    return None


def _by_records(mutant: Mutant) -> int | None:
    mismatch = REPLAYS[mutant.records]
    for number, line in enumerate(recorded(mutant.records)):
        if mutant.profile and line.get("version", mutant.profile) != mutant.profile:
            continue
        try:
            differs = mismatch(line) is not None
        except (CachesimError, ValueError, IndexError, AssertionError):
            differs = True
        if differs:
            return number + 1
    return None
