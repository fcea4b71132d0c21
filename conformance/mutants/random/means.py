"""Means that may find a mutant: digests, recorded vectors, search, the tests of the port."""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pytest
from _pytest.runner import runtestprotocol

from cachesim.engines import Profile
from cachesim.engines.family import family_of
from cachesim.errors import InputError
from cachesim.model.presets import PRESETS
from cachesim.play import run
from cachesim.scenario import full_profile, load
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import shipped_files
from cachesim.testing.search import trial_of, workloads
from conformance import drawn_plays
from conformance.hashes import digest_of, drawn, kept
from conformance.mutants.random.ports import Port
from conformance.real.vectors.replay import kind_of
from tests.engines.plays import (  # type: ignore[attr-defined] # a folder has its name
    FOLDER,
    answers,
    cases,
    played,
)

VECTORS: Final = Path(__file__).parents[3] / "tests" / "vectors"

Means: TypeAlias = Literal["scenarios", "vectors", "plays", "digests", "check", "laws"]
MEANS: Final[tuple[Means, ...]] = ("scenarios", "vectors", "plays", "digests", "check", "laws")

RECORDED: Final = {
    "llama.cpp": "memory-b* server-b*",
    "ik_llama.cpp": "server-ik-*",
    "mlx-lm": "mlx-*",
    "vllm": "vllm-*",
    "sglang": "sglang-*",
}
"""The vector files of each port."""

SEARCHED: Final = 12
"""Workloads of `check` for each release and model."""


@dataclass(frozen=True, slots=True)
class Example:
    """One thing that is played: whether it is as it should be, or, as text, what a search finds.

    A release may have bugs, which a search then finds without a mutant too.
    """

    means: Means
    name: str
    plays: Callable[[], bool | str]


def examples_of(port: Port) -> Iterator[Example]:
    """All but the laws, which are tests and come from pytest."""
    for pattern in RECORDED[port.name].split():
        for file in sorted(VECTORS.glob(f"{pattern}.jsonl.gz")):
            with gzip.open(file, "rt") as lines:
                for number, text in enumerate(lines):
                    line = json.loads(text)
                    module = import_module(kind_of(line, file).module)
                    yield Example(
                        "vectors", f"{file.name}:{number}", partial(_replays, module, line)
                    )
    releases = family_of(port.name).real() or family_of(port.name).names()
    for release in dict.fromkeys((releases[0], releases[-1])):
        profile = Profile.parse(f"{port.name}@{release}")
        for model in PRESETS:
            try:
                drawn = list(islice(workloads(profile, model), SEARCHED))
            except InputError:
                continue
            for number, scenario in enumerate(drawn):
                name = f"{profile} {model} {number}"
                yield Example("check", name, partial(_found, number, scenario, profile))
    digests = kept()
    for file in shipped_files():
        scenario = load(file)
        if scenario.engine.name == port.name:
            for wanted in scenario.engine.profiles:
                profile = full_profile(port.name, wanted)
                name = f"run {file.stem} {profile}"
                alike = partial(_has_digest, scenario, profile, digests.get(name))
                yield Example("scenarios", name, alike)
    wanted = answers(FOLDER / f"{port.name}.txt")
    for name, case in cases(FOLDER / f"{port.name}.jsonl").items():
        yield Example("plays", name, partial(_is_answered, case, wanted[name]))
    for (engine, number), value in drawn_plays.kept().items():
        if engine == port.name:
            yield Example("plays", f"drawn {number}", partial(_answers, engine, number, value))
    for name, wanted in kept().items():
        kind, *rest = name.split()
        if kind == "drawn" and rest[0].startswith(f"{port.name}@"):
            profile, model, count = Profile.parse(rest[0]), rest[1], int(rest[2])
            yield Example("digests", name, partial(_draws_alike, profile, model, count, wanted))


def _replays(module: Any, line: dict[str, Any]) -> bool:
    return bool(module.mismatch(line) is None)


def _found(number: int, scenario: Scenario, profile: Profile) -> str:
    return repr(trial_of(number, scenario, profile, arithmetic="ring").finding)


def _has_digest(scenario: Scenario, profile: Profile, wanted: str | None) -> bool:
    return digest_of(run(scenario, profile, arithmetic="ring")) == wanted


def _answers(engine: str, number: int, wanted: str) -> bool:
    return drawn_plays.answered(engine, number) == wanted


def _is_answered(case: dict[str, Any], wanted: str) -> bool:
    return bool(played(case) == wanted)


def _draws_alike(profile: Profile, model: str, count: int, wanted: str) -> bool:
    return [wanted] == [value for _, value in drawn(profile, model, count)]


def law(item: pytest.Item) -> Example:
    """A test of the port."""
    return Example("laws", item.nodeid, partial(_passes, item))


def _passes(item: pytest.Item) -> bool:
    os.environ["PYTEST_CURRENT_TEST"] = item.nodeid
    reports = runtestprotocol(item, log=False, nextitem=None)
    return all(report.passed or report.skipped for report in reports)
