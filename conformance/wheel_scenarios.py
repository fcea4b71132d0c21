"""`python -m conformance.wheel_scenarios`: every scenario on the real servers of its releases.

So are the runs of lessons in which a release answers wrongly: `lesson-5-1` is one of lesson 5.

One line per scenario and release: `agrees` where the real server says of every step what the
simulator says, `differs` where it does not, `cannot` with the reason where the real server is not
handed such requests. Where the simulator's answer is wrong, or its server ends, the real answer is
held against a cold one: `confirmed` lists the steps in which the real one is wrong, or ends, too.
The table is kept in `docs/wheels.csv`, from which every report has its evidence labels; a scenario
that plays the same as then is not played again, unless `--all` or its own name asks for it. A
night's work: some seconds for each line.

ik_llama.cpp has no package: `ik_llama.cpp@8337e4cd3=PATH` names a server that you have built from
that commit. Rows of releases without a server here stay while their scenarios play the same.
"""

import csv
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from rich.console import Console

from cachesim.engines import FAMILIES
from cachesim.engines.family import Profile
from cachesim.engines.ik_llama.family import FAMILY as IK_LLAMA
from cachesim.errors import CachesimError
from cachesim.learn import execute, kit, lessons
from cachesim.play import run, run_scenario
from cachesim.play.result import CLAIMS, Run
from cachesim.play.session import ENDLESS, WORKER_GONE
from cachesim.prove.llama_cpp.scenarios import play_scenario as play_on_llama_cpp
from cachesim.prove.llama_cpp.workload import SILENT
from cachesim.prove.llama_cpp_python.scenarios import play_scenario as play_on_binding
from cachesim.prove.mlx_lm.scenarios import play_mlx_scenario
from cachesim.prove.playing import Difference
from cachesim.scenario import Scenario, load
from cachesim.scenario.checks import scenario_of
from cachesim.scenario.labels import digest
from cachesim.scenario.shipped import shipped_files
from conformance.real.ik_llama.commands import play_scenario as play_on_ik_llama
from conformance.real.sglang.rows import differs_in as sglang_differs_in
from conformance.real.sglang.scheduler import SCHEDULER as SGLANG_SCHEDULER
from conformance.real.transformers.scenarios import play_scenario as play_on_transformers
from conformance.real.vllm.scheduler import SCHEDULER as VLLM_SCHEDULER
from conformance.real.vllm.steps import differs_in as vllm_differs_in

TABLE: Final = Path(__file__).parents[1] / "docs" / "wheels.csv"
PATIENCE: Final = 240.0
"""Seconds for one call of a real server that has the machine not to itself."""

OUT: Final = Console(highlight=False, soft_wrap=True)


BINARIES: Final[dict[str, Path]] = {}
"""Servers of ik_llama.cpp that someone has built, by commit."""

PLAYERS: Final[Mapping[str, Callable[..., Sequence[Any]]]] = {
    "ik_llama.cpp": lambda scenario, release, **_: play_on_ik_llama(
        scenario, BINARIES[release], release
    )[0],
    "llama.cpp": partial(play_on_llama_cpp, patience=PATIENCE),
    "llama-cpp-python": play_on_binding,
    "mlx-lm": lambda scenario, release, **_: play_mlx_scenario(scenario, release),
    "vllm": lambda scenario, release, **_: VLLM_SCHEDULER.play_scenario(scenario, release),
    "sglang": lambda scenario, release, **_: SGLANG_SCHEDULER.play_scenario(scenario, release),
    "transformers": lambda scenario, release, **_: play_on_transformers(scenario, release),
}
"""The run of a scenario on the real engine; `proves` is true to compare answers."""


RUNNERS: Final[Mapping[str, Callable[[Scenario, str], Difference | None]]] = {
    "vllm": vllm_differs_in,
    "sglang": sglang_differs_in,
}
"""The first difference between a real model runner and the simulated one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One scenario on one release."""

    scenario: str
    release: str
    result: str  # agrees, differs, cannot
    why: str  # the steps that differ, or why it cannot be played
    file: str  # what was played: the beginning of its digest
    confirmed: str = ""  # steps in which the real engine answers wrongly, or ends, as simulated
    derived: str = ""  # steps in which its model runner's metadata name the wrong state


def wanted() -> Iterator[tuple[str, Scenario, str]]:
    """Each scenario, its name, and a release of it that a wheel plays; patches have no wheel."""
    for file in shipped_files():
        scenario = load(file)
        engine = scenario.engine
        real = FAMILIES[engine.name].real() if engine.name != IK_LLAMA.name else IK_LLAMA.names()
        yield from (
            (file.stem, scenario, profile) for profile in engine.profiles if profile in real
        )
    yield from of_lessons()


