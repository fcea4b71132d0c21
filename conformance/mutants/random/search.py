"""Random mutants that `cachesim check --all` finds by itself: no vector, digest or test beside it.

    python -m conformance.mutants.random.search --count 30 --seed 1 --seconds 60
    python -m conformance.mutants.random.search vllm sglang --file found.jsonl

Each mutant is searched on the newest release, and with the models, of which some workload reaches
its line; every second workload is one of a server that is built on the port or of an older release,
in turn, if some reach it there, too. If no release does, on the first of these servers, else with
the first patch. It is found if a workload fails at a step where it does not fail without the
mutant. Only the processor time of the search counts, not that of the comparison.
"""

import argparse
import builtins
import gc
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, count, product
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks.defects import SHAPE
from cachesim.engines.family import FAMILIES, Family, Profile, family_of
from cachesim.errors import ContractError, InputError
from cachesim.model.presets import PRESETS
from cachesim.play.findings import Trial, finding_of, play
from cachesim.scenario.format import Scenario
from cachesim.testing.guided import Guided
from cachesim.verify.oracle import Oracles
from conformance.mutants.random import ports
from conformance.mutants.random.equivalent import EQUIVALENT
from conformance.mutants.random.ports import PORTS, Port, RandomMutant
from conformance.mutants.random.session import PROBE, HangError, PlantingError, children, limited

SECONDS: Final = 60.0
WANTED: Final = 0.7
"""The share that must be found."""

PROBED: Final = 24
"""Workloads of each release and model that show which lines are reached."""

PATIENCE: Final = 20.0
"""Processor seconds of a workload that hangs; the slowest takes a few."""

Target: TypeAlias = tuple[Profile, str]
Failures: TypeAlias = frozenset[tuple[str, int]]
"""Kinds of failures of a workload, each with its step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A mutant and the result of its search."""

    port: str
    place: str
    change: str
    equivalent: str = ""  # the reason why nothing can find it
    profile: str = ""
    models: int = 0  # in turn
    reached: bool = False  # by a workload without a mutant
    found: str = ""  # the kind of failure
    model: str = ""  # with which it was found
    seconds: float = 0.0
    workloads: int = 0


def targets(port: Port) -> list[Target]:
    """Every release with every model that it takes, the newest first; then those built on it."""
    own = family_of(port.name)
    built = [each for each in map(family_of, FAMILIES) if port.name in each.kin]
    profiles = [f"{own.name}@{release}" for release in reversed(own.names())]
    for family in (own, *built):
        if family is not own:
            profiles += [f"{family.name}@{release}" for release in reversed(family.names())]
        profiles += patched(family, server=True)
    profiles += patched(own, server=False)
    found = []
    for profile, model in product(map(Profile.parse, profiles), PRESETS):
        with suppress(InputError):
            Guided(profile, model, 0, shape=SHAPE)
            found.append((profile, model))
    return found


def patched(family: Family[Any, Any], *, server: bool) -> list[str]:
    """The newest release that each patch fits: one of another server, or one not merged."""
    return [
        f"{family.name}@{patch.fits[-1]}+{patch.name}"
        for patch in family.patches
        if patch.server == server and patch.fits and not patch.landed
    ]


def reaching(
    every: Sequence[Target], mutants: Sequence[RandomMutant], seed: int, jobs: int
) -> dict[int, tuple[list[Target], list[Target]]]:
    """The targets whose workloads reach each mutant's line: the newest release's, and those beside.

    Beside it are other servers and the older releases, some of whose rules the newest one lacks.
    """
    parts = [partial(_probed, mutants, every[at::jobs], seed) for at in range(jobs)]
    found: dict[int, set[Target]] = {}
    for _, part in children(parts, jobs):
        if isinstance(part, str):
            raise PlantingError(part)
        for target, numbers in part:
            for number in numbers:
                found.setdefault(number, set()).add(target)
    chosen = {}
    for number, some in found.items():
        newest = [each for each in every if each in some]
        first = newest[0][0]
        others = [each for each in newest if not each[0].patches and each[0] != first]
        beside = [each for each in newest if is_server(each[0])] + others
        chosen[number] = [each for each in newest if each[0] == first], beside
    return chosen


def is_server(profile: Profile) -> bool:
    """True for a profile of a server that is built on the port."""
    patches = map(family_of(profile.engine).patch, profile.patches)
    return any(patch.server for patch in patches)


def _probed(
    mutants: Sequence[RandomMutant], among: Sequence[Target], seed: int
) -> list[tuple[Target, frozenset[int]]]:
    lines: set[int] = set()
    setattr(builtins, PROBE, lambda *numbers: lines.update(numbers))
    ports.probe(list(mutants), PROBE)
    found = []
    for target in among:
        lines.clear()
        for number in range(PROBED):
            with suppress(ContractError, InputError):
                for _ in Guided(*target, number, seed=seed, shape=SHAPE).run():
                    pass
        found.append((target, frozenset(lines)))
    return found


def searched(
    blank: Searched,
    mutant: RandomMutant,
    targets: tuple[Sequence[Target], Sequence[Target]],
    seed: int,
    seconds: float,
) -> Searched:
    """The search for a mutant, which is planted in this process."""
    control, (among, beside) = _control(), targets
    ports.plant(mutant)
    spent, oracles = 0.0, Oracles()
    result = replace(blank, profile=str(among[0][0]), models=len(among))
    for played in count():
        turn, second = divmod(played, 2) if beside else (played, 0)
        here = beside if second else among
        number, at = divmod(turn, len(here))
        profile, model = here[at]
        if spent >= seconds:
            break
        begin = time.process_time()
        scenario, failures = _failures(profile, model, number, seed, oracles)
        spent += time.process_time() - begin
        result = replace(result, workloads=played + 1, seconds=round(spent, 2))
        if not failures:
            continue
        if scenario is not None and all(at >= 0 for _, at in failures):
            failures = _failures_of(scenario, profile)  # as `check`: once more, on all layers
        own = failures - control(scenario, profile) if scenario is not None else failures
        if own:
            kind = min(own, key=lambda each: each[1])[0]
            return replace(result, found=kind, model=model, profile=str(profile))
    return result


