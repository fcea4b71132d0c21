"""A report of a scenario: its summary, the table, and a paragraph for each relevant step."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cachesim.play.result import Fate, Run, Step
from cachesim.report.tables import short_profile, side_by_side
from cachesim.scenario.format import Scenario

Line: TypeAlias = tuple[str, str]
"""A word with its sentence."""

Proof: TypeAlias = Callable[[Run, int], list[Line]]
"""The command that reproduces a run's wrong answer on the real engine; may be empty."""

PROVE: Final = "prove it"
"""Label before a command."""

HEADINGS: Final[dict[Fate, tuple[str, str]]] = {
    "wrong": ("the answer is WRONG, the reuse unsound", "wrong"),
    "by-design": ("the answer differs, by design of the server", "lost"),
    "aborted": ("the server process ENDS", "wrong"),
    "hung": ("the server HANGS, no request is answered", "wrong"),
    "unanswered": ("NO REPLY to this request", "wrong"),
    "refused": ("refused, {step.error}", "wrong"),
    "failed": ("{step.do} failed, {step.error}", "wrong"),
    "not-run": ("not run, {step.message}", "wrong"),
    "lost": ("{step.cached} of {step.prompt_tokens} tokens reused", "lost"),
    "right": ("{step.cached} of {step.prompt_tokens} tokens reused", "quiet"),
}


def paragraph(runs: Sequence[Run], index: int, lines: Sequence[Line]) -> RenderableType:
    """A heading, and sentences with their words."""
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(style="quiet", min_width=10, no_wrap=True)
    table.add_column(overflow="fold")
    commands = []
    for word, sentence in lines:
        if word == PROVE:  # a command that is broken into lines does not run
            commands.append(Text(f"  {word} {sentence}", no_wrap=True, overflow="ignore"))
        else:
            table.add_row(f"  {word}", sentence)
    step = runs[0].steps[index]
    profiles = [run.profile for run in runs]
    names = ", ".join([profiles[0], *map(short_profile, profiles[1:])])
    words, style = HEADINGS[step.finding.fate]
    text = Text(f"{names}, step {step.name}: ", style="name")
    return Group(text.append(words.format(step=step), style=style), table, *commands)


def step_lines(run: Run, index: int, proof: Proof) -> list[Line]:
    """The facts of a step, and the evidence of a wrong answer."""
    step = run.steps[index]
    lines = [(fact.word, fact.sentence) for fact in step.statements]
    return [*lines, *(proof(run, index) if step.answer == "diverged" else ())]


def unproven(_: Run, __: int) -> list[Line]:
    """No proof: no real engine was run."""
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
    engines = dict.fromkeys(run.profile.partition("@")[0] for run in runs)
    facts = [" and ".join(engines), scenario.model_names, runs[0].arithmetic]
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
    """A paragraph for each step that was wrong or lost tokens.

    Profiles with equal lines share one.
    """
    for index in range(len(runs[0].steps)):
        lines_of: dict[tuple[Line, ...], list[Run]] = {}
        for run in runs:
            step = run.steps[index]
            if is_of_interest(step):
                lines_of.setdefault(tuple(step_lines(run, index, proof)), []).append(run)
        for lines, alike in lines_of.items():
            yield Text()
            yield paragraph(alike, index, lines)


def is_of_interest(step: Step) -> bool:
    """True for every step with an unexpected result."""
    return step.finding.fate != "right"