def of_lessons() -> Iterator[tuple[str, Scenario, str]]:
    """The runs of the lessons in which a release answers wrongly, recorded as they are executed."""
    runs = dict[tuple[str, str], tuple[Scenario, str]]()

    def recorded(mapping: Any, *, profile: str, **further: Any) -> Run:
        done = run_scenario(mapping, profile=profile, **further)
        if any(step.evidence for step in done.steps):
            scenario, release = scenario_of(mapping), Profile.parse(profile).release
            runs.setdefault((digest(scenario), release), (scenario, release))
        return done

    with patch.object(kit, "run_scenario", recorded):
        for lesson in lessons():
            before = len(runs)
            execute(lesson)
            for number, (scenario, release) in enumerate([*runs.values()][before:], 1):
                yield f"lesson-{lesson.number}-{number}", scenario, release


def simulated(scenario: Scenario, engine: str, release: str) -> dict[str, bool]:
    """The steps with a verdict: true where the simulator answers wrongly, or its server ends.

    A worker thread that dies ends a server too: nothing is answered any more.
    """
    played = run(scenario, Profile(engine, release), arithmetic="ring")
    claims = {
        step.name: step.finding.fate in CLAIMS or (step.error or "").startswith(WORKER_GONE)
        for step in played.steps
    }
    judged = {step.name for step in played.steps if step.answer in {"same", "rounding"}}
    return {name: claim for name, claim in claims.items() if claim or name in judged}


def play(name: str, scenario: Scenario, release: str) -> Played:
    engine = scenario.engine.name
    made = partial(Played, scenario=name, release=release, file=digest(scenario))
    wrong = simulated(scenario, engine, release)
    try:
        steps = PLAYERS[engine](scenario, release, proves=any(wrong.values()))
    except CachesimError as error:
        return made(result="cannot", why=str(error).splitlines()[0].removeprefix(f"{name}: "))
    if any(_late(step) for step in steps):
        return made(result="cannot", why="the real server had not answered in time")
    named = {step.name: step for step in steps}
    differing = [name for name, each in named.items() if not each.agrees]
    if differing:
        return made(result="differs", why=f"steps {', '.join(differing)} of {len(steps)}")
    judged = {name: each.confirmed for name, each in named.items() if name in wrong}
    differing = [name for name, each in judged.items() if each not in {None, wrong[name]}]
    if differing:
        return made(result="differs", why=f"answers of steps {', '.join(differing)}")
    confirmed = [name for name, each in judged.items() if each]
    left = [name for name, each in wrong.items() if each and name not in confirmed]
    derived = left if left and _runs_alike(scenario, engine, release) else []
    return made(result="agrees", why="", confirmed=" ".join(confirmed), derived=" ".join(derived))


def _runs_alike(scenario: Scenario, engine: str, release: str) -> bool:
    """True if the real model runner's reads, writes and copies equal the simulated one's."""
    try:
        return engine in RUNNERS and not RUNNERS[engine](scenario, release)
    except CachesimError:
        return False


def _late(step: Any) -> bool:
    """Only a clock ended it: the simulator knows of no reason."""
    told = getattr(step.real, "error", None)
    return told in {ENDLESS, SILENT} and step.simulated.error not in {ENDLESS, SILENT}


def known() -> dict[tuple[str, str], Played]:
    if not TABLE.is_file():
        return {}
    with TABLE.open(newline="", encoding="utf-8") as table:
        rows = [Played(**each) for each in csv.DictReader(table)]
    return {(row.scenario, row.release): row for row in rows}


def write(rows: Sequence[Played]) -> None:
    order = sorted(rows, key=lambda row: (row.scenario, row.release))
    with TABLE.open("w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(
            table, [field.name for field in fields(Played)], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(asdict(played) for played in order)


def main(arguments: Sequence[str]) -> int:
    """Play what is not known yet; 1 if a real server differs anywhere, 2 for a wrong word."""
    built = {
        argument.partition("=")[0]: argument.partition("=")[2]
        for argument in arguments
        if "=" in argument
    }
    known_words = {"--all", *PLAYERS, *(f"{IK_LLAMA.name}@{each}" for each in IK_LLAMA.names())}
    words = [argument.partition("=")[0] for argument in arguments]
    names = {file.stem for file in shipped_files()} & {*words}
    unknown = [word for word in words if word not in known_words | names]
    if unknown:
        OUT.print(f"unknown: {' '.join(unknown)}; there are {', '.join(sorted(known_words))}")
        return 2
    BINARIES.update({each.partition("@")[2]: Path(path) for each, path in built.items()})
    anew = "--all" in arguments
    engines = {word.partition("@")[0] for word in words if word not in {"--all", *names}}
    engines = engines or ({*PLAYERS} if not names else set())
    before, rows = known(), dict[tuple[str, str], Played]()
    left = []
    for name, scenario, release in wanted():
        engine, old = scenario.engine.name, before.get((name, release))
        here = engine in engines or name in names
        here &= engine != IK_LLAMA.name or release in BINARIES
        again = here and (anew or name in names)
        if old is not None and old.file == digest(scenario) and not again:
            rows[name, release] = old
        elif here:
            left.append((name, scenario, release))
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda each: play(*each), left):
            rows[done.scenario, done.release] = done
            OUT.print(f"{done.result:8} {done.scenario} {done.release} {done.why}")
            write([*rows.values()])
    write([*rows.values()])
    return int(any(row.result == "differs" for row in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
