"""Files that `cachesim check --emit` writes of random mutants: each fails with it, and not without.

python -m tests.mutants.random.emitted 40        so many mutants of each port
"""

import gc
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Final

from rich.console import Console

from benchmarks.defects import SHAPE
from cachesim.engines.family import Profile, family_of
from cachesim.errors import InputError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import PRESETS
from cachesim.play.findings import play
from cachesim.play.runner import run
from cachesim.scenario.files import loads, to_toml
from cachesim.scenario.format import Kind
from cachesim.testing.guided import Guided
from cachesim.testing.search import search
from tests.mutants.random import ports
from tests.mutants.random.ports import PORTS, RandomMutant
from tests.mutants.random.session import HangError, children, limited

ARITHMETICS: Final[tuple[ArithmeticName, ...]] = ("float", "ring")
GUIDED: Final = replace(SHAPE, guided=True)

SECONDS: Final = 20.0
"""Processor seconds of the searches for one mutant."""

SEEDS: Final = 3
"""Findings of one mutant at most, each of another seed."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """A file, and whether it runs as expected in each arithmetic, with the mutant."""

    profile: str
    kind: Kind
    text: str
    holds: tuple[bool, ...]


def holds(text: str, profile: str) -> tuple[bool, ...]:
    """True for each arithmetic in which a file runs as expected on a profile."""
    scenario, found = loads(text.encode(), name="emitted"), []
    for arithmetic in ARITHMETICS:
        try:
            entry = run(scenario, Profile.parse(profile), arithmetic=arithmetic)
            found.append(entry.as_expected)
        except Exception:  # noqa: BLE001 - whatever a mutant raises ends the command
            found.append(False)
    return tuple(found)


def models_of(profile: Profile) -> list[str]:
    """The presets that a profile takes."""
    found = []
    for model in PRESETS:
        with suppress(InputError):
            Guided(profile, model, 0, shape=SHAPE)
            found.append(model)
    return found


def emitted(profile: Profile, models: Sequence[str], mutant: RandomMutant) -> list[Emitted]:
    """The files of a mutant, which is planted in this process."""
    ports.plant(mutant)
    found: list[Emitted] = []
    end = time.process_time() + SECONDS
    for turn in count():
        left = end - time.process_time()
        if left <= 0 or len(found) == SEEDS:
            break
        seed, at = divmod(turn, len(models))
        with suppress(HangError, Exception), limited(left + 10):
            report = search(profile, models[at], examples=12, seed=seed, shape=GUIDED)
            example = report.counterexample
            if example is not None:
                text = to_toml(example.scenario)
                kind, told = example.finding.kind, holds(text, str(profile))
                found.append(Emitted(str(profile), kind, text, told))
    return found


def is_own(text: str, kind: Kind, profile: str) -> bool:
    """True without that kind of finding where nothing is planted."""
    scenario = replace(loads(text.encode(), name="emitted"), expect=())
    return all(
        play(scenario, Profile.parse(profile), arithmetic=each, only=kind).finding is None
        for each in ARITHMETICS
    )


def main(number: int, names: Sequence[str]) -> int:
    """Print the counts by port and kind; 1 if a file holds with its mutant, or fails without it."""
    screen = Console(highlight=False, markup=False, soft_wrap=True)
    wrong, counts = 0, Counter[tuple[str, str]]()
    for name in names or PORTS:
        port = PORTS[name]
        profile = Profile.parse(f"{name}@{family_of(name).names()[-1]}")
        mutants, models = ports.draw(port, number, 0), models_of(profile)
        ports.load(port)
        gc.freeze()
        tasks = [partial(emitted, profile, models, each) for each in mutants]
        for at, result in children(tasks, 2):
            for each in () if isinstance(result, str) else result:
                if not is_own(each.text, each.kind, each.profile):
                    continue
                counts[name, each.kind] += 1
                bad = [f"with it: {each.holds}"] if any(each.holds) else []
                plain = holds(each.text, each.profile)
                bad += [] if all(plain) else [f"without it: {plain}"]
                if bad:
                    wrong += 1
                    screen.print(
                        mutants[at].place, mutants[at].new, each.kind, bad, each.text, sep="\n"
                    )
    for (name, kind), times in sorted(counts.items()):
        screen.print(f"{name:18} {kind:18} {times}")
    screen.print(f"{sum(counts.values())} files, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 20, sys.argv[2:]))
