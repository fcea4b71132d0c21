"""Mutants by number: a seed, a kind and a number always give the same one."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from conformance.fuzz.guard import Outcome, guarded
from conformance.fuzz.kinds import KINDS, Kind


@dataclass(frozen=True, slots=True)
class Failure:
    """A mutant that broke something, and how to get it again."""

    kind: str
    seed: int
    number: int
    failure: str

    @property
    def again(self) -> str:
        which = f"--kind {self.kind} --seed {self.seed} --first {self.number}"
        return f"python -m conformance.fuzz {which} --mutants 1 --jobs 1"


@dataclass(slots=True)
class Tally:
    """The results of mutants by kind."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.counts.update(other.counts)
        self.failures += other.failures


def mutant(kind: Kind, seed: int, number: int) -> Any:
    chance = random.Random(f"{kind.name} {seed} {number}")
    return kind.damage(chance.choice(kind.seeds()), chance)


def tried(kind: Kind, seed: int, number: int) -> Outcome:
    return guarded(kind.play, mutant(kind, seed, number))


def search(name: str, seed: int, numbers: range) -> Tally:
    kind, tally = KINDS[name], Tally()
    for number in numbers:
        outcome = tried(kind, seed, number)
        tally.counts[name, outcome.word] += 1
        if outcome.failure:
            tally.failures.append(Failure(name, seed, number, outcome.failure))
    return tally


def portions(
    mutants: int, seed: int, size: int = 200, done: int = 0
) -> Iterator[tuple[str, int, range]]:
    """All kinds in their shares, in portions that processes take turns with.

    A run that was stopped after `done` mutants takes up the round that it was in.
    """
    for start in range(done - done % (size * 100), mutants, size * 100):
        whole = min(size * 100, mutants - start)
        for kind in KINDS.values():
            first, count = start * kind.share // 100, whole * kind.share // 100
            for at in range(first, first + count, size):
                yield kind.name, seed, range(at, min(at + size, first + count))
