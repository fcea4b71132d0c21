"""Files that `cachesim check --emit` writes of random mutants: each fails with it, and not without.

    python -m conformance.mutants.random.emitted vllm --count 40 --seed 1

Workloads are drawn in which the engine does not fail by itself. If it fails without the mutant on
the smallest one that was found, the file proves nothing: it is counted apart.
"""

import argparse
import builtins
import gc
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
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
from cachesim.scenario.format import Kind, Scenario
from cachesim.testing.search import search, workloads
from conformance.mutants.random import ports
from conformance.mutants.random.ports import PORTS, Port, RandomMutant
from conformance.mutants.random.session import PROBE, HangError, children, limited

ENGINES: Final = {name: (port,) for name, port in PORTS.items()} | {
    "llama-cpp-python": (Port("llama-cpp-python", "llama_cpp_python"), PORTS["llama.cpp"]),
    "transformers": (Port("transformers", "transformers"),),
}
"""The ports whose mutants an engine is searched with; marconi computes no answers."""

DRAWN: Final = 6
"""Workloads of each model."""

ARITHMETICS: Final[tuple[ArithmeticName, ...]] = ("float", "ring")
SECONDS: Final = 5.0
"""Processor seconds of the searches for one mutant."""

MOST: Final = 8
"""Findings of one mutant, each of another workload."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A workload in which an engine does not fail, and the mutants whose lines it reaches."""

    model: str
    scenario: Scenario
    reached: frozenset[int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Emitted:
    """A file, and the arithmetics in which it runs as expected, with the mutant."""

    kind: Kind
    text: str
    holds: tuple[ArithmeticName, ...]


def holds(text: str, profile: Profile) -> tuple[ArithmeticName, ...]:
    """The arithmetics in which a file runs as expected."""
    scenario, found = loads(text.encode(), name="emitted"), []
    for arithmetic in ARITHMETICS:
        with suppress(Exception):  # whatever a mutant raises ends the command
            if run(scenario, profile, arithmetic=arithmetic).as_expected:
                found.append(arithmetic)
    return tuple(found)


def sound(profile: Profile, mutants: Sequence[RandomMutant], seed: int) -> list[Sound]:
    """Workloads in which an engine does not fail, the quickest first; this process has probes."""
    reached: set[int] = set()
    setattr(builtins, PROBE, lambda *numbers: reached.update(numbers))
    ports.probe(list(mutants), PROBE)
    found = []
    for model in PRESETS:
        with suppress(InputError):  # of a model that the engine does not take
            for scenario in islice(workloads(profile, model, seed=seed, shape=SHAPE), DRAWN):
                reached.clear()
                began = time.process_time()
                if play(scenario, profile).finding is None:
                    taken = time.process_time() - began
                    found.append(Sound(model, scenario, frozenset(reached), taken))
    return sorted(found, key=lambda each: each.seconds)


def emitted(profile: Profile, mutant: RandomMutant, among: Sequence[Sound]) -> list[Emitted]:
    """The files of a mutant, which is planted in this process."""
    ports.plant(mutant)
    found: list[Emitted] = []
    end = time.process_time() + SECONDS
    for each in among:
        left = end - time.process_time()
        if left <= 0 or len(found) == MOST:
            break
        with suppress(HangError, Exception), limited(left + SECONDS):
            report = search(profile, each.model, among=[(0, each.scenario)])
            if (example := report.counterexample) is not None:
                text = to_toml(example.scenario)
                found.append(Emitted(example.finding.kind, text, holds(text, profile)))
    return found


def fails_anyway(file: Emitted, profile: Profile) -> bool:
    """True for a file whose kind of finding is there where nothing is planted."""
    scenario = replace(loads(file.text.encode(), name="emitted"), expect=())
    return any(
        play(scenario, profile, arithmetic=arithmetic, only=file.kind).finding is not None
        for arithmetic in ARITHMETICS
    )


def main() -> int:
    """Print the counts by engine and kind; 1 if a file holds with its mutant, or fails without."""
    parser = argparse.ArgumentParser(prog="python -m conformance.mutants.random.emitted")
    parser.add_argument("--count", type=int, default=20, help="mutants of each engine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("engines", nargs="*", choices=[*ENGINES, []])
    given = parser.parse_args()
    screen = Console(highlight=False, markup=False, soft_wrap=True)
    counts = Counter[tuple[str, str, str]]()
    for name in given.engines or ENGINES:
        profile = Profile.parse(f"{name}@{family_of(name).names()[-1]}")
        mutants: list[RandomMutant] = []
        for port in ENGINES[name]:
            ports.load(port)
            mutants += ports.draw(port, given.count // len(ENGINES[name]), given.seed)
        gc.freeze()
        ((_, among),) = children([partial(sound, profile, mutants, given.seed)], 1)
        tasks = [
            partial(emitted, profile, mutant, [some for some in among if at in some.reached])
            for at, mutant in enumerate(mutants)
        ]
        for at, result in children(tasks, given.jobs):
            for file in () if isinstance(result, str) else result:
                told = judged(file, profile)
                counts[name, file.kind, told] += 1
                screen.print(f"{name:18} {file.kind:18} {told}")
                if told not in {RIGHT, ANYWAY}:
                    screen.print(mutants[at].place, mutants[at].new, file.text, sep="\n")
    screen.print()
    for (name, kind, told), times in sorted(counts.items()):
        screen.print(f"{name:18} {kind:18} {times:4} {told}")
    return int(any(told not in {RIGHT, ANYWAY} for _, _, told in counts))


RIGHT: Final = "fails with it, passes without it"
ANYWAY: Final = "fails without it, too: proves nothing"


def judged(file: Emitted, profile: Profile) -> str:
    """What a file does with its mutant and without it."""
    if fails_anyway(file, profile):
        return ANYWAY
    if file.holds:
        return f"PASSES WITH IT in {', '.join(file.holds)}"
    plain = holds(file.text, profile)
    failed = [arithmetic for arithmetic in ARITHMETICS if arithmetic not in plain]
    return f"FAILS WITHOUT IT in {', '.join(failed)}" if failed else RIGHT


if __name__ == "__main__":
    sys.exit(main())
