"""`cachesim compare`: engines, releases or flags, on one scenario or on a trace."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from cyclopts import Parameter
from rich.console import RenderableType
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED, Format
from cachesim.cli.app import announce
from cachesim.cli.jobs import changed, jobs_for, only_scenario, only_source, setting
from cachesim.cli.options import AnyFormat, Jobs, Page, Seed, Settings
from cachesim.cli.outputs import output_at, page_at, print_report, tracked, write, write_page
from cachesim.cli.replay import WHOLE, TraceFlags, replay
from cachesim.cli.run import play, proof_of
from cachesim.engines.events import Event
from cachesim.engines.family import Profile
from cachesim.errors import InputError, ScenarioError
from cachesim.files import PLOT, Output
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.comparing import Row, compare, newest, policies, rows_in
from cachesim.play.result import Run, Step
from cachesim.play.statements import BESIDE, side_by_side
from cachesim.report.compared import comparison
from cachesim.report.compared import plot as picture_of
from cachesim.report.consoles import notes, results, show
from cachesim.report.document import FittingTable
from cachesim.report.story import MOST_CHECKPOINTS, event_lines
from cachesim.report.tables import broken, one_scenario
from cachesim.scenario import full_profile
from cachesim.scenario.checks import refused_profile
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import STDIN, shipped_under
from cachesim.verify.verdict import SHOWN

NEXT_FLAG: Final = re.compile(r",(?=\s*-*[A-Za-z][\w-]*\s*=)")
"""A comma before a flag's name; values may contain commas."""

MADE: Final = "made:"


Workload: TypeAlias = Annotated[
    str,
    Parameter(
        help="A scenario: a file, or the name of a shipped one. Or a trace: a file of JSON Lines, "
        "compressed or not, - for standard input, made:REQUESTS for a synthetic one, "
        "made:agents:REQUESTS for coding agents.",
        allow_leading_hyphen=True,
    ),
]
Sides: TypeAlias = Annotated[
    list[str] | None,
    Parameter(
        name=["--profile", "-p"],
        help="A release with its patches and flags, such as b9538+24143 or "
        "sglang@0.5.23,page_size=16; may be repeated. Two are compared step by step.",
    ),
]
Rows: TypeAlias = Annotated[
    str | None,
    Parameter(
        help="Instead of --profile. engines: each at its newest release; releases: all of them; "
        "policies: those for windows and recurrent states, with the flags that matter; or a file "
        "of rows. [default: engines, if neither --profile nor --row names any]"
    ),
]


def compare_command(
    workload: Workload,
    *,
    profile: Sides = None,
    rows: Rows = None,
    row: Annotated[
        list[str] | None,
        Parameter(help="A row in addition to --rows or --profile, written like --profile."),
    ] = None,
    settings: Settings = None,
    seed: Seed = None,
    arithmetic: Annotated[
        ArithmeticName,
        Parameter(
            help="float: a real network; ring: exact 64-bit integers (no rounding); counts: no "
            "answers, not judged, as always of a trace."
        ),
    ] = "ring",
    plot: Annotated[Path | None, Parameter(help="Write a picture of the table, as SVG.")] = None,
    trace: TraceFlags = WHOLE,
    jobs: Jobs = None,
    format: AnyFormat = "text",
    report: Page = None,
) -> int:
    """Compare engines, releases or flags on a scenario or trace.

    A scenario is run on all engines, or on the profiles that are named: tokens reused, lost by
    cause, wrong answers, bytes held. Of two profiles the first decision that differs is shown, and
    the exit status is 1 if anything differs.

    A trace has `input_length`, `output_length` and `hash_ids` in each line, as Mooncake and Bailian
    publish them. It is replayed in order; --turn keeps the arrival times. Limits in bytes, such as
    --cache-ram, need the bytes of a model: --sizes, --gguf or --token-bytes.

    Example: cachesim compare llama.cpp-24143-load-consumes-entry-hybrid -p b9538 -p b9538+24143
    """
    if plot is not None and plot.suffix not in {"", ".svg"}:
        raise InputError(f"--plot {plot}: the picture is SVG; write a name that ends in .svg")
    page, picture = page_at(report), output_at(plot, "--plot", PLOT)
    flags, wanted = dict(map(setting, settings or ())), list(map(row_of, profile or ()))
    if is_trace(workload):
        _refuse(
            f"{workload} is a trace",
            {"--rows": rows, "--row": row, "--plot": plot, "--seed": seed}
            | {"--arithmetic float": arithmetic == "float"},
        )
        return replay(
            workload,
            servers=wanted,
            flags=trace,
            settings=flags,
            jobs=jobs,
            format=format,
            page=page,
        )
    _refuse(f"{workload} is a scenario", dict.fromkeys(trace.given(), True))
    if len(wanted) == 2 and not (rows or row or plot):
        return diff(
            workload,
            [server.profile for server in wanted],
            [{**flags, **server.options} for server in wanted],
            seed=seed,
            arithmetic=arithmetic,
            format=format,
            page=page,
        )
    if wanted and rows:
        msg = "--rows and --profile: both name the rows; leave one out, or add with --row"
        raise InputError(msg)
    if flags and not wanted:
        msg = "--set is for the servers that --profile names; rows have flags of their own"
        raise InputError(msg)
    scenario = changed(only_scenario(workload, "compare"), seed, {})
    engine = scenario.engine.name
    chosen = [replace(one, options={**flags, **one.options}, as_written=True) for one in wanted]
    further = [*map(row_of, row or ())]
    if rows or not (chosen or further):
        chosen += rows_of(rows or "engines")
    chosen += further
    chosen = [replace(one, profile=str(full_profile(engine, one.profile))) for one in chosen]
    problems = [refused_profile(Profile.parse(server.profile)) for server in chosen]
    if any(problems):
        raise ScenarioError(*filter(None, problems))
    return _table(
        scenario, chosen, arithmetic=arithmetic, format=format, picture=picture, page=page
    )


