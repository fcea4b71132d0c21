"""One scenario in full: what it is about, the table, and a paragraph for every step of interest."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from cachesim.report.paragraphs import Line, Proof, paragraph, step_lines
from cachesim.report.tables import side_by_side
from cachesim.scenario.format import Scenario
from cachesim.scenario.result import Run, Step


def unproven(_: Run, __: int) -> list[Line]:
    """Nothing: nothing real was looked for."""
    return []


def one_scenario(
    scenario: Scenario, runs: Sequence[Run], *, width: int, proof: Proof = unproven
) -> RenderableType:
    """The whole report of one scenario on one or several profiles."""
    return Group(
        heading(scenario, runs),
        Text(),
        side_by_side(runs, width=width),
        *findings(runs, proof),
        Text(),
    )


def heading(scenario: Scenario, runs: Sequence[Run]) -> RenderableType:
    """Name, story, source."""
    model = scenario.model.preset or " ".join(scenario.model.layers or ())
    engines = dict.fromkeys(run.profile.partition("@")[0] for run in runs)
    facts = [" and ".join(engines), model, runs[0].arithmetic]
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


def findings(runs: Sequence[Run], proof: Proof) -> Iterator[RenderableType]:
    """A paragraph for each step that went wrong or lost tokens.

    Profiles of which the same is to be said share one.
    """
    for index in range(len(runs[0].steps)):
        told: dict[tuple[Line, ...], list[Run]] = {}
        for run in runs:
            step = run.steps[index]
            if is_of_interest(step):
                told.setdefault(tuple(step_lines(run, index, proof)), []).append(run)
        for lines, alike in told.items():
            yield Text()
            yield paragraph(alike, index, lines)


def is_of_interest(step: Step) -> bool:
    """Whatever did not go as it should."""
    return step.finding.fate != "right"
