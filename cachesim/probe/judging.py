"""Rounding versus errors: noise, the limit, and a sequential test that bounds false alarms.

A suspicion is an answer from cache further from the uncached one than the limit. It is not evidence
yet: many answers were compared. Its workload is replayed in other words, so that the cache does
the same and each replay draws fresh numbers. Under the null hypothesis a replay is beyond the
limit with probability `chance` at most; the test then is an e-process, which passes 1/alpha with
probability alpha at most, at any time.

    suspicion      1         2         3         ...      k
    its alpha      a/2       a/6       a/12      ...      a/(k (k+1))       all of them: a
"""

import math
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

MATERIAL: Final = 0.02
"""Smaller differences of a log probability mean nothing: keys in f16 alone make 0.009."""

ERROR: Final = 0.25
"""Maximum accepted rounding of reuse and of batches: a larger distance is no measurement of
rounding, unless two cold answers to one lone prompt are as far apart.
"""

MARGIN: Final = 4.0
"""Ratio of the limit to the largest rounding that was measured."""

STAKES: Final = (0.05, 0.15, 0.35, 0.6, 0.9)
"""Fractions of the capital at stake in parallel bets; the e-value is the mean over them."""

FLOOR: Final = 0.05
"""A lower chance is never assumed: rounding of one workload may be worse than that of most."""

REPLAYS: Final = 200
"""Most replays of a suspicion: enough for a fault in one replay of five."""

DROP_RULE: Final = 24, 16
"""Replays after which a suspicion is dropped if fewer than one in this many is wrong."""

POWER: Final = 0.95
"""Statistical power: the probability with which a stated fault is found."""

CALIBRATION: Final = 0.1
"""Part of alpha that the measurement of the chance may cost."""


@dataclass(slots=True)
class Noise:
    """Distances of answers that are right, unless the server is wrong in the plainest cases."""

    alone: list[float] = field(default_factory=list)  # cold and cold
    company: list[float] = field(default_factory=list)  # cold, and cold beside other requests
    reuse: list[float] = field(default_factory=list)  # cold, and a plain extension

    @property
    def limit(self) -> float:
        """The distance from which an answer is suspicious."""
        believed = (distance for distance in (*self.company, *self.reuse) if distance < ERROR)
        return max(MATERIAL, MARGIN * max((*self.alone, *believed), default=0.0))

    @property
    def error(self) -> float:
        """The distance from which rounding cannot be the reason."""
        return max(ERROR, self.limit)


def upper_bound(hits: int, trials: int, error: float) -> float:
    """The probability that `hits` of `trials` exclude at this error (Clopper and Pearson)."""
    if hits >= trials:
        return 1.0
    low, high = hits / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(hits, trials, middle) > error else (low, middle)
    return high


def _at_most(hits: int, trials: int, chance: float) -> float:
    if chance >= 1:
        return 0.0
    total = 0.0
    for k in range(hits + 1):
        choose = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        rest = (trials - k) * math.log1p(-chance)
        total += math.exp(choose + k * math.log(chance) + rest) if chance else float(k == 0)
    return total


@dataclass(slots=True)
class SequentialTest:
    """Evidence against the null hypothesis that replays are beyond the limit by this chance."""

    chance: float
    hits: int = 0
    replays: int = 0
    _capital: list[float] = field(default_factory=lambda: [1.0] * len(STAKES))

    def add(self, *, hit: bool) -> None:
        """Count a replay."""
        self.replays += 1
        self.hits += hit
        gain = 1 / self.chance - 1 if hit else -1.0
        self._capital = [c * (1 + s * gain) for c, s in zip(self._capital, STAKES, strict=True)]

    @property
    def dropped(self) -> bool:
        """True if too few replays were wrong, or the replays are used up."""
        after, part = DROP_RULE
        few = self.replays >= after and self.hits * part < self.replays
        return few or self.replays >= REPLAYS

    @property
    def value(self) -> float:
        """The e-value: its inverse bounds the probability under the null hypothesis."""
        return sum(self._capital) / len(self._capital)


@dataclass(slots=True)
class Judge:
    """The limit, the chance, and the share of the run's alpha that is left for a suspicion."""

    noise: Noise
    alpha: float  # false alarms of a whole run
    suspicions: int = 0
    rounded: list[float] = field(default_factory=list)  # distances that rounding may be

    def add(self, distance: float) -> bool:
        """Keep the distance of an answer from cache; True if it is suspicious."""
        if distance <= self.noise.error:
            self.rounded.append(distance)
        return distance > self.noise.limit

    def next_test(self) -> tuple[SequentialTest, float]:
        """The test of the next suspicion, and the e-value that it needs."""
        self.suspicions += 1
        return self._test(self.suspicions)

    def _test(self, number: int) -> tuple[SequentialTest, float]:
        """The test of one suspicion.

        The chance is an upper bound of how often rounding is beyond the limit, from all answers so
        far: those that are slightly wrong only make it larger, the others say nothing of rounding.
        """
        share = self.alpha / (number * (number + 1))
        noise = self.noise
        rounded = [
            *self.rounded,
            *(distance for distance in noise.reuse if distance <= noise.error),
        ]
        rounded += noise.alone + noise.company
        hits = sum(distance > noise.limit for distance in rounded)
        chance = max(FLOOR, upper_bound(hits, len(rounded), share * CALIBRATION))
        return SequentialTest(chance), 1 / (share * (1 - CALIBRATION))

    def rarest(self) -> int:
        """The largest N with which a fault in one of N replays is confirmed; 0 if none is."""
        test, threshold = self._test(self.suspicions + 1)
        sure = (n for n in range(8, 0, -1) if _power(test.chance, threshold, 1 / n) >= POWER)
        return next(sure, 0)


def plays_for(rate: float) -> int:
    """The number of runs that meet a fault of this rate with probability `POWER`."""
    return 1 if rate >= POWER else math.ceil(math.log(1 - POWER) / math.log(1 - rate))


def _power(chance: float, threshold: float, rate: float) -> float:
    """The probability that replays which are wrong at this rate pass the threshold."""
    open_, found = {0: (1.0, SequentialTest(chance))}, 0.0
    while open_:
        after: dict[int, tuple[float, SequentialTest]] = {}
        for hits, (share, test) in open_.items():
            for hit, part in ((1, rate), (0, 1 - rate)):
                before, _ = after.get(hits + hit, (0.0, None))
                more = deepcopy(test)
                more.add(hit=bool(hit))
                after[hits + hit] = before + share * part, more
        found += sum(
            share for share, sequential_test in after.values() if sequential_test.value >= threshold
        )
        open_ = {
            hits: (share, sequential_test)
            for hits, (share, sequential_test) in after.items()
            if sequential_test.value < threshold and not sequential_test.dropped and share
        }
    return found