def diff_command(
    one: str,
    other: str,
    name: str,
    *,
    seed: Seed = None,
    arithmetic: ArithmeticName = "float",
    set_one: list[str] | None = None,
    set_other: list[str] | None = None,
    report: Page = None,
) -> int:
    """Former name of `cachesim compare NAME -p ONE -p OTHER`.

    Example: cachesim compare llama.cpp-24143-load-consumes-entry-hybrid -p b9538 -p b9538+24143
    """
    sides = [(named, given or []) for named, given in ((one, set_one), (other, set_other))]
    announce(
        "diff",
        " -p ".join([f"compare {name}", *(",".join([named, *given]) for named, given in sides)]),
    )
    settings = [dict(map(setting, given)) for _, given in sides]
    return diff(
        name,
        [one, other],
        settings,
        seed=seed,
        arithmetic=arithmetic,
        format="text",
        page=page_at(report),
    )


def is_trace(name: str) -> bool:
    """True unless the name is that of a scenario: a TOML file, a folder, a shipped one."""
    if name in {"-", STDIN}:
        return not _begins_as_toml()
    path = Path(name)
    if name.startswith(MADE):
        return True
    if path.exists():
        return not any(path.rglob("*.toml")) if path.is_dir() else path.suffix != ".toml"
    packed = {".jsonl", ".json", ".gz", ".zst", ".bz2", ".xz"}
    return path.suffix in packed and shipped_under(name) is None


def _begins_as_toml() -> bool:
    stream = sys.stdin.buffer
    if hasattr(stream, "peek"):
        head = stream.peek(1)
    else:
        head = stream.read()
        stream.seek(0)
    table = rb"\[\[?\s*[\w\"'.-]+\s*\]"  # not `[0.0, [`, as a line of KV events begins
    return re.match(rb"\s*(#|%b|[\w\"'.-]+\s*=|$)" % table, head) is not None


def _refuse(what: str, others: Mapping[str, Any]) -> None:
    """Raise InputError for an option that does not apply to this workload."""
    for flag in (flag for flag, value in others.items() if value):
        raise InputError(f"{what}: {flag} is not for it; leave it out")


