"""mlx-lm's own cache classes beside the port: the same random operations, result by result."""

import json
import subprocess
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final

from cachesim.errors import CachesimError, ProfileError
from cachesim.real.environment import Environment
from cachesim.real.mlx_lm.cache_sequences import GROUPS, Sequenced, draw_cache_sequence
from cachesim.real.mlx_lm.store_sequences import draw_store_sequence, draw_trie_sequence
from cachesim.real.vectors.mlx_classes import Mismatch, mismatch

RUNTIMES: Final = {
    "0.30.7": "0.30.6",
    "0.31.1": "0.30.6",
    "0.31.3": "0.32.4",
    "0.32.2": "0.32.4",
}
"""Release of mlx-lm -> the array runtime it runs with: the older ones need the older one."""

WORKER: Final = Path(__file__).parent / "class_worker.py"


class RealClassesError(CachesimError):
    """The process with the real classes is gone."""


def environment_for(release: str) -> Environment:
    """The environment that holds a release of mlx-lm on a CPU."""
    if release not in RUNTIMES:
        msg = f"there is no real mlx-lm {release!r} here; there are {', '.join(RUNTIMES)}"
        raise ProfileError(msg)
    runtime = RUNTIMES[release]
    return Environment(
        name=f"mlx-{release}", requirements=(f"mlx[cpu]=={runtime}", f"mlx-lm=={release}")
    )


class RealClasses(AbstractContextManager["RealClasses"]):
    """The cache classes of one release, in a process of their own."""

    def __init__(self, release: str) -> None:
        self.release = release
        self._process = subprocess.Popen(  # noqa: S603 - our own worker
            [str(environment_for(release).ready()), "-I", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def play(self, sequence: Sequenced) -> list[dict[str, Any]]:
        """The real results of a sequence."""
        inbox, outbox = self._process.stdin, self._process.stdout
        if inbox is None or outbox is None:
            msg = f"mlx-lm {self.release} cannot be talked to"
            raise RealClassesError(msg)
        inbox.write(json.dumps(sequence) + "\n")
        inbox.flush()
        answer = outbox.readline()
        if not answer:
            msg = f"mlx-lm {self.release} ended in the middle of {json.dumps(sequence)[:300]}"
            raise RealClassesError(msg)
        results: list[dict[str, Any]] = json.loads(answer)
        return results

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)


@dataclass(slots=True)
class Agreement:
    """How many sequences and operations were played, and how many came out alike."""

    release: str
    sequences: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    agreeing: Counter[str] = field(default_factory=Counter)
    differences: list[tuple[Sequenced, Mismatch]] = field(default_factory=list)

    @property
    def all_agree(self) -> bool:
        """True when no operation differed, and there was at least one."""
        return not self.differences and self.operations.total() > 0

    def count(self, sequence: Sequenced, found: Mismatch | None) -> None:
        """Add a sequence; operations after a difference count as disagreeing."""
        group, count = sequence["group"], len(sequence["ops"])
        self.sequences[group] += 1
        self.operations[group] += count
        self.agreeing[group] += count if found is None else found.step
        if found is not None:
            self.differences.append((sequence, found))


def compare_classes(release: str, seed: int, sequences: int) -> Agreement:
    """Random sequences on the real classes and on the port."""
    agreement = Agreement(release)
    with RealClasses(release) as real:
        for number in range(sequences):
            sequence = draw(release, seed, number)
            results = real.play(sequence)
            sequence["ops"] = sequence["ops"][: len(results)]
            agreement.count(sequence, mismatch(sequence | {"results": results}))
    return agreement


def draw(release: str, seed: int, number: int) -> Sequenced:
    """One sequence: the groups take turns, the store comes up as often as three classes."""
    kinds = [*GROUPS, "store", "store", "store"]
    if release not in ("0.30.7", "0.31.1"):
        kinds.append("trie")
    kind = kinds[number % len(kinds)]
    random = Random(f"{seed}/{number}")  # noqa: S311 - not for secrets
    if kind == "store":
        drawn = draw_store_sequence(release, random)
    elif kind == "trie":
        drawn = draw_trie_sequence(release, random)
    else:
        drawn = draw_cache_sequence(release, kind, random)
    return drawn | {"id": f"{kind}/{seed}/{number}"}
