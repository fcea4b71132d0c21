"""What a search has found, for the terminal, a page and JSON."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.plan import WORDS, Plan
from cachesim.engines.family import Profile
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.files import free_name
from cachesim.play.findings import play
from cachesim.prove.command import proof_command
from cachesim.prove.hunt.loop import ProvenFinding
from cachesim.prove.hunt.proof import prover_of
from cachesim.report.consoles import results, show
from cachesim.report.document import FittingTable
from cachesim.scenario.files import to_toml
from cachesim.scenario.format import Scenario
from cachesim.scenario.labels import confirmed_on, label_of_release, rules_of
from cachesim.suites import Case, Failure, Suite
from cachesim.testing.baseline import Searched
from cachesim.testing.facts import with_texts
from cachesim.testing.scope import WholeScope, described
from cachesim.testing.search import (
    Comparison,
    Counterexample,
    Report,
)
from cachesim.testing.story import story
from cachesim.testing.survey import (
    Cause,
    Survey,
)
from cachesim.typed import Json

NOTHING_RUN: Final = "the time was over before a workload ended, so nothing was checked"
"""Printed instead of a result; the exit status is that of a failed check."""

SEARCH: Final = "search"
"""The case that a search is in a report of tests, whatever it finds."""

LISTED: Final = 3
"""Names of known scenarios that are printed."""


def print_search(report: Report, plan: Plan, scope: WholeScope | None = None) -> int:
    """Print exercised features and findings; return the exit status."""
    lines = _played(report, scope)
    found = []
    if report.counterexample is not None:
        shown = report.counterexample
        lines += story(shown, report.profile)
        lines += _evidence(report.profile)
        lines += _emitted(shown, report.profile, plan.emit)
        lines += _exported(shown, report.profile, plan.export)
        found.append(_told(shown, report.profile))
    elif scope is None and report.workloads:
        lines.append("  nothing wrong was found")
    return _print_report(lines, report, plan, scope, found, failed=bool(found))


def print_survey(
    found: Survey,
    smallest: Mapping[Cause, Counterexample],
    plan: Plan,
    scope: WholeScope | None,
    *,
    proven: Mapping[Cause, ProvenFinding],
    reports: Mapping[Cause, Path],
    known: Collection[Cause] = (),
) -> int:
    """Print each cause with its count, its smallest workload, and the real engine's answer."""
    report, nothing = found.report, {"lost": "lost", "leak": "leaked"}.get(plan.find, "wrong")
    lines = _played(report, scope)
    plan.collected.searched.append(
        Searched(profile=str(report.profile), model=report.model, causes=(*smallest, *known))
    )
    new = {cause: shown for cause, shown in smallest.items() if cause not in known}
    if report.workloads:
        lines.append(f"  {_summary(len(new), plan, nothing)}")
    told, cases = [], [Case(name=SEARCH)]
    for number, (cause, shown) in enumerate(new.items(), 1):
        count = found.counts[cause]
        lines.append(f"  {number}. {cause} ({_often(count)})")
        lines += [f"    name: {cause.name}"] if plan.grouped else []
        scenario = shown.scenario
        one = replace(shown, scenario=replace(scenario, name=f"{scenario.name}-{number}"))
        lines += [f"  {line}" for line in story(one, report.profile)]
        data = _told(one, report.profile)
        data |= {"cause": str(cause), "name": cause.name, "workloads": count}
        if (finding := proven.get(cause)) is not None:
            where, proof = prover_of(report.profile, ()).where, finding.result
            lines += [f"    on {where}: {proof.seen}", f"    evidence: {proof.evidence}"]
            lines += [f"    known as: {finding.known}"] if finding.known else []
            data |= {"evidence": proof.evidence, "proof": proof.seen}
        elif plan.find != "lost":
            lines += [f"  {line}" for line in _evidence(report.profile)]
        if (path := reports.get(cause)) is not None:
            lines.append(f"    report: {path}")
        else:
            lines += [f"  {line}" for line in _emitted(one, report.profile, plan.emit)]
        lines += [f"  {line}" for line in _exported(one, report.profile, plan.export)]
        told.append(data)
        evidence = "\n".join((str(cause), *(line.strip() for line in story(one, report.profile))))
        failure = Failure(sentence=f"{cause}: {shown.finding.detail}", evidence=evidence)
        cases.append(Case(name=cause.name, failures=(failure,), file=reports.get(cause)))
    for cause in sorted(known):
        often = _often(found.counts[cause])
        lines.append(f"  known: {cause} ({often}), {cause.name}")
        failure = Failure(sentence=str(cause), evidence=f"known: {cause} ({often})")
        cases.append(Case(name=cause.name, failures=(failure,), known=True))
    confirmed = any(finding.result.confirmed for finding in proven.values())
    failed = (
        confirmed if plan.hunts else bool(told) and (plan.baseline is not None or not plan.saves)
    )
    status = _print_report(lines, report, plan, scope, told, failed=failed, known=known)
    if status != AS_EXPECTED and not failed:  # nothing ran, or not what was required
        short = Failure(sentence=lines[-1].strip(), evidence="\n".join(lines))
        cases[0] = replace(cases[0], failures=(short,))
    name = f"{report.profile}, {report.model}"
    suite = Suite(name=name, model=report.model, cases=tuple(cases), seconds=report.seconds)
    plan.collected.suites.append(suite)
    return status


