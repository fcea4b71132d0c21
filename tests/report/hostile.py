"""A scenario whose every text would do harm in a page that takes texts for markup."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cachesim.engines.llamacpp.vocabulary.events import SlotSaved
from cachesim.play.result import Fact, Run, Step

SCRIPT: Final = "</script><script>window.harmed = 1</script>"
IMAGE: Final = '"><img src=x onerror="window.harmed = 1">'
QUOTES: Final = 'it\'s "quoted" & <b>bold</b> <!-- ${window.harmed = 1} /*data*/ \u2028 日本語 🦙'


def hostile_runs(runs: Sequence[Run]) -> list[Run]:
    """The same runs with names and texts that bite; tokens and numbers stay."""
    return [_hostile(run) for run in runs]


def _hostile(run: Run) -> Run:
    assert run.detail is not None
    detail = replace(
        run.detail,
        about=QUOTES,
        issue=IMAGE,
        model=SCRIPT,
        toml=SCRIPT,
        kind=QUOTES,
        options={SCRIPT: IMAGE, "$": {"$": 3}},
    )
    steps = tuple(_hostile_step(step) for step in run.steps)
    return replace(run, scenario=SCRIPT, profile=f"x@{IMAGE}", steps=steps, detail=detail)


def _hostile_step(step: Step) -> Step:
    assert step.detail is not None
    assert step.explanation is not None
    parts = tuple(replace(part, name=SCRIPT) for part in step.detail.parts)
    first = SlotSaved(slot=0, file=f"{IMAGE}{SCRIPT}", n_tokens=1, n_bytes=1)
    explanation = replace(step.explanation, sentences=(IMAGE, SCRIPT, QUOTES))
    if explanation.fault:
        fault = replace(explanation.fault, comes_from=SCRIPT)
        explanation = replace(explanation, fault=fault)
    return replace(
        step,
        name=f"{SCRIPT}{IMAGE}",
        events=(first, *step.events[1:]),
        message=QUOTES,
        explanation=explanation,
        facts=(*step.facts, Fact(word=IMAGE, sentence=SCRIPT, fields={SCRIPT: QUOTES})),
        finding=replace(step.finding, title=f"{SCRIPT}{QUOTES}"),
        detail=replace(step.detail, parts=parts),
    )
