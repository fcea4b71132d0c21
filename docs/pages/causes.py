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

Why fewer tokens were reused than matched: each engine declares its causes, the branch that lowers
the number names one and hands over the numbers of its test. `cachesim run` prints them as `rule`
lines, the JSON lists them under `why`, `cachesim list memory-depth` shows one. Quoted is the line
of a step, with the usable tokens before and after; without an example, the sentence. Most examples
were found by search and shrunk; all are run whenever this page is written, from the files in
`docs/causes`.
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
    """The line of the first step that shows a cause."""
    scenario = load(file)
    profile = full_profile(scenario.engine.name, scenario.engine.profiles[0])
    played = run(scenario, profile, arithmetic="ring", verify=False)
    for step in played.steps:
        for loss in step.why:
            if loss.rule == cause:
                return f"{step.name}: {loss.before} → {loss.after}  {loss.sentence}"
    raise LookupError(f"{file.name} does not show {cause}")