def known_of(profiles: Sequence[Profile]) -> Iterator[str]:
    """What is known of releases before anything is searched: what was confirmed on the real one."""
    for profile in dict.fromkeys(replace(profile, patches=()) for profile in profiles):
        named = confirmed_on(profile)
        if named:
            more = f" and {len(named) - LISTED} more" if len(named) > LISTED else ""
            yield (
                f"known of {profile}: {counted(len(named), 'shipped scenario')} with a wrong answer"
                f" or a crash on the real engine: {', '.join(named[:LISTED])}{more}"
            )


def _summary(new: int, plan: Plan, nothing: str) -> str:
    if plan.baseline is not None:
        return f"{counted(new, 'new cause')}" if new else f"nothing new is {nothing}"
    if new:
        return f"{new} distinct causes" if new != 1 else "one cause"
    return f"nothing {nothing} was found"


def _often(count: int) -> str:
    return f"{count} workloads" if count != 1 else "one workload"


def _played(report: Report, scope: WholeScope | None) -> list[str]:
    count = f"{counted(report.workloads, 'workload')}, {counted(report.requests, 'request')}"
    if report.rate:  # not known where the first report has the finding
        count += f", {report.rate:,.{0 if report.rate >= 10 else 1}f} workloads/s"
    exercised = [f"{word} {n}" for word in WORDS if (n := report.exercised[word])]
    lines = [
        f"{report.profile}, {report.model}: {count}",
        f"  exercised: {', '.join(exercised) or 'nothing'}",
    ]
    lines += [f"  {told}"] if (told := rules_of(report.profile.engine)) else []
    never = [word for word in WORDS if not report.exercised[word]]
    lines += [f"  never exercised: {', '.join(never)}"] if never else []
    if scope is not None:
        lines += [f"  {server}" for server in map(described, scope.servers)]
        lines.append(f"  {scope.statement(report)}; {report.seconds:.1f} s")
    return lines


def _told(found: Counterexample, profile: Profile) -> dict[str, Json]:
    finding = found.finding
    return {
        "kind": finding.kind,
        "workload": found.number,
        "step": finding.step,
        "detail": finding.detail,
        "evidence": label_of_release(profile),
        "scenario": to_toml(found.scenario),
    }


def _print_report(
    lines: list[str],
    report: Report,
    plan: Plan,
    scope: WholeScope | None,
    findings: Sequence[Json],
    *,
    failed: bool,
    known: Collection[Cause] = (),
) -> int:
    status = AS_EXPECTED if report.workloads and not failed else NOT_AS_EXPECTED
    lines += [] if report.workloads or findings else [f"  {NOTHING_RUN}"]
    missing = sorted(word for word in plan.require if not report.exercised[word])
    if missing:
        lines.append(f"  NOT EXERCISED, though required: {', '.join(missing)}")
        status = NOT_AS_EXPECTED
    if plan.told is None:
        print_parts(plan.printed, *map(_line, lines))
        return status
    plan.printed.extend(map(_line, lines))
    plan.told.append(
        {
            "profile": str(report.profile),
            "model": report.model,
            "workloads": report.workloads,
            "requests": report.requests,
            "seconds": round(report.seconds, 3),
            "exercised": {word: report.exercised[word] for word in WORDS},
            "not_exercised": missing,
            "failed": dict(report.failed),
            "scope": None if scope is None else scope.as_json(report),
            "findings": list(findings),
            "known": {cause.name: str(cause) for cause in sorted(known)},
        }
    )
    return status


