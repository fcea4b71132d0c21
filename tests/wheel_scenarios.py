"""`python -m tests.wheel_scenarios`: every scenario on the real servers of the releases it names.

One line per scenario and release: `agrees` where the real server says of every step what the
simulator says, `differs` where it does not, `cannot` with the reason where the real server is not
handed such requests. The table is kept in `docs/wheels.csv`; a scenario that plays the same as then
is not played again, unless `--all` asks for it. A night's work: some seconds for each line. Answers
are proven by `cachesim real ENGINE --scenario NAME`, which takes longer.
"""

import csv
import hashlib
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from cachesim.engines import FAMILIES
from cachesim.errors import CachesimError
from cachesim.real.llama_cpp.scenarios import play_scenario as play_on_llama_cpp
from cachesim.real.llama_cpp.workload import ENDLESS, SILENT
from cachesim.real.mlx_lm.scenarios import play_mlx_scenario
from cachesim.real.sglang.scheduler import SCHEDULER as SGLANG_SCHEDULER
from cachesim.real.vllm.scheduler import SCHEDULER as VLLM_SCHEDULER
from cachesim.scenario import Scenario, load
from cachesim.scenario.shipped import shipped_files

TABLE: Final = Path(__file__).parents[1] / "docs" / "wheels.csv"
PATIENCE: Final = 240.0
"""Seconds for one call of a real server that has the machine not to itself."""

UNPLAYED: Final = frozenset({"about", "class", "source", "shows", "expect"})
"""Tables of a scenario that no server is handed: its story, and what is expected."""

OUT: Final = Console(highlight=False, soft_wrap=True)

PLAYERS: Final[Mapping[str, Callable[[Scenario, str], Sequence[Any]]]] = {
    "llama.cpp": partial(play_on_llama_cpp, proves=False, patience=PATIENCE),
    "mlx-lm": play_mlx_scenario,
    "vllm": VLLM_SCHEDULER.play_scenario,
    "sglang": SGLANG_SCHEDULER.play_scenario,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One scenario on one release."""

    scenario: str
    release: str
    result: str  # agrees, differs, cannot
    why: str  # the steps that differ, or why it cannot be played
    file: str  # what was played: the beginning of its digest


def wanted() -> Iterator[tuple[Path, str, str]]:
    """Each file, its engine, and a release of it that a wheel plays; patches have no wheel."""
    for file in shipped_files():
        engine = load(file).engine
        real = FAMILIES[engine.name].real() if engine.name in PLAYERS else ()
        yield from ((file, engine.name, each) for each in engine.profiles if each in real)


def digest(file: Path) -> str:
    """The beginning of the digest of what a file has played: no story, no other releases."""
    told = tomllib.loads(file.read_text(encoding="utf-8"))
    played = {key: value for key, value in told.items() if key not in UNPLAYED}
    played["engine"] = {key: each for key, each in told["engine"].items() if key != "profiles"}
    return hashlib.sha256(json.dumps(played, sort_keys=True).encode()).hexdigest()[:12]


def play(file: Path, engine: str, release: str) -> Played:
    """Play one scenario; what goes wrong is a result too."""
    made = partial(Played, scenario=file.stem, release=release, file=digest(file))
    try:
        steps = PLAYERS[engine](load(file), release)
    except CachesimError as error:
        return made(result="cannot", why=str(error).splitlines()[0].removeprefix(f"{file.stem}: "))
    if any(_late(each) for each in steps):
        return made(result="cannot", why="the real server had not answered in time")
    wrong = [str(number) for number, each in enumerate(steps, 1) if not each.agrees]
    if not wrong:
        return made(result="agrees", why="")
    return made(result="differs", why=f"steps {', '.join(wrong)} of {len(steps)}")


def _late(step: Any) -> bool:
    """Only a clock ended it: the simulator knows of no reason."""
    told = getattr(step.real, "error", None)
    return told in {ENDLESS, SILENT} and step.simulated.error not in {ENDLESS, SILENT}


def known() -> dict[tuple[str, str], Played]:
    """What the table holds."""
    if not TABLE.is_file():
        return {}
    with TABLE.open(newline="", encoding="utf-8") as table:
        rows = [Played(**each) for each in csv.DictReader(table)]
    return {(each.scenario, each.release): each for each in rows}


def write(rows: Sequence[Played]) -> None:
    """The table, in the order of names."""
    order = sorted(rows, key=lambda each: (each.scenario, each.release))
    with TABLE.open("w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, [each.name for each in fields(Played)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(each) for each in order)


def main(arguments: Sequence[str]) -> int:
    """Play what is not known yet; 1 if a real server differs anywhere, 2 for a wrong word."""
    unknown = [each for each in arguments if each not in {"--all", *PLAYERS}]
    if unknown:
        OUT.print(f"unknown: {' '.join(unknown)}; there are --all, {', '.join(PLAYERS)}")
        return 2
    anew = "--all" in arguments
    engines = [each for each in arguments if not each.startswith("--")] or [*PLAYERS]
    before, rows = known(), dict[tuple[str, str], Played]()
    left = []
    for file, engine, release in wanted():
        old = before.get((file.stem, release))
        if old is not None and old.file == digest(file) and not (anew and engine in engines):
            rows[file.stem, release] = old
        elif engine in engines:
            left.append((file, engine, release))
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda each: play(*each), left):
            rows[done.scenario, done.release] = done
            OUT.print(f"{done.result:8} {done.scenario} {done.release} {done.why}")
            write([*rows.values()])
    write([*rows.values()])
    return int(any(each.result == "differs" for each in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
