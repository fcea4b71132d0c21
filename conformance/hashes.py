"""`python -m conformance.hashes [--accept] [--drawn N]`: digests of what a change must keep.

The decisions of every shipped run in ring arithmetic and of drawn workloads of every release,
lessons and pages, one digest each in `conformance/hashes.txt`. A change of structure leaves all of
them as they are; a change of behaviour names those that differ, and `--accept` writes them down.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

from cachesim.cli.main import main as cachesim
from cachesim.engines import FAMILIES
from cachesim.engines.family import BESIDE_ENGINE, Profile, family_of
from cachesim.errors import CachesimError
from cachesim.learn import lessons
from cachesim.model.presets import PRESETS
from cachesim.play import run
from cachesim.play.result import Run
from cachesim.scenario import full_profile, load
from cachesim.scenario.labels import ALIKE
from cachesim.scenario.shipped import shipped_files
from cachesim.testing.search import workloads
from cachesim.testing.workloads import Shape

KEPT: Final = Path(__file__).parent / "hashes.txt"
ROOT: Final = Path(__file__).parents[1]
DRAWN: Final = 2_000
"""Workloads of an engine, over its releases and presets in turn."""

FEW: Final = 56
"""Workloads of an engine over the caches of another one, which its own draws cover."""

SEED: Final = 20261122
SHAPE: Final = Shape(incidents=True, chats=True)
LOG: Final = "docs/examples/hybrid.log"
RECORDED: Final = "docs/examples/recorded.jsonl"
PAGES: Final = {
    "run": (["run", "llama.cpp-three-requests", "--arithmetic", "ring"], "--report"),
    "compare": (["compare", "sglang-seven-kinds-of-request", "--rows", "policies"], "--plot"),
    "why log": (["why", LOG], "--report"),
    "why recording": (["why", RECORDED], "--report"),
    "tune": (["why", "--tune", LOG], "--report"),
    "list": (["list", "scenarios"], ""),
}
"""Commands whose text is hashed, and the option that writes what else they write."""


def digest(parts: Iterator[str]) -> str:
    """The first digits of the SHA-256 of some texts."""
    found = sha256()
    for part in parts:
        found.update(part.encode())
        found.update(b"\0")
    return found.hexdigest()[:16]


def kept() -> dict[str, str]:
    """The digests of `conformance/hashes.txt` by name."""
    pairs = (line.partition(" ") for line in KEPT.read_text(encoding="utf-8").splitlines())
    return {name: value for value, _, name in pairs}


def decisions(value: object) -> object:
    """A run's JSON without its sentences, which snapshots hold, and its machine, a given."""
    if isinstance(value, dict):
        left = value.keys() - {"word", "device"}
        return {key: decisions(each) for key, each in value.items() if key in left}
    if isinstance(value, list):
        return [decisions(each) for each in value]
    if value == ALIKE:  # of a table that grows: a right answer is what it was without the label
        return None
    return "" if isinstance(value, str) and " " in value else value


@cache
def formerly() -> dict[str, str]:
    """Profiles of today -> the names under which their runs were hashed first.

    A server that was a patch of another engine has digests under its former profile.
    """
    named = (name.rpartition(" ")[2] for name in kept() if name.startswith("run "))
    pairs = ((str(Profile.parse(each)), each) for each in named)
    return {today: each for today, each in pairs if today != each}


def decided(entry: Run) -> str:
    """Counts, answers, events, causes and evidence of a run, as text."""
    text = json.dumps(decisions(entry.to_json(detail=False)))
    name = formerly().get(entry.profile, entry.profile)
    return text.replace(json.dumps(entry.profile), json.dumps(name))


def digest_of(entry: Run) -> str:
    return digest(iter([decided(entry)]))


def shipped(file: Path) -> Iterator[tuple[str, str]]:
    scenario = load(file)
    for name in scenario.engine.profiles:
        profile = full_profile(scenario.engine.name, name)
        named = formerly().get(str(profile), profile)
        yield f"run {file.stem} {named}", digest_of(run(scenario, profile, arithmetic="ring"))


def drawn(profile: Profile, model: str, count: int) -> Iterator[tuple[str, str]]:
    """One digest of the first workloads of a preset; a refusal counts with its message."""

    def played() -> Iterator[str]:
        for workload in islice(workloads(profile, model, seed=SEED, shape=SHAPE), count):
            try:
                entry = run(workload, profile, arithmetic="ring", verify=False)
            except CachesimError as error:
                yield f"{type(error).__name__}: {error}"
            else:
                yield decided(entry)

    yield f"drawn {profile} {model} {count}", digest(played())


def lesson(number: int) -> Iterator[tuple[str, str]]:
    yield f"lesson {number}", digest(iter([printed(["learn", str(number), "--all"])]))


def page(name: str) -> Iterator[tuple[str, str]]:
    words, option = PAGES[name]
    yield f"text {name}", digest(iter([printed(words)]))
    if not option:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / ("plot.svg" if option == "--plot" else "page.html")
        printed([*words, option, str(file)])
        yield f"page {name}", digest(iter([file.read_text(encoding="utf-8")]))


def printed(words: Sequence[str]) -> str:
    with (
        contextlib.chdir(ROOT),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()),
    ):
        cachesim(list(words))
    return out.getvalue()


def work(most: int) -> Iterator[tuple[object, ...]]:
    """A function and its arguments for each process that is free."""
    for engine in FAMILIES:
        family = family_of(engine)
        profiles = [Profile.parse(f"{engine}@{name}") for name in family.names()]
        pairs = [(profile, model) for profile in profiles for model in PRESETS]
        count = most if family.evidence == BESIDE_ENGINE else min(most, FEW)
        for at, (profile, model) in enumerate(pairs):
            share = count // len(pairs) + (at < count % len(pairs))
            if share:
                yield drawn, profile, model, share
    for file in shipped_files():
        yield shipped, file
    for number in range(1, len(lessons()) + 1):
        yield lesson, number
    for name in PAGES:
        yield page, name


def hashed(task: tuple[object, ...]) -> list[tuple[str, str]]:
    do, *given = task
    return list(do(*given))  # type: ignore[operator]


def main(words: Sequence[str] | None = None) -> int:
    """Print what differs from the digests that are kept; 1 where anything does."""
    parser = argparse.ArgumentParser(prog="python -m conformance.hashes", description=__doc__)
    parser.add_argument("--accept", action="store_true", help="write the digests of today down")
    parser.add_argument("--drawn", type=int, default=DRAWN, help="workloads of an engine")
    arguments = parser.parse_args(words)
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        found = dict(pair for some in pool.map(hashed, work(arguments.drawn)) for pair in some)
    lines = [f"{value} {name}" for name, value in found.items()]
    if arguments.accept:
        KEPT.write_text("\n".join(lines) + "\n", encoding="utf-8")
        sys.stdout.write(f"{len(lines)} digests written to {KEPT.name}\n")
        return 0
    before = kept()
    differing = [name for name in found.keys() & before.keys() if found[name] != before[name]]
    for word, names in (
        ("differs", differing),
        ("new", found.keys() - before.keys()),
        ("missing", before.keys() - found.keys()),
    ):
        sys.stdout.writelines(f"{word}: {name}\n" for name in sorted(names))
    equal = len(found.keys() & before.keys()) - len(differing)
    sys.stdout.write(f"{equal} of {len(before)} digests are equal\n")
    return 0 if found == before else 1


if __name__ == "__main__":
    sys.exit(main())