def _table(
    scenario: Scenario,
    rows: Sequence[Row],
    *,
    arithmetic: ArithmeticName,
    format: Format,
    picture: Output | None,
    page: Output | None,
) -> int:
    """Run the workload on every row; 1 if any answer was wrong, an error if no row was run."""
    found = list(
        compare(scenario, tracked(rows, len(rows), scenario.name, "rows"), arithmetic=arithmetic)
    )
    refused = [f"{compared.name}: {compared.problem}" for compared in found if compared.problem]
    if refused and len(refused) == len(found):
        raise ScenarioError(*refused)
    _tell_of_flags(scenario, rows)
    if picture is not None:
        write(picture, picture_of(scenario.name, found))
    parts = comparison(scenario.name, found)
    write_page(page, f"cachesim compare {scenario.name}", parts)
    entries = [compared.as_dict() for compared in found]
    if format == "jsonl":
        print_report((), entries, format=format)
    else:
        values = {"format": 1, "workload": scenario.name, "rows": entries}
        print_report(parts, values, format=format, indent=2)
    return NOT_AS_EXPECTED if any(compared.wrong for compared in found) else AS_EXPECTED


def _tell_of_flags(scenario: Scenario, rows: Sequence[Row]) -> None:
    """Say which rows are without the scenario's flags."""
    without = [row.name for row in rows if not row.keeps_flags(scenario)]
    if scenario.engine.options and without:
        flags, engine = ", ".join(scenario.engine.options), scenario.engine.name
        named = ", ".join(without[:3]) + (f" and {len(without) - 3} more" if without[3:] else "")
        line = f"the scenario's flags ({flags}) are {engine}'s: not set on {named}"
        show(notes(), Text(line))


def rows_of(rows: str) -> tuple[Row, ...]:
    """The rows of a shipped name or of a file."""
    if rows == "policies":
        return policies()
    if rows in {"engines", "releases"}:
        return newest(releases=rows == "releases")
    if "." not in rows and not Path(rows).exists():
        msg = f"--rows {rows}: write engines, releases, policies, or the name of a TOML file"
        raise InputError(msg)
    return rows_in(Path(rows))


def row_of(text: str) -> Row:
    """Read a row as users write it: `sglang@0.5.23,page_size=16`."""
    profile, *flags = NEXT_FLAG.split(text)
    return Row(name=text, profile=profile, options=dict(map(setting, flags)))


OUTCOME: Final = ("cached", "processed", "answer", "error", "generated", "checkpoints")

NEUTRAL: Final[dict[str, Any]] = {
    "task": -1,
    "size": 0,
    "size_companion": 0,
    "n_bytes": 0,
    "nbytes": 0,
    "limit": 0,
    "limit_size": 0,
    "limit_tokens": 0,
    "rule": "",
    "numbers": "",
    "threshold": 0,
    "thold": 0,
}
"""Fields that may differ between releases without a different decision."""


def diff(
    name: str,
    sides: Sequence[str],
    settings: Sequence[Mapping[str, Any]],
    *,
    seed: int | None,
    arithmetic: ArithmeticName,
    format: Format,
    page: Output | None,
) -> int:
    """Print the differences of both sides; 0 without any, else 1."""
    screen = results()
    servers = zip(sides, settings, strict=True)
    read = [only_source(name, "compare")]
    jobs = [job for side, flags in servers for job in jobs_for(read, [side], seed, flags)]
    runs = list(play(jobs, arithmetic, verify=True))
    if any(settings):
        runs = side_by_side([named(*side) for side in zip(runs, settings, strict=True)])
    whole = one_scenario(
        jobs[0].scenario, runs, width=screen.width, proof=partial(proof_of, jobs, runs)
    )
    pairs = enumerate(zip(*(run.steps for run in runs), strict=True))
    differing = [index for index, steps in pairs if any(_outcomes(*steps))]
    parts = [whole, *first_difference(runs, differing), *outcomes(runs, differing)]
    entries = [run.to_json() for run in runs]
    if format == "jsonl":
        print_report((), entries, format=format)
    else:
        names = [runs[0].steps[index].name for index in differing]
        print_report(parts, {"format": 1, "differing": names, "runs": entries}, format=format)
    write_page(page, f"cachesim compare {name}", parts)
    return NOT_AS_EXPECTED if differing else AS_EXPECTED


def named(run: Run, flags: Mapping[str, Any]) -> Run:
    """A run whose profile names the flags of its side, not yet compared."""
    profile = ",".join([run.profile, *(f"{key}={value}" for key, value in flags.items())])
    steps = tuple(
        replace(step, facts=tuple(fact for fact in step.facts if fact.word != BESIDE))
        for step in run.steps
    )
    return replace(run, profile=profile, steps=steps)


