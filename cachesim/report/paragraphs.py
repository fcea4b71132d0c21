"""One step in words: its heading, and the statements that the run itself brings."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cachesim.engines.family import FAMILIES
from cachesim.engines.profile import Profile
from cachesim.report.cells import short_profile
from cachesim.scenario.result import Fate, Run, Step

Line: TypeAlias = tuple[str, str]
"""A word, and the sentence that it stands before."""

HEADINGS: Final[dict[Fate, tuple[str, str]]] = {
    "wrong": ("the answer is WRONG, the reuse unsound", "wrong"),
    "by-design": ("the answer differs, by design of the server", "lost"),
    "aborted": ("the server process ENDS", "wrong"),
    "hung": ("the server HANGS, no request is answered", "wrong"),
    "refused": ("refused, {step.error}", "wrong"),
    "failed": ("{step.do} failed, {step.error}", "wrong"),
    "not-run": ("not run, {step.message}", "wrong"),
    "lost": ("{step.cached} of {step.prompt_tokens} tokens reused", "lost"),
    "right": ("{step.cached} of {step.prompt_tokens} tokens reused", "quiet"),
}


def paragraph(runs: Sequence[Run], index: int, lines: Sequence[Line]) -> RenderableType:
    """A heading, and sentences with a word in front of each."""
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(style="quiet", min_width=10, no_wrap=True)
    table.add_column(overflow="fold")
    for word, sentence in lines:
        table.add_row(f"  {word}", sentence)
    return Group(_heading(runs, index), table)


def _heading(runs: Sequence[Run], index: int) -> Text:
    step = runs[0].steps[index]
    profiles = [run.profile for run in runs]
    names = ", ".join([profiles[0], *map(short_profile, profiles[1:])])
    words, style = HEADINGS[step.finding.fate]
    text = Text(f"{names}, step {step.name}: ", style="name")
    return text.append(words.format(step=step), style=style)


def step_lines(run: Run, step: Step, *, source: str) -> list[Line]:
    """Everything worth saying of one step, and how to prove a wrong answer on a real server."""
    lines = [(fact.word, fact.sentence) for fact in step.facts]
    if step.answer == "diverged" and source and _is_provable(run.profile):
        engine = run.profile.partition("@")[0]
        lines.append(("prove it", f"cachesim real {engine} --scenario {source}"))
    return lines


def _is_provable(text: str) -> bool:
    """Whether `cachesim real` plays scenarios on a profile: a release with a package, unpatched."""
    profile = Profile.parse(text)
    family = FAMILIES.get(profile.engine)
    return family is not None and not profile.patches and profile.release in family.real()
