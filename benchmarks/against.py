"""Workloads of a search and replays of a trace at another commit and here, alternately.

    python -m benchmarks against COMMIT      fails where this tree has less than 0.9 times the speed

The workloads are drawn here and written as scenarios, so both commits judge the same ones. Time is
the processor's own, the least of all turns. Scenarios that one commit refuses, or in which the two
find different things, are left out.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console

from benchmarks.search import MODELS, PROFILES, SIX
from cachesim.engines.family import Profile
from cachesim.scenario.files import to_toml
from cachesim.testing.search import workloads

ROOT: Final = Path(__file__).parents[1]
LEAST: Final = 0.9
TURNS: Final = 3
COUNT: Final = 16
"""Workloads of each row."""

TRACE: Final = "made:500"

LINE: Final = "{:<30}{:<14}{:<12}{:>9} {:>9} {:>8}  {}"
"""Columns, printed as they are measured."""

WORKER: Final = """
import importlib, json, pathlib, sys, time

def one(*places):
    for place in places:
        module, _, name = place.partition(":")
        try:
            importlib.import_module(module)
            return getattr(sys.modules[module], name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"none of {places} is there")

kind, text, folder, arithmetic = sys.argv[1:5]
if kind == "trace":
    cell, play, source = (
        one(*(f"{package}.{name}" for package in ("cachesim.lab.traces", "cachesim.traces")))
        for name in ("replay:Cell", "replay:play", "source:Source")
    )
    work = [lambda: play(cell(source=source(name="made:500"), profile=text, model="dense"))]
else:
    load = one("cachesim.scenario.files:load")
    trial = one("cachesim.testing.search:trial_of", "cachesim.testing.search:look")
    profile = one("cachesim.engines.family:Profile", "cachesim.engines.profile:Profile").parse(text)
    work, findings = [], {}
    for path in sorted(pathlib.Path(folder).glob("*.toml")):
        try:
            scenario, number = load(path), int(path.stem)
            finding = trial(number, scenario, profile, arithmetic=arithmetic).finding
        except Exception:
            continue
        findings[path.name] = finding and finding.kind
        work.append(lambda n=number, s=scenario: trial(n, s, profile, arithmetic=arithmetic))
    if len(sys.argv) > 5:
        print(json.dumps(findings))
        raise SystemExit
def seconds(times):
    begun = time.process_time()
    for _ in range(times):
        for play in work:
            play()
    return (time.process_time() - begun) / times

# A search sets timers, and beside a timer Linux counts processor time in ticks of 4 ms.
times = max(1, round(0.5 / max(seconds(1), 0.01)))
print(json.dumps(min(seconds(times) for _ in range(3))))
"""


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Kind, profile, model and arithmetic of each comparison."""
    pairs = [(PROFILES[0], model) for model in MODELS]
    for profile, model in [*pairs, *((each, MODELS[0]) for each in PROFILES[1:])]:
        for arithmetic in ("ring", "float"):
            yield "search", profile, model, arithmetic
    for profile in PROFILES[:1] + PROFILES[2:5]:
        yield "trace", profile.partition("+")[0], TRACE, "counts"


def answer(tree: Path, row: Sequence[str], folder: Path, *more: str) -> str:
    """A tree's processor seconds, or the findings of all files it accepts; empty if it fails."""
    kind, profile, _, arithmetic = row
    done = subprocess.run(
        [sys.executable, "-c", WORKER, kind, profile, str(folder), arithmetic, *more],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode else done.stdout.splitlines()[-1]


def compared(other: Path, row: Sequence[str], folder: Path) -> tuple[int, float, float] | None:
    """Workloads, and the least seconds of the other tree and of this one, in turns."""
    count = 1
    if row[0] == "search":
        drawn = workloads(Profile.parse(row[1]), row[2], shape=SIX)
        for number, scenario in enumerate(islice(drawn, COUNT)):
            path = folder / f"{number:03}.toml"
            path.write_text(to_toml(scenario), encoding="utf-8")
        found = (answer(tree, row, folder, "findings") or "{}" for tree in (other, ROOT))
        one, two = (json.loads(findings) for findings in found)
        both = dict(
            one.items() & two.items()
        )  # a finding is played twice: thin, then on all layers
        for path in folder.glob("*.toml"):
            if path.name not in both:
                path.unlink()
        count = len(both)
    turns = [(answer(other, row, folder), answer(ROOT, row, folder)) for _ in range(TURNS)]
    if not count or any("" in turn for turn in turns):
        return None
    theirs, ours = (min(map(float, spent)) for spent in zip(*turns, strict=True))
    return count, theirs, ours


def run(out: Console, commit: str) -> int:
    """Print the table; 1 if a row is slower than it may be."""
    git = ["git", "-C", str(ROOT)]
    name = subprocess.run(
        [*git, "rev-parse", "--short", f"{commit}^{{commit}}"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    if not name:
        out.print(f"there is no commit {commit!r} in this repository")
        return 2
    out.print(f"this tree against {name}, the least processor seconds of {TURNS} turns")
    out.print(LINE.format("profile", "model", "arithmetic", "workloads", name, "here", "speed"))
    slower = 0
    with TemporaryDirectory() as place:
        other = Path(place) / "tree"
        subprocess.run([*git, "worktree", "add", "-q", "--detach", str(other), name], check=True)
        try:
            for number, row in enumerate(rows()):
                folder = Path(place) / str(number)
                folder.mkdir()
                found = compared(other, row, folder)
                if found is None:
                    out.print(LINE.format(*row[1:], "-", "-", "-", "not comparable"))
                    continue
                count, theirs, ours = found
                slower += theirs / ours < LEAST
                shown = f"{theirs:.3f}", f"{ours:.3f}", f"{theirs / ours:.2f}"
                out.print(LINE.format(*row[1:], count, *shown))
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(other)], check=True)
    if slower:
        out.print(f"{slower} rows have less than {LEAST} times the speed of {name}")
    return int(slower > 0)
