"""What may find a mutant: recorded vectors, the port's own tests and laws, search, scenarios."""

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
from cachesim.real.vectors.replay import kind_of
from cachesim.scenario import full_profile, run
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import load_all
from cachesim.testing.search import look, workloads
from tests.mutants.random.ports import Port

VECTORS: Final = Path(__file__).parents[2] / "vectors"

Means: TypeAlias = Literal["vectors", "laws", "check", "scenarios"]
MEANS: Final[tuple[Means, ...]] = ("vectors", "laws", "check", "scenarios")

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
    """One thing that is played: true if it is as it should be."""

    means: Means
    name: str
    holds: Callable[[], bool]


def examples_of(port: Port) -> Iterator[Example]:
    """All but the laws, which are tests and come from pytest."""
    yield from _vectors(port)
    yield from _searches(port)
    yield from _scenarios(port)


def _vectors(port: Port) -> Iterator[Example]:
    for pattern in RECORDED[port.name].split():
        for file in sorted(VECTORS.glob(f"{pattern}.jsonl.gz")):
            with gzip.open(file, "rt") as lines:
                for number, text in enumerate(lines):
                    line = json.loads(text)
                    module = import_module(kind_of(line, file).module)
                    yield Example(
                        "vectors", f"{file.name}:{number}", partial(_replays, module, line)
                    )


def _replays(module: Any, line: dict[str, Any]) -> bool:
    return bool(module.mismatch(line) is None)


def _searches(port: Port) -> Iterator[Example]:
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
                yield Example("check", name, partial(_finds_nothing, number, scenario, profile))


def _finds_nothing(number: int, scenario: Scenario, profile: Profile) -> bool:
    return look(number, scenario, profile, arithmetic="ring").finding is None


def _scenarios(port: Port) -> Iterator[Example]:
    for name, scenario in load_all(()):
        if scenario.engine.name == port.name:
            for wanted in scenario.engine.profiles:
                profile = full_profile(port.name, wanted)
                yield Example(
                    "scenarios", f"{name} {profile}", partial(_as_expected, scenario, profile)
                )


def _as_expected(scenario: Scenario, profile: Profile) -> bool:
    return run(scenario, profile, arithmetic="ring").mismatches == ()


def law(item: pytest.Item) -> Example:
    """A test of the port."""
    return Example("laws", item.nodeid, partial(_passes, item))


def _passes(item: pytest.Item) -> bool:
    os.environ["PYTEST_CURRENT_TEST"] = item.nodeid
    reports = runtestprotocol(item, log=False, nextitem=None)
    return all(report.passed or report.skipped for report in reports)
