"""`cachesim bisect`: the first bad and the first good release, and the change between them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter
from rich.console import RenderableType
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.inputs import UNSAID, ServerFlags
from cachesim.cli.jobs import changed, only_scenario
from cachesim.cli.options import JudgingArithmetic, Page, Seed, Settings, TextOrJson
from cachesim.cli.outputs import page_at, print_report, tracked, write_page
from cachesim.engines.family import Family, family_of
from cachesim.errors import InputError, ScenarioError
from cachesim.play.bisect import Cause, Play, ReleaseVerdict, TurningPoint, judge, simulated, turns
from cachesim.report.document import FittingTable
from cachesim.report.tables import count
from cachesim.scenario.checks import misfits
from cachesim.scenario.format import Scenario
from cachesim.why.explain.whole import UserSettings, open_log, read_files, replays_of
from cachesim.why.extract import worst_scenario
from cachesim.why.read.dump import is_dump

WIDEST: Final = 34
"""Most columns of cached counts; of longer scenarios the last steps are shown."""


def bisect_command(
    name: Annotated[str, Parameter(help="A scenario, or a server's log.")],
    *,
    arithmetic: JudgingArithmetic = "ring",
    real: Annotated[
        bool, Parameter(help="Run the real servers, each from its release's wheel.")
    ] = False,
    server: ServerFlags = UNSAID,
    settings: Settings = None,
    seed: Seed = None,
    format: TextOrJson = "text",
    report: Page = None,
) -> int:
    """Find the release that broke or fixed a scenario or a log.

    Runs the scenario, or a log's worst miss, on every release. --profile, --model and --window are
    for logs, --seed for scenarios. The exit status is 1 if a release is bad.

    Example: cachesim bisect llama.cpp-24411-first-turn-again
    """
    page = page_at(report)
    scenario = _scenario(name, server.wanted(settings), seed)
    family = family_of(scenario.engine.name)
    play = _play(scenario, arithmetic, real=real)
    releases = family.real() if real else family.names()
    if settings:
        problems = [misfits(scenario, [release]) for release in releases]
        if all(problems):
            raise ScenarioError(*problems[-1])
    judged = judge(
        [play(release) for release in tracked(releases, len(releases), name, "releases")]
    )
    where = "the real servers" if real else "the simulator"
    found = list(turns(scenario, judged, simulated(scenario, arithmetic)))
    table = FittingTable(padding=(0, 1, 0, 0))
    table.add_column("release", no_wrap=True)
    table.add_column("date", no_wrap=True)
    table.add_column("cached, step by step", max_width=WIDEST, overflow="fold")
    table.add_column("")
    table.add_column("", overflow="fold")
    for verdict in judged:
        release = verdict.played.profile
        style = "wrong" if verdict.state == "bad" else ""
        cached = " ".join(count(step.cached) for step in verdict.played.steps)
        state = Text(
            verdict.state.upper() if verdict.state == "bad" else verdict.state, style=style
        )
        why = f"{verdict.step}: {verdict.why}" if verdict.step else verdict.why
        why += f" ({verdict.evidence})" if verdict.evidence else ""
        table.add_row(release, family.release(release).date, cached, state, why)
    parts: list[RenderableType] = [
        Text(f"{scenario.name} on {where}"),
        table,
        *map(Text, _notes(family, judged, found)),
    ]
    print_report(parts, _as_json(scenario.name, where, judged, found), format=format)
    write_page(page, f"cachesim bisect {name}", parts)
    return NOT_AS_EXPECTED if any(verdict.state == "bad" for verdict in judged) else AS_EXPECTED


def _as_json(
    name: str, where: str, judged: Sequence[ReleaseVerdict], found: Sequence[TurningPoint]
) -> dict[str, Any]:
    """The verdict on each release with its steps, and the changes between unlike neighbours."""
    releases = [
        {
            "release": verdict.played.profile,
            "state": verdict.state if verdict.state != "-" else None,
            "step": verdict.step,
            "why": verdict.why,
            "evidence": verdict.evidence,
            "steps": [asdict(step) for step in verdict.played.steps],
        }
        for verdict in judged
    ]
    changes = [asdict(point) for point in found]
    return {"format": 1, "scenario": name, "on": where, "releases": releases, "changes": changes}


def _scenario(name: str, wanted: UserSettings, seed: int | None) -> Scenario:
    """The scenario of a name, or the worst miss of a server's log."""
    path = Path(name)
    if path.suffix != ".toml" and path.is_file():
        if seed is not None:
            raise InputError(f"{name}: --seed is for scenarios; a log has its own requests")
        _, file = open_log(name)
        with file:
            if is_dump(file.read(1 << 16)):
                msg = f"{name}: recorded requests say nothing of the server; bisect takes its log"
                raise InputError(msg)
            file.seek(0)
            worst = worst_scenario(replays_of(read_files([(name, file)]), wanted))
            server = worst.engine
            family, (release, *_) = family_of(server.name), server.profiles
            options = {
                name: value
                for name, value in server.options.items()
                if name in wanted.options or family.default(family.option(name), release) != value
            }
            return replace(worst, engine=replace(server, options=options))
    if wanted.profile or wanted.model or wanted.window:
        msg = f"{name}: --profile, --model and --window are for logs; a scenario has its own"
        raise InputError(msg)
    return changed(only_scenario(name, "bisect"), seed, wanted.options)


def _play(scenario: Scenario, arithmetic: Literal["ring", "float"], *, real: bool) -> Play:
    if not real:
        return simulated(scenario, arithmetic)
    from cachesim.prove.llama_cpp.scenarios import on_the_wheels

    return on_the_wheels(scenario)


def _notes(
    family: Family[Any, Any], judged: Sequence[ReleaseVerdict], found: Sequence[TurningPoint]
) -> Iterator[str]:
    states = {verdict.state for verdict in judged} - {"-"}
    if not found:
        alike = "no step reuses less than half of what another release reuses there"
        yield f"every release is {states.pop()}: {alike}" if states else "no release can run it"
        return
    for turn in found:
        date = family.release(turn.after).date
        when = f" ({date})" if date else ""
        first = f"first {turn.became} release"
        if turn.was == turn.became:
            first = f"first release that is {turn.became} in another way"
        yield f"{first}: {turn.after}{when}, after {turn.before}"
        for cause in turn.causes:
            yield f"  {_name(family, cause)}"
            yield f"    {_evidence(cause, turn)}"
        if not turn.causes:
            landed = ", ".join(turn.landed) or "none that is known"
            yield f"  no single change turns one into the other; between them landed: {landed}"


def _name(family: Family[Any, Any], cause: Cause) -> str:
    """The pull request with its summary, or the flag whose default changed."""
    if cause.flag:
        flag = f"--{cause.flag.replace('_', '-')}"
        return f"{flag} is {cause.values[1]} unless it is given; it was {cause.values[0]}"
    patch = family.patch(cause.patch)
    return f"{family.upstream_of(patch) or patch.name}: {patch.about}"


def _evidence(cause: Cause, turn: TurningPoint) -> str:
    shown = []
    forth, back = f"+{cause.patch}", f"-{cause.patch}"
    if cause.flag:
        forth, back = (f" with {value}" for value in reversed(cause.values))
    if cause.laid:
        shown.append(f"{turn.before}{forth} is like {turn.after}")
    if cause.taken_back:
        shown.append(f"{turn.after}{back} is like {turn.before}")
    return ", ".join(shown)
