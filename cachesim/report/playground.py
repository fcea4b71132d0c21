"""Functions of the playground: choices, and a scenario with its report and pictures.

The page in `docs/playground` calls `answer` inside a browser; everything goes in and out as JSON.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cachesim.engines.family import FAMILIES, Family
from cachesim.errors import CachesimError, ScenarioError
from cachesim.model.arithmetic import ArithmeticName
from cachesim.model.presets import ABOUT, PRESETS
from cachesim.play import run_scenario
from cachesim.play.result import FATES, Run, Step
from cachesim.report.chain import chain
from cachesim.report.json_output import document
from cachesim.report.picture import after, story
from cachesim.report.svg import inline
from cachesim.scenario.checks import scenario_of
from cachesim.scenario.files import to_toml


def choices() -> dict[str, Any]:
    """Engines with their releases, patches and flags, and the models."""
    return {
        "engines": {name: _engine(FAMILIES[name]) for name in FAMILIES},
        "models": {name: ABOUT.get(name, "") for name in PRESETS},
    }


def _engine(family: Family[Any, Any]) -> dict[str, Any]:
    return {
        "about": family.about,
        "releases": [
            {"name": each.name, "about": each.about, "patches": list(family.fitting(each.name))}
            for each in reversed(family.releases)
        ],
        "patches": {each.name: each.about for each in family.patches},
        "flags": {
            each.name: f"{each.about} ({each.shape})"
            for each in family.table()
            if not each.internal
        },
        "slots": family.has_slots,
    }


def answer(asked: str) -> str:
    """A request of the page; what is wrong with it is told, and never raised."""
    try:
        told = json.loads(asked)
        return json.dumps(played(told["scenario"], told["profile"], told["arithmetic"]))
    except ScenarioError as error:
        return json.dumps({"problems": list(error.problems)})
    except CachesimError as error:
        return json.dumps({"problems": [str(error)]})


def played(scenario: Mapping[str, Any], profile: str, arithmetic: str) -> dict[str, Any]:
    """A run: the verdict, the story as a picture, each step with its facts, and its JSON."""
    if arithmetic not in {"float", "ring"}:
        msg = f"arithmetic: {arithmetic!r} is not one of float, ring"
        raise ScenarioError(msg)
    numbers: ArithmeticName = "ring" if arithmetic == "ring" else "float"
    run = run_scenario(scenario, profile=profile, arithmetic=numbers, detail=True)
    worst = min(run.steps, key=lambda step: FATES.index(step.finding.fate))
    return {
        "fate": worst.finding.fate,
        "verdict": worst.finding.title or "Every answer is the cold answer.",
        "cause": _cause(worst),
        "story": inline(story(run, kinds=_kinds(run)), "s"),
        "steps": [_step(run, index) for index in range(len(run.steps))],
        "json": document([run]),
        "toml": to_toml(scenario_of(scenario)),
    }


CAUSES: Final = ("because", "rule", "match")
"""The facts that say why, the most telling first."""


def _cause(step: Step) -> str:
    told = {fact.word: fact.sentence for fact in reversed(step.facts)}
    return next((f"{word}: {told[word]}" for word in CAUSES if word in told), "")


def _kinds(run: Run) -> Sequence[Any]:
    """The rows of the story: what a reader needs to follow it, not all that there is."""
    kinds = {row.kind for i in range(len(run.steps)) for row in _rows(run, i)}
    memory = [kind for kind in ("recurrent", "window") if kind in kinds] or ["attention"]
    return ["request", *memory, "checkpoint", "tree", "parked"]


def _rows(run: Run, index: int) -> Sequence[Any]:
    picture = after(run, index)
    return () if picture is None else picture.rows


def _step(run: Run, index: int) -> dict[str, Any]:
    step, picture = run.steps[index], after(run, index)
    return {
        "name": step.name,
        "fate": step.finding.fate,
        "title": step.finding.title,
        "prompt": step.prompt_tokens,
        "cached": step.cached,
        "answer": step.answer,
        "error": step.error,
        "lost": step.lost if step.reuse == "lost" else 0,
        "facts": [[each.word, each.sentence] for each in step.statements],
        "chain": [
            [link.word, run.steps[link.step].name, link.sentence] for link in chain(run, index)
        ],
        "picture": "" if picture is None else inline(picture, f"m{index}"),
    }
