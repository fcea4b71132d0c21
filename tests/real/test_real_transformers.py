"""Caches of Transformers' models in the release itself: what is wrong, and planted bugs."""

import subprocess
from collections.abc import Iterator

import pytest

from cachesim.lab.real.transformers.commands import (
    NEWEST,
    Worker,
    environment_for,
    play_family,
)
from cachesim.lab.real.transformers.program import program_of
from cachesim.lab.real.transformers.results import Found
from cachesim.lab.real.transformers.scripts import OPERATIONS, Script, drawn

pytestmark = [
    pytest.mark.wheel,
    pytest.mark.skipif(
        not environment_for(NEWEST).is_ready(), reason="torch is not installed: make nightly"
    ),
]
GENERATE = {"generate-cached", "generate-shorter"}
"""`generate` feeds a prompt again whose tokens are all in the cache."""

RECORDED = {"crop-recorded", "crop-recorded-first", "crop-twice", "crop-deep", "crop-all"}
WRONG = {
    "llama": GENERATE,
    "gemma3_text": GENERATE,
    "mamba2": GENERATE | RECORDED | {"generate-turn"},
    "falcon_h1": GENERATE | {"crop-twice", "crop-deep", "select"},
}


@pytest.fixture
def worker() -> Iterator[Worker]:
    process = Worker(environment_for(NEWEST).python)
    yield process
    process.close()


def wrong_in(worker: Worker, family: str) -> set[str]:
    found = Found(NEWEST)
    scripts = {name: drawn(name, family, 0) for name in OPERATIONS}
    play_family(worker, family, scripts, "eager", found)
    assert not found.unbuilt
    return {each.operation for each in found.cells if each.verdict == "wrong"}


@pytest.mark.parametrize("family", WRONG)
def test_the_same_operations_are_wrong_each_time(worker: Worker, family: str) -> None:
    assert WRONG[family] == wrong_in(worker, family)
    assert WRONG[family] == wrong_in(worker, family)


@pytest.mark.parametrize(
    ("bug", "family", "operation"),
    [
        ("crop", "llama", "crop"),
        ("mask", "gemma3_text", "chunks"),
        ("positions", "llama", "tokens"),
        ("states", "mamba2", "reset"),
    ],
)
def test_a_planted_bug_is_found(worker: Worker, bug: str, family: str, operation: str) -> None:
    worker.order({"families": True, "plant": bug})
    assert operation in wrong_in(worker, family) - WRONG[family]


@pytest.mark.parametrize(
    ("family", "script"),
    [
        ("mamba2", [["record"], ["feed", 14], ["feed", 3], ["crop", -2], ["feed", 4]]),
        ("falcon_h1", [["rows", 3], ["feed", 9], ["select", 2, 1, 0], ["feed", 3]]),
        ("falcon_mamba", [["feed", 9], ["feed", 4]]),
        ("llama", [["generate", 12, "plain"], ["generate", 0, "plain"]]),
    ],
)
def test_a_printed_program_is_wrong_as_its_script_is(
    worker: Worker, family: str, script: Script
) -> None:
    order = {"family": family, "attention": "eager", "scripts": [script]}
    answer = worker.order(order)
    assert "wrong" == answer["results"][0]["verdict"]
    program = program_of(family, answer["fields"], answer["key"], script)
    assert len(program.splitlines()) <= 25
    python = environment_for(NEWEST).python
    done = subprocess.run(
        [python, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    far, deviation = (float(each.rstrip(";")) for each in done.stdout.split() if each[0].isdigit())
    assert far > deviation / 1000
