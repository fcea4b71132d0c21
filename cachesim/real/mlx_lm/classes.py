"""mlx-lm's own cache classes beside the port: the same random operations, result by result."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.profiles import MlxRules
from cachesim.real.fit.newest import Difference, Played
from cachesim.real.mlx_lm.cache_sequences import GROUPS, Sequenced, draw_cache_sequence
from cachesim.real.mlx_lm.process import RealProcess
from cachesim.real.mlx_lm.store_sequences import draw_store_sequence, draw_trie_sequence
from cachesim.real.vectors.mlx_classes import mismatch
from cachesim.real.vectors.workload import Mismatch

WORKER: Final = Path(__file__).parent / "class_worker.py"


class RealClasses(RealProcess):
    """The cache classes of one release, in a process of their own."""

    def __init__(self, release: str) -> None:
        super().__init__(release, WORKER)

    def play(self, sequence: Sequenced) -> list[dict[str, Any]]:
        """The real results of a sequence."""
        results: list[dict[str, Any]] = self.order(sequence)
        return results


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


def played_of(
    line: Mapping[str, Any],
    steps: int,
    mismatch: Callable[[Mapping[str, Any], MlxRules], Mismatch | None],
) -> Played[MlxRules]:
    """A recorded line of so many steps, to hold other rules against."""

    def check(rules: MlxRules) -> Difference | None:
        found = mismatch(line, rules)
        return None if found is None else Difference(step=found.step, simulated=found.actual)

    return Played(
        kind=line["id"].partition("/")[0],
        requests=steps,
        size=len(str(line["results"])),
        check=check,
    )


def compare_classes(
    release: str,
    seed: int,
    sequences: int,
    *,
    record: Callable[[Played[MlxRules]], None] = lambda _: None,
) -> Agreement:
    """Random sequences on the real classes and on the port."""
    agreement = Agreement(release)
    if not sequences:
        return agreement
    with RealClasses(release) as real:
        for number in range(sequences):
            sequence = draw(release, seed, number)
            results = real.play(sequence)
            sequence["ops"] = sequence["ops"][: len(results)]
            line = sequence | {"results": results}
            agreement.count(sequence, mismatch(line))
            record(played_of(line, len(results), mismatch))
    return agreement


def _has_trie(release: str) -> bool:
    """True where prompts are kept in a trie of its own class (#1072)."""
    order = FAMILY.names()
    return order.index(release) >= order.index("0.31.2")


def draw(release: str, seed: int, number: int) -> Sequenced:
    """One sequence: the groups take turns, the store comes up as often as three classes."""
    kinds = [*GROUPS, "store", "store", "store"]
    if _has_trie(release):
        kinds.append("trie")
    kind = kinds[number % len(kinds)]
    random = Random(f"{seed}/{number}")
    if kind == "store":
        drawn = draw_store_sequence(release, random)
    elif kind == "trie":
        drawn = draw_trie_sequence(release, random)
    else:
        drawn = draw_cache_sequence(release, kind, random)
    return drawn | {"id": f"{kind}/{seed}/{number}"}
