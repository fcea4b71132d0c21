"""One scenario in full: what it is about, the table, and a paragraph for every step of interest."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cachesim.report.cells import lost
from cachesim.report.paragraphs import paragraph, step_facts
from cachesim.report.rules import Fact
from cachesim.report.tables import side_by_side
from cachesim.scenario.format import Scenario


def one_scenario(
    scenario: Scenario, runs: Sequence[Mapping[str, Any]], *, source: str, width: int
) -> RenderableType:
    """The whole report of one scenario on one or several profiles."""
    if not is_playable(scenario):
        source = ""
    return Group(
        heading(scenario, runs),
        Text(),
        side_by_side(runs, width=width),
        *findings(runs, source=source),
        Text(),
    )


def is_playable(scenario: Scenario) -> bool:
    """Whether a real server can be asked the same: nothing in it depends on the clock."""
    return not any(
        step.turns is not None or step.do == "cancel" or step.messages for step in scenario.step
    )


def heading(scenario: Scenario, runs: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Name, story, source."""
    model = scenario.model.preset or " ".join(scenario.model.layers or ())
    facts = [scenario.engine.name, model, runs[0]["arithmetic"]]
    if scenario.kind:
        facts.append(scenario.kind)
    if scenario.source.issue:
        facts.append(scenario.source.issue)
    lines: list[RenderableType] = [
        Text(scenario.name, style="name"),
        Text(" · ".join(facts), style="quiet"),
    ]
    if scenario.about:
        lines.append(Text(scenario.story))
    return Group(*lines)


def findings(runs: Sequence[Mapping[str, Any]], *, source: str) -> Iterator[RenderableType]:
    """A paragraph for each step that went wrong, or that lost more on one profile than another.

    Profiles of which the same is to be said share one.
    """
    for index in range(len(runs[0]["steps"])):
        told: dict[tuple[Fact, ...], list[Mapping[str, Any]]] = {}
        for run in runs:
            if is_of_interest(run["steps"][index], [each["steps"][index] for each in runs]):
                facts = tuple(step_facts(run, index, runs, source=source))
                told.setdefault(facts, []).append(run)
        for facts, alike in told.items():
            yield Text()
            yield paragraph(alike, index, facts)


def is_of_interest(step: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> bool:
    """Wrong answers and errors always; lost reuse where another profile lost less."""
    if step["answer"] in {"diverged", "by-design"} or step["error"] is not None:
        return True
    if step["do"] != "complete" or step["cached"] is None:
        return False
    if len(steps) == 1:
        return lost(step) > 1
    right = [each["cached"] or 0 for each in steps if each["answer"] != "diverged"]
    return bool(step["cached"] < max(right, default=0))