def _line(line: str) -> RenderableType:
    """A line; a command that is broken into lines does not run."""
    if ": cachesim " in line:  # in a group: texts in a row would be joined
        return Group(Text(line, no_wrap=True, overflow="ignore"))
    return Text(line)


def print_parts(printed: list[RenderableType], *parts: RenderableType) -> None:
    """Print parts, and keep them for the page."""
    show(results(), *parts)
    printed += parts


def print_opening(plan: Plan) -> None:
    """Print what is known, before the first result: a command that is refused prints nothing."""
    if plan.opening:  # JSON and XML have none, not even an empty line
        print_parts(plan.printed, *plan.opening)
        plan.opening.clear()


def _evidence(profile: Profile) -> list[str]:
    label = label_of_release(profile)
    return [f"  evidence: {label}"] if label else []


def _emitted(found: Counterexample, profile: Profile, folder: Path | None) -> list[str]:
    if folder is None:
        return ["  --emit DIR writes it as a scenario for `cachesim run`"]
    path = folder / f"{str(profile).replace('@', '-')}-{found.scenario.name}.toml"
    scenario = _leak_with_texts(found, profile)
    text = to_toml(scenario)
    try:
        if not path.is_file() or path.read_text(encoding="utf-8") != text:  # of an earlier run
            path = free_name(path)
            path.write_text(text, encoding="utf-8")
    except OSError as error:  # the finding is worth more than the file
        return [f"  {path}: cannot be written: {error.strerror or error}; it reads", text]
    again = shlex.join(["cachesim", "run", str(path), "--arithmetic", found.arithmetic])
    lines = [f"  to run it again: {again}"]
    command = proof_command(scenario, profile, path)
    return [*lines, f"  on the real server: {command}"] if command else lines


def _exported(found: Counterexample, profile: Profile, folder: Path | None) -> list[str]:
    if folder is None:
        return []
    from cachesim.export.forms import written_finding

    scenario = found.scenario
    return list(written_finding(scenario, scenario.step_names[found.finding.step], profile, folder))


def _leak_with_texts(found: Counterexample, profile: Profile) -> Scenario:
    """The scenario of a leak as texts, if it leaks with generated replies too."""
    if found.finding.kind == "leak":
        scenario = with_texts(found.scenario)
        try:
            trial = play(scenario, profile, arithmetic=found.arithmetic, only="leak")
        except InputError:  # of a token that is no word
            return found.scenario
        if trial.finding is not None:
            return scenario
    return found.scenario


def print_comparison(found: Comparison, printed: list[RenderableType]) -> int:
    """Print which profile reuses more and which answers wrong; return the exit status."""
    if not found.workloads:
        msg = f"no workload could be run on both {found.one.profile} and {found.other.profile}"
        raise InputError(msg)
    counts = {"workload": found.workloads, "request": found.requests, "token": found.prompt_tokens}
    title = ", ".join(counted(number, noun) for noun, number in counts.items())
    table = FittingTable(title=title, title_style="", box=None)
    for head in ("profile", "cached", "of all", "reuses more", "wrong", "crashes"):
        table.add_column(head, justify="left" if head == "profile" else "right")
    for side in (found.one, found.other):
        share = f"{100 * side.cached / max(1, found.prompt_tokens):.1f} %"
        numbers = (side.cached, share, side.more, side.wrong, side.crashed)
        table.add_row(str(side.profile), *map(str, numbers))
    evidence = (
        f"{side.profile}, {line.strip()}"
        for side in (found.one, found.other)
        if side.wrong or side.crashed
        for line in _evidence(side.profile)
    )
    print_parts(printed, table, *map(Text, (*found.verdict, *evidence)))
    return AS_EXPECTED


def compared_json(found: Comparison) -> dict[str, Json]:
    """A comparison's totals."""
    return {
        "workloads": found.workloads,
        "requests": found.requests,
        "prompt_tokens": found.prompt_tokens,
        "profiles": {
            str(side.profile): {
                "cached": side.cached,
                "reuses_more": side.more,
                "wrong": side.wrong,
                "crashes": side.crashed,
            }
            for side in (found.one, found.other)
        },
    }
