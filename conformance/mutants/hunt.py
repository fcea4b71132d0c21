"""Examples until a mutant is caught, of which none fails without it.

A crash of the changed code counts apart from a wrong answer or a wrong count: a suite that only
sees the crash has not compared anything. The control is the same hunt with the mutant switched off.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from cachesim.engines import Profile
from cachesim.errors import CachesimError, InputError, UpstreamAbort
from cachesim.play.findings import play
from cachesim.testing.search import workloads
from cachesim.testing.workloads import Shape
from conformance.mutants.switches import Mutant
from conformance.real.ik_llama import orders
from conformance.real.mlx_lm import classes
from conformance.real.vectors import mlx_server

VECTORS: Final = Path(__file__).parents[2] / "tests" / "vectors"

EMPTY: Final = "has an empty prompt"
"""The crash of every mlx-lm release at a prompt that is cached whole, with and without a mutant."""

Mismatch = Callable[[Mapping[str, Any]], object]
How: TypeAlias = Literal["wrong answer", "wrong count", "crash"]

REPLAYS: Final[Mapping[str, Mismatch]] = {
    "server-b9093": orders.mismatch,
    "server-b9538": orders.mismatch,
    "server-b11549": orders.mismatch,
    "server-ik-d2da6da05": orders.mismatch,
    "mlx-caches": classes.mismatch,
    "mlx-store": classes.mismatch,
    "mlx-server": mlx_server.mismatch,
}


@dataclass(frozen=True, slots=True)
class Catch:
    """The example that showed it, counted from 1, and what it showed."""

    after: int
    how: How


@cache
def recorded(name: str) -> tuple[dict[str, Any], ...]:
    with gzip.open(VECTORS / f"{name}.jsonl.gz", "rt") as lines:
        return tuple(json.loads(line) for line in lines)


def caught(mutant: Mutant, *, thin: bool = False) -> Catch | None:
    """The finding with the mutant; None: it escaped.

    With `thin` workloads are played on one layer of each kind, as most of a search's are.
    """
    with mutant.on():
        return _hunt(mutant, mutant.profile, mutant.patience, thin=thin)


def control(mutant: Mutant, *, examples: int | None = None) -> Catch | None:
    """The finding without the mutant, which must be none.

    Where a profile is the bug, the control is the profile that is cured of it. `examples` may be
    fewer than the hunt's own.
    """
    most = mutant.patience if examples is None else min(examples, mutant.patience)
    return _hunt(mutant, mutant.cured or mutant.profile, most)


def _hunt(mutant: Mutant, profile: str, examples: int, *, thin: bool = False) -> Catch | None:
    if mutant.caught_by == "records":
        return _by_records(mutant, profile, examples)
    return _by_answers(mutant, Profile.parse(profile), examples, thin=thin)


def _by_answers(mutant: Mutant, profile: Profile, examples: int, *, thin: bool) -> Catch | None:
    drawn = workloads(Profile.parse(mutant.profile), mutant.model, shape=Shape(**mutant.shape))
    for number in range(1, examples + 1):
        scenario = next(drawn)
        try:
            finding = play(scenario, profile, thin=thin).finding
        except InputError:
            raise  # what was asked does not fit the profile: nothing was caught
        except (CachesimError, ValueError, IndexError, AssertionError):
            return Catch(number, "crash")
        if finding is not None and EMPTY not in finding.detail:
            return Catch(number, "wrong answer")
    return None


def _by_records(mutant: Mutant, profile: str, examples: int) -> Catch | None:
    mismatch = REPLAYS[mutant.records]
    for number, line in enumerate(recorded(mutant.records)[:examples], start=1):
        if profile and line.get("version", profile) != profile:
            continue
        try:
            differs = mismatch(line) is not None
        except UpstreamAbort:
            return Catch(number, "wrong count")  # the real server answered here
        except (CachesimError, ValueError, IndexError, AssertionError):
            return Catch(number, "crash")
        if differs:
            return Catch(number, "wrong count")
    return None
