"""Tables of runs: one scenario with its profiles side by side, or a line for each of many; and the
report of one scenario: its summary, the table, and a paragraph for each relevant step.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import indent
from typing import Final, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cachesim.engines.words import counted
from cachesim.play.result import Fate, Run, Step
from cachesim.play.statements import machine_statement
from cachesim.report.document import FittingTable, facts
from cachesim.scenario.format import Scenario
from cachesim.scenario.labels import LABELS, Evidence, rules_of, weakest
from cachesim.verify.verdict import SHOWN

STYLE: Final = {"same": "right", "rounding": "right", "by-design": "lost", "diverged": "wrong"}
WORST_FIRST: Final = ("diverged", "by-design", "rounding", "same", None)


def answer_text(answer: str | None) -> Text:
    """The verdict on an answer; a wrong one in capitals, readable without colour."""
    if answer is None:
        return Text("not judged", style="quiet")
    return Text(SHOWN.get(answer, answer), style=STYLE.get(answer, ""))


def count(value: int | None) -> str:
    """A number of tokens, or a dash where there is none."""
    return "-" if value is None else str(value)


def shortened(error: str, most: int = 13) -> str:
    """A server's refusal, shortened to a cell's width."""
    return error if len(error) <= most else f"{error[: most - 1]}…"


def step_cell(step: Step) -> Text:
    """Cell of a step: cached tokens, the answer, lost tokens."""
    if step.error is not None:
        return Text(f"{'-':>6} ") + Text(shortened(step.error), style="wrong")
    if step.do != "complete":
        return Text(f"{'-':>6} ") + Text("done", style="quiet")
    if step.cached is None:
        return Text(f"{'-':>6} ") + Text("cancelled", style="quiet")
    cell = Text(f"{step.cached:>6} ") + answer_text(step.answer)
    if step.reuse == "lost":
        cell.pad_right(max(0, 15 - cell.cell_len))
        cell.append(f"{step.missed:>5}", style="lost")
    return cell


def worst_answer(steps: Sequence[Step]) -> str | None:
    """The worst answer of a run."""
    found = {step.answer for step in steps}
    return next((answer for answer in WORST_FIRST if answer in found), None)


def short_profile(profile: str) -> str:
    """A profile without its engine."""
    return profile.partition("@")[2] or profile


def cached_row(steps: Sequence[Step]) -> str:
    """The cached tokens of every step."""
    return " ".join(count(step.cached) for step in steps)


CELL_HEADING: Final = "cached answer   lost"
"""Heading of the cells of `step_cell`."""

PROFILE: Final = 34
"""Columns of a profile in the summary."""

CELL: Final = len(CELL_HEADING) + 2
"""Columns of one profile."""


def side_by_side(runs: Sequence[Run], *, width: int = 80) -> RenderableType:
    """A scenario: a row per step, a column per profile, split into tables by width."""
    names = max(len(step.name) for step in runs[0].steps)
    prompts = max(len(_prompt(step)) for step in runs[0].steps)
    per_table = max(1, (width - max(7, names) - max(6, prompts) - 4) // CELL)
    parts = [runs[start : start + per_table] for start in range(0, len(runs), per_table)]
    return Group(*(_side_by_side(part) for part in parts))


def _side_by_side(runs: Sequence[Run]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("request", no_wrap=True)
    table.add_column("prompt", justify="right", no_wrap=True)
    for run in runs:
        heading = f"{broken(short_profile(run.profile), CELL - 2)}\n{CELL_HEADING}"
        table.add_column(heading, min_width=CELL - 2, no_wrap=True, vertical="bottom")
    for index, step in enumerate(runs[0].steps):
        cells = (step_cell(run.steps[index]) for run in runs)
        table.add_row(step.name, _prompt(step), *cells)
    return table


def _prompt(step: Step) -> str:
    """The prompt's tokens; a step that was not run has no count of them."""
    if step.do != "complete":
        return step.do
    return count(step.prompt_tokens)


def summary(runs: Sequence[Run]) -> RenderableType:
    """A line per scenario and profile, under the name of the scenario."""
    head = _row()
    head.add_row("  profile", "cached, by request", "answer", "expected")
    lines: list[RenderableType] = [head]
    before = ""
    for run in runs:
        if run.scenario != before:
            lines.append(Text(run.scenario, style="name", overflow="fold"))
        before = run.scenario
        mark = Text("yes", style="right") if run.as_expected else Text("NO", style="wrong")
        row = _row()
        answer = answer_text(worst_answer(run.steps))
        profile = indent(broken(run.profile, PROFILE - 2), "  ")
        row.add_row(profile, cached_row(run.steps), answer, mark)
        lines.append(row)
    return Group(*lines)