def first_difference(runs: Sequence[Run], differing: Sequence[int]) -> list[RenderableType]:
    """Number of differing steps, and the first differing decision."""
    steps = runs[0].steps
    if not differing:
        return [Text("no difference in any step")]
    first = steps[differing[0]].name
    lines: list[RenderableType] = [
        Text(f"{len(differing)} of {len(steps)} requests differ; the first is {first}")
    ]
    if len({run.profile.partition("@")[0] for run in runs}) > 1:
        return [*lines, Text("two engines have different events: only outcomes are compared")]
    difference = _first_difference(runs[0], runs[1])
    if difference is None:
        return [*lines, Text("every decision is the same")]
    step, events = difference
    where = Text(f"the first decision that differs is in request {step.name}:")
    lines.append(where)
    for run, event in zip(runs, events, strict=True):
        what = Text("    nothing of the kind") if event is None else event_lines([event])
        lines += [Text(f"  {run.profile}", style="quiet"), what]
    return lines


MOST_STEPS: Final = 8
"""Most steps whose outcomes are printed side by side."""

ANSWERS: Final = frozenset({"cached", "processed", "answer", "error", "generated"})
"""Outcomes that a client reads; the others are the server's state."""


def outcomes(runs: Sequence[Run], differing: Sequence[int]) -> Iterator[RenderableType]:
    """Table of different outcomes, one profile beside the other."""
    if not differing:
        return
    found = [row for index in differing for row in _outcomes(*(run.steps[index] for run in runs))]
    seen = any(row[1] in ANSWERS for row in found)
    yield Text(
        "\nwhat differs:"
        if seen
        else "\nwhat differs: only what is kept; every request is answered alike"
    )
    table = FittingTable()
    for name in ("request", "", *(broken(run.profile, 24) for run in runs)):
        table.add_column(name, overflow="fold")
    shown = {runs[0].steps[index].name for index in differing[:MOST_STEPS]}
    for name, what, *sides in found:
        if name in shown:
            table.add_row(*(Text(word) for word in (name, what, *sides)))
    yield table
    if len(differing) > MOST_STEPS:
        yield Text(f"and {len(differing) - MOST_STEPS} more requests", style="quiet")


def _outcomes(one: Step, other: Step) -> Iterator[tuple[str, str, str, str]]:
    for what in OUTCOME:
        sides = getattr(one, what), getattr(other, what)
        if sides[0] == sides[1]:
            continue
        left, right = (_word(side) for side in sides)
        if what == "generated":  # tokens alone tell nothing: say from where on
            pairs = enumerate(zip(*sides, strict=False), 1)
            at = next((i for i, (a, b) in pairs if a != b), min(map(len, sides)) + 1)
            left, right = (
                (f"token {at} is {side[at - 1]}" if at <= len(side) else f"ends before token {at}")
                for side in sides
            )
        yield one.name, "prefilled" if what == "processed" else what, left, right
    entries = [" ".join(str(entry["n_tokens"]) for entry in s.prompt_cache) for s in (one, other)]
    if entries[0] != entries[1]:
        yield one.name, "prompt cache", entries[0] or "none", entries[1] or "none"


def _word(value: object) -> str:
    if isinstance(value, tuple):
        shown = [*map(str, value)]
        more = ["..."] if len(shown) > MOST_CHECKPOINTS else []
        return " ".join([*more, *shown[-MOST_CHECKPOINTS:]]) or "none"
    return "none" if value is None else SHOWN.get(str(value), str(value))


def _first_difference(one: Run, other: Run) -> tuple[Step, tuple[Event | None, ...]] | None:
    """The first event, routine ones left out, that differs: its step, and each profile's."""
    for ours, theirs in zip(one.steps, other.steps, strict=True):
        left, right = (
            [event for event in step.events if event.loudness() != "quiet"]
            for step in (ours, theirs)
        )
        keys = [_key(event) for event in left], [_key(event) for event in right]
        matcher = SequenceMatcher(None, *keys, autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            if tag != "equal":
                return ours, (left[i1] if i1 < i2 else None, right[j1] if j1 < j2 else None)
    return None


def _key(event: Event) -> tuple[str, str]:
    known = {field.name for field in fields(event)}
    neutral = replace(event, **{k: v for k, v in NEUTRAL.items() if k in known})
    return event.name(), neutral.sentence
