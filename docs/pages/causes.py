"""Every cause of every engine: its sentence, its meaning, and a workload with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cachesim.engines import facts
from cachesim.engines.causes import Cause
from cachesim.play import run
from cachesim.scenario import full_profile, load

FOLDER: Final = Path(__file__).parents[1] / "causes"

INTRODUCTION: Final = """\
# Causes

Why were fewer tokens cached than matched? The branch that lowers the number names its cause, with
the numbers of its test. You see it in the `rule` lines of `cachesim run`, and under `why` in JSON.
`cachesim list memory-depth` shows you one. Quoted is such a line from the example in `docs/causes`,
which is run whenever this page is written. Without an example, you see the sentence.
"""


def page() -> str:
    """All engines that have a server."""
    return "\n\n".join([INTRODUCTION, *_engines()]) + "\n"


def _engines() -> Iterator[str]:
    for engine in facts.shipped():
        yield f"## {engine}"
        for cause in facts.causes_of(engine):
            yield _cause(engine, cause)


def _cause(engine: str, cause: Cause) -> str:
    shown = list(_example(engine, cause)) or [f"> {cause.sentence}"]
    return "\n\n".join([f"### {cause.id}", cause.about, *shown])


def _example(engine: str, cause: Cause) -> Iterator[str]:
    """The example's lines on the cause."""
    file = FOLDER / f"{engine}-{cause.id}.toml"
    if file.exists():
        yield f"> {example(file, cause.id)}"


def example(file: Path, cause: str) -> str:
    """The sentence of the first request that shows a cause."""
    scenario = load(file)
    profile = full_profile(scenario.engine.name, scenario.engine.profiles[0])
    played = run(scenario, profile, arithmetic="ring", verify=False)
    for step in played.steps:
        for loss in step.why:
            if loss.rule == cause:
                return loss.sentence
    raise LookupError(f"{file.name} does not show {cause}")