def by_class(runs: Sequence[Run], kinds: Mapping[str, str | None]) -> RenderableType:
    """A line per engine and class of defect."""
    table = FittingTable(padding=(0, 1, 0, 0))
    table.add_column("engine", no_wrap=True)
    table.add_column("class", no_wrap=True)
    for heading in ("scenarios", "runs", "as expected", "wrong answers"):
        table.add_column(heading, justify="right", no_wrap=True)
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        engine = run.profile.partition("@")[0]
        groups[engine, kinds.get(run.scenario) or "none"].append(run)
    before, judged = "", _are_judged(runs)
    for (engine, kind), members in sorted(groups.items()):
        expected = sum(run.as_expected for run in members)
        wrong = sum(worst_answer(run.steps) == "diverged" for run in members)
        table.add_row(
            engine if engine != before else "",
            kind,
            str(len({run.scenario for run in members})),
            str(len(members)),
            Text(str(expected), style="right" if expected == len(members) else "wrong"),
            (str(wrong) if wrong else "") if judged else answer_text(None),
        )
        before = engine
    return table


def by_evidence(runs: Sequence[Run]) -> RenderableType:
    """A line per engine: runs with wrong answers or a crash, by evidence label."""
    table = FittingTable(padding=(0, 1, 0, 0))
    wrong = "wrong answers and " if _are_judged(runs) else ""
    table.add_column(f"{wrong}crashes", overflow="fold")
    for heading in LABELS:
        table.add_column(heading, justify="right", overflow="fold")
    counts: dict[str, Counter[Evidence]] = defaultdict(Counter)
    for run in runs:
        label = weakest(step.evidence for step in run.steps)
        if label is not None:
            counts[run.profile.partition("@")[0]][label] += 1
    for engine, found in sorted(counts.items()):
        table.add_row(engine, *(str(found[label]) for label in LABELS))
    total = sum(counts.values(), Counter[Evidence]())
    table.add_row("all", *(str(total[label]) for label in LABELS))
    return table


def _are_judged(runs: Sequence[Run]) -> bool:
    """False if no answer was compared: `--no-verify`, or no network."""
    return any(step.answer is not None for run in runs for step in run.steps)


def _row() -> Table:
    table = FittingTable.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(width=PROFILE, no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(width=10, no_wrap=True)
    table.add_column(width=8, no_wrap=True)
    return table


def broken(profile: str, width: int) -> str:
    """A profile in lines of a width, each patch and flag unbroken."""
    lines = [""]
    for part in re.split(r"(?=[+])|(?<=,)", profile):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def closing(runs: Sequence[Run]) -> Iterator[Text]:
    """The number of runs as expected, and each mismatch."""
    wrong = [run for run in runs if not run.as_expected]
    for run in wrong:
        for line in run.mismatches:
            yield Text(f"{run.scenario} on {run.profile}: {line}", style="wrong")
    diverged = [run for run in runs if worst_answer(run.steps) == "diverged"]
    text = f"{counted(len(runs), 'run')}, {len(runs) - len(wrong)} as expected"
    if diverged:
        known = sum(run.as_expected for run in diverged)
        expects = "its scenario expects" if known == 1 else "their scenario expects"
        part = "" if known == len(diverged) else f"{known} of these "
        text += f"; {counted(len(diverged), 'run')} with a wrong answer"
        text += f", {part}as {expects}" if known else ", which no scenario expects"
    yield Text(text)


Line: TypeAlias = tuple[str, str]
"""A word with its sentence."""

Proof: TypeAlias = Callable[[Run, int], list[Line]]
"""The command that reproduces a run's wrong answer on the real engine; may be empty."""

PROVE: Final = "prove it"
"""Label before a command."""

HEADINGS: Final[dict[Fate, tuple[str, str]]] = {
    "wrong": ("WRONG answer: more was reused than was valid", "wrong"),
    "by-design": ("the answer differs, by design of the server", "lost"),
    "aborted": ("the server CRASHES", "wrong"),
    "hung": ("the server HANGS and answers no request", "wrong"),
    "unanswered": ("NO REPLY to this request", "wrong"),
    "refused": ("refused, {step.error}", "wrong"),
    "failed": ("{step.do} failed, {step.error}", "wrong"),
    "not-run": ("not run, {step.message}", "wrong"),
    "lost": ("{step.cached} of {step.prompt_tokens} tokens cached", "lost"),
    "right": ("{step.cached} of {step.prompt_tokens} tokens cached", "quiet"),
}


def paragraph(runs: Sequence[Run], index: int, lines: Sequence[Line]) -> RenderableType:
    """A heading, and sentences with their words."""
    table, commands = facts(narrowest=10), []
    for word, sentence in lines:
        if word == PROVE:  # a command that is broken into lines does not run
            commands.append(Text(f"  {word} {sentence}", no_wrap=True, overflow="ignore"))
        else:
            table.add_row(f"  {word}", sentence)
    step = runs[0].steps[index]
    profiles = [run.profile for run in runs]
    names = ", ".join([profiles[0], *map(short_profile, profiles[1:])])
    words, style = HEADINGS[step.finding.fate]
    text = Text(f"{names}, request {step.name}: ", style="name")
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
        *(Text(told, style="quiet") for told in map(rules_of, engines) if told),
    ]
    if scenario.about:
        lines.append(Text(scenario.story))
    said = dict.fromkeys(machine_statement(scenario, run) for run in runs)
    lines += [Text(line, style="quiet") for line in said if line]
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
