"""What is said of a search, and of two profiles on the same workloads."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.check.plan import WORDS, Plan
from cachesim.engines.profile import Profile
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.files import free_name
from cachesim.real.hunt.proof import proof_command
from cachesim.report.consoles import results, show
from cachesim.report.document import FittingTable
from cachesim.scenario.format import Scenario
from cachesim.scenario.labels import label_of_release
from cachesim.scenario.writing import to_toml
from cachesim.testing.against import Comparison, Side
from cachesim.testing.search import Counterexample, Report
from cachesim.testing.story import story
from cachesim.testing.survey import Cause, Survey


def tell_search(report: Report, plan: Plan) -> int:
    """Say what was exercised and what was found; the exit status."""
    lines = _played(report)
    status = AS_EXPECTED
    if report.counterexample is None:
        lines.append("  nothing wrong was found")
    else:
        lines += story(report.counterexample, report.profile)
        lines += _evidence(report.profile)
        lines += _emitted(report.counterexample, report.profile, plan.emit)
        status = NOT_AS_EXPECTED
    return _told(lines, report, plan, status)


def tell_survey(found: Survey, smallest: Mapping[Cause, Counterexample], plan: Plan) -> int:
    """Say every cause that was found, how often, and the smallest workload that shows it."""
    report, nothing = found.report, "lost" if plan.find == "lost" else "wrong"
    lines = _played(report)
    causes = f"{len(smallest)} distinct causes" if len(smallest) != 1 else "one cause"
    lines.append(f"  {causes}" if smallest else f"  nothing {nothing} was found")
    for number, (cause, shown) in enumerate(smallest.items(), 1):
        count = found.counts[cause]
        often = f"{count} workloads" if count != 1 else "one workload"
        lines.append(f"  {number}. {cause} ({often})")
        one = replace(shown, scenario=_renamed(shown.scenario, number))
        lines += [f"  {line}" for line in story(one, report.profile)]
        if plan.find != "lost":
            lines += [f"  {line}" for line in _evidence(report.profile)]
        lines += [f"  {line}" for line in _emitted(one, report.profile, plan.emit)]
    return _told(lines, report, plan, NOT_AS_EXPECTED if smallest else AS_EXPECTED)


def _renamed(scenario: Scenario, number: int) -> Scenario:
    """Two causes may come from one workload: each file has a name of its own."""
    return replace(scenario, name=f"{scenario.name}-{number}")


def _played(report: Report) -> list[str]:
    count = f"{counted(report.workloads, 'workload')}, {counted(report.requests, 'request')}"
    lines = [
        f"{report.profile}, {report.model}: {count}, {report.rate:.0f} workloads/s",
        f"  exercised: {_exercised(report.exercised)}",
    ]
    never = [word for word in WORDS if not report.exercised[word]]
    return [*lines, f"  never exercised: {', '.join(never)}"] if never else lines


def _told(lines: list[str], report: Report, plan: Plan, status: int) -> int:
    missing = sorted(word for word in plan.require if not report.exercised[word])
    if missing:
        lines.append(f"  NOT EXERCISED, though required: {', '.join(missing)}")
        status = NOT_AS_EXPECTED
    show(results(), *lines)
    return status


def _exercised(counts: Counter[str]) -> str:
    said = [f"{word} {counts[word]}" for word in WORDS if counts[word]]
    return ", ".join(said) or "nothing"


def _evidence(profile: Profile) -> list[str]:
    label = label_of_release(profile)
    return [f"  evidence: {label}"] if label else []


def _emitted(found: Counterexample, profile: Profile, folder: Path | None) -> list[str]:
    if folder is None:
        return ["  --emit DIR writes it as a scenario that `cachesim run` plays"]
    path = free_name(folder / f"{str(profile).replace('@', '-')}-{found.scenario.name}.toml")
    text = to_toml(found.scenario)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:  # the finding is worth more than the file
        return [f"  {path}: cannot be written: {error.strerror or error}; it reads", text]
    lines = [f"  to play it again: cachesim run {path} --arithmetic {found.arithmetic}"]
    command = proof_command(found.scenario, profile, path)
    return [*lines, f"  on the real server: {command}"] if command else lines


def tell_comparison(found: Comparison) -> int:
    """Say who reuses more and who answers wrong; the exit status."""
    if not found.workloads:
        msg = f"no workload could be played on both {found.one.profile} and {found.other.profile}"
        raise InputError(msg)
    show(results(), _table(found), *found.verdict, *_evidence_of_sides(found))
    return NOT_AS_EXPECTED if found.other.wrong or found.other.crashed else AS_EXPECTED


def _evidence_of_sides(found: Comparison) -> Iterator[str]:
    for side in (found.one, found.other):
        if side.wrong or side.crashed:
            yield from (f"{side.profile}, {line.strip()}" for line in _evidence(side.profile))


def _table(found: Comparison) -> Table:
    counts = {
        "workload": found.workloads,
        "request": found.requests,
        "token": found.prompt_tokens,
    }
    title = ", ".join(counted(number, noun) for noun, number in counts.items())
    table = FittingTable(title=title, title_style="", box=None)
    for head in ("profile", "cached", "of all", "reuses more", "wrong", "crashes"):
        table.add_column(head, justify="left" if head == "profile" else "right")
    for side in (found.one, found.other):
        table.add_row(*_row(side, found))
    return table


def _row(side: Side, found: Comparison) -> tuple[str, ...]:
    share = 100 * side.cached / max(1, found.prompt_tokens)
    return (
        str(side.profile),
        str(side.cached),
        f"{share:.1f} %",
        str(side.more),
        str(side.wrong),
        str(side.crashed),
    )