def _failures(
    profile: Profile, model: str, number: int, seed: int, oracles: Oracles
) -> tuple[Scenario | None, Failures]:
    """The failures of a guided workload as it is drawn."""
    client: Guided | None = None
    try:
        with limited(PATIENCE):
            with suppress(InputError):  # a flag or a model that the mutant refuses
                client = Guided(profile, model, number, seed=seed, shape=SHAPE)
            return (None, frozenset()) if client is None else _judged(client, oracles)
    except HangError:
        kind = "hang"
    except ContractError:
        kind = "broken invariant"
    except Exception as error:  # noqa: BLE001 - whatever a mutant raises ends the command
        kind = type(error).__name__
    return client.scenario if client else None, frozenset({(kind, -1)})


def _judged(client: Guided, oracles: Oracles) -> tuple[Scenario, Failures]:
    trial, found = Trial.of(client.session), set()
    for record in chain.from_iterable(client.run()):
        oracle = oracles.of(client.session.networks[record.step.model])
        finding = finding_of(record, oracle, trial, client.scenario.engine.options)
        if finding is not None:
            trial.findings.append(finding)
            found.add((finding.kind, finding.step))
    if not client.session.ended:
        client.session.engine.check_integrity()
    return client.scenario, frozenset(found)


def _control() -> Callable[[Scenario, Profile], Failures]:
    """A process without a mutant, which plays what it is given."""
    down, up = os.pipe(), os.pipe()
    if os.fork() == 0:
        with os.fdopen(down[0], "rb") as given, os.fdopen(up[1], "wb") as answers:
            os.close(down[1])
            with suppress(EOFError):
                while True:
                    pickle.dump(_failures_of(*pickle.load(given)), answers)
                    answers.flush()
        os._exit(0)
    os.close(down[0])
    os.close(up[1])
    asks, hears = os.fdopen(down[1], "wb"), os.fdopen(up[0], "rb")

    def control(scenario: Scenario, profile: Profile) -> Failures:
        pickle.dump((scenario, profile), asks)
        asks.flush()
        return pickle.load(hears)  # type: ignore[no-any-return]

    return control


def _failures_of(scenario: Scenario, profile: Profile) -> Failures:
    try:
        findings = play(scenario, profile, stop_early=False).findings
    except Exception as error:  # noqa: BLE001 - as a mutant would be found by it
        return frozenset({(type(error).__name__, -1)})
    broken = {
        ("broken invariant", -1) for finding in findings if finding.kind == "broken invariant"
    }
    return frozenset((finding.kind, finding.step) for finding in findings) | broken


def searches(
    port: Port, count: int, seed: int, seconds: float, jobs: int
) -> Iterator[tuple[RandomMutant, Searched]]:
    """The searches for so many mutants of a port, in the order in which they end."""
    mutants = ports.draw(port, count, seed)
    every = targets(port)
    ports.load(port)
    gc.freeze()
    among = reaching(every, mutants, seed, jobs)
    newest = [each for each in every if each[0] == every[0][0]]
    tasks, blanks = [], []
    for number, mutant in enumerate(mutants):
        blank = Searched(
            port=port.name,
            place=mutant.place,
            change=f"{mutant.source}: {mutant.old} -> {mutant.new}",
            equivalent=EQUIVALENT.get(mutant.key, ""),
            reached=number in among,
        )
        blanks.append(blank)
        some = among.get(number, (newest, []))
        given = 0.0 if blank.equivalent else seconds
        tasks.append(partial(searched, blank, mutant, some, seed, given))
    for number, result in children(tasks, jobs):
        if isinstance(result, str):
            msg = f"{mutants[number].place}: {result}"
            raise PlantingError(msg)
        yield mutants[number], result


def main() -> int:
    """Search, and print the table; 1 if too few mutants of a port are found."""
    parser = argparse.ArgumentParser(prog="python -m conformance.mutants.random.search")
    parser.add_argument("ports", nargs="*", choices=[*PORTS, []], help="all if left out")
    parser.add_argument("--count", type=int, default=30, help="mutants of each port")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="processor time of each")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--file", type=Path, help="a file to which each result is added, as JSON")
    wanted = parser.parse_args()
    screen = Console(width=150, highlight=False, markup=False, soft_wrap=True)
    table = Table("port", "mutants", "equivalent", "found", "share", "median, s", box=None)
    missed = False
    for name in wanted.ports or PORTS:
        found: list[Searched] = []
        given = (wanted.count, wanted.seed, wanted.seconds, wanted.jobs)
        for mutant, result in searches(PORTS[name], *given):
            found.append(result)
            if wanted.file is not None:
                with wanted.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
            if not (result.found or result.equivalent):
                never = "" if result.reached else ", which no workload reached without it"
                screen.print(f"not found: {mutant.place}{never}\n    {result.change}")
        rest = [each for each in found if not each.equivalent]
        times = [each.seconds for each in rest if each.found]
        share = len(times) / max(1, len(rest))
        missed |= share < WANTED
        table.add_row(
            name,
            str(len(found)),
            str(len(found) - len(rest)),
            f"{len(times)} of {len(rest)}",
            f"{100 * share:.0f} %",
            f"{median(times):.1f}" if times else "-",
        )
    screen.print(table)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
