"""mlx-lm's own cache classes beside the port: the same random operations, result by result."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.engines.mlx_lm.profiles import MlxRules
from cachesim.real.agreement import Agreement, Difference
from cachesim.real.fit.newest import Played
from cachesim.real.mlx_lm.cache_sequences import GROUPS, Sequenced, draw_cache_sequence
from cachesim.real.mlx_lm.process import RealProcess
from cachesim.real.mlx_lm.store_sequences import draw_store_sequence, draw_trie_sequence
from cachesim.real.vectors.mlx_classes import mismatch

WORKER: Final = Path(__file__).parent / "class_worker.py"


class RealClasses(RealProcess):
    """The cache classes of one release, in a process of their own."""

    def __init__(self, release: str) -> None:
        super().__init__(release, WORKER)

    def play(self, sequence: Sequenced) -> list[dict[str, Any]]:
        """The real results of a sequence."""
        results: list[dict[str, Any]] = self.order(sequence)
        return results


def played_of(
    line: Mapping[str, Any],
    steps: int,
    mismatch: Callable[[Mapping[str, Any], MlxRules], Difference | None],
) -> Played[MlxRules]:
    """A recorded line of so many steps, to hold other rules against."""
    return Played(
        kind=line["id"].partition("/")[0],
        requests=steps,
        size=len(str(line["results"])),
        check=lambda rules: mismatch(line, rules),
    )


def compare_classes(
    release: str,
    seed: int,
    sequences: int,
    *,
    record: Callable[[Played[MlxRules]], None] = lambda _: None,
) -> Agreement:
    """Random sequences on the real classes and on the port."""
    agreement = Agreement(
        title=f"mlx-lm {release}: cache classes and store, seed {seed}", kinds="group"
    )
    if not sequences:
        return agreement
    with RealClasses(release) as real:
        for number in range(sequences):
            sequence = draw(release, seed, number)
            results = real.play(sequence)
            sequence["ops"] = sequence["ops"][: len(results)]
            line = sequence | {"results": results}
            found = mismatch(line)
            agreement.add(
                sequence["group"],
                sequence["id"],
                found,
                sequences=1,
                operations=len(results),
                agreeing=len(results) if found is None else found.step,
            )
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
