"""`cachesim compare`: engines, releases or flags, on one scenario or on a trace."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from cyclopts import Parameter

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED, Format
from cachesim.cli.app import announce
from cachesim.cli.diff import diff
from cachesim.cli.jobs import changed, setting
from cachesim.cli.options import AnyFormat, Jobs, Page, Seed, Settings
from cachesim.cli.outputs import output_at, page_at, print_report, tracked, write, write_page
from cachesim.cli.replay import WHOLE, TraceFlags, replay
from cachesim.errors import InputError, ScenarioError
from cachesim.files import PLOT, Output
from cachesim.model.arithmetic import ArithmeticName
from cachesim.play.comparing import Row, compare, newest, policies, rows_in
from cachesim.report.compared import comparison
from cachesim.report.compared import plot as picture_of
from cachesim.scenario import full_profile
from cachesim.scenario.format import Scenario
from cachesim.scenario.shipped import STDIN, load_all, shipped_files

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
        "of rows. [default: engines]"
    ),
]


def compare_command(
    workload: Workload,
    *,
    profile: Sides = None,
    rows: Rows = None,
    row: Annotated[
        list[str] | None, Parameter(help="A row in addition to --rows, written like --profile.")
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

    Example: cachesim compare llama.cpp-24143-hybrid -p b9538 -p b9538+24143
    """
    page, picture = page_at(report), output_at(plot, "--plot", PLOT)
    flags, wanted = dict(map(setting, settings or ())), list(map(row_of, profile or ()))
    if is_trace(workload):
        _refuse(
            f"{workload} is a trace",
            {"--rows": rows, "--row": row, "--plot": plot, "--seed": seed}
            | {"--arithmetic float": arithmetic == "float"},
        )
        for each in (each for each in wanted if each.options):
            msg = f"--profile {each.name}: flags of a trace's servers are given by --set"
            raise InputError(msg)
        return replay(
            workload,
            profiles=profile or (),
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
            [each.profile for each in wanted],
            [{**flags, **each.options} for each in wanted],
            seed=seed,
            arithmetic=arithmetic,
            format=format,
            page=page,
        )
    if wanted and rows:
        msg = "--rows and --profile: both say what is compared; leave one out, or add with --row"
        raise InputError(msg)
    if flags and not wanted:
        msg = "--set is for the servers that --profile names; rows have flags of their own"
        raise InputError(msg)
    scenario = _scenario(workload, seed)
    chosen = _named(scenario, wanted, flags) or rows_of(rows or "engines")
    return _table(
        scenario,
        [*chosen, *map(row_of, row or ())],
        arithmetic=arithmetic,
        format=format,
        picture=picture,
        page=page,
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

    Example: cachesim compare llama.cpp-24143-hybrid -p b9538 -p b9538+24143
    """
    sides = [(each, given or []) for each, given in ((one, set_one), (other, set_other))]
    announce(
        "diff",
        " -p ".join([f"compare {name}", *(",".join([each, *given]) for each, given in sides)]),
    )
    settings = [dict(map(setting, given)) for _, given in sides]
    return diff(
        name, [one, other], settings,
        seed=seed, arithmetic=arithmetic, format="text", page=page_at(report),
    )  # fmt: skip


def is_trace(name: str) -> bool:
    """True unless the name is that of a scenario: a TOML file, a folder, a shipped one."""
    if name in {"-", STDIN}:
        return not _begins_as_toml()
    path = Path(name)
    if name.startswith(MADE):
        return True
    if path.exists():
        return not any(path.rglob("*.toml")) if path.is_dir() else path.suffix != ".toml"
    shipped = name in {each.stem for each in shipped_files()}
    return not shipped and path.suffix in {".jsonl", ".json", ".gz", ".zst", ".bz2", ".xz"}


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
        msg = f"{what}: {flag} is not for it; leave it out"
        raise InputError(msg)


def _scenario(name: str, seed: int | None) -> Scenario:
    loaded = load_all([name])
    if len(loaded) != 1:
        msg = f"{name} is {len(loaded)} scenarios: name one"
        raise ScenarioError(msg)
    return changed(loaded[0][1], seed, {})


def _named(scenario: Scenario, rows: Sequence[Row], flags: Mapping[str, Any]) -> tuple[Row, ...]:
    """Rows of profiles, which may omit the scenario's engine."""
    engine = scenario.engine.name
    return tuple(
        replace(
            each, profile=str(full_profile(engine, each.profile)), options={**flags, **each.options}
        )
        for each in rows
    )


def _table(
    scenario: Scenario,
    rows: Sequence[Row],
    *,
    arithmetic: ArithmeticName,
    format: Format,
    picture: Output | None,
    page: Output | None,
) -> int:
    """Play the workload on every row; 1 if any answer was wrong, an error if no row was played."""
    found = list(
        compare(scenario, tracked(rows, len(rows), scenario.name, "rows"), arithmetic=arithmetic)
    )
    refused = [f"{each.name}: {each.problem}" for each in found if each.problem]
    if refused and len(refused) == len(found):
        raise ScenarioError(*refused)
    if picture is not None:
        write(picture, picture_of(scenario.name, found))
    parts = comparison(scenario.name, found)
    write_page(page, f"cachesim compare {scenario.name}", parts)
    entries = [each.as_dict() for each in found]
    if format == "jsonl":
        print_report((), entries, format=format)
    else:
        values = {"format": 1, "workload": scenario.name, "rows": entries}
        print_report(parts, values, format=format, indent=2)
    return NOT_AS_EXPECTED if any(each.wrong for each in found) else AS_EXPECTED


def rows_of(rows: str) -> tuple[Row, ...]:
    """The rows of a shipped name or of a file."""
    if rows == "policies":
        return policies()
    if rows in {"engines", "releases"}:
        return newest(releases=rows == "releases")
    return rows_in(Path(rows))


def row_of(text: str) -> Row:
    """Read a row as users write it: `sglang@0.5.23,page_size=16`."""
    profile, *flags = NEXT_FLAG.split(text)
    return Row(name=text, profile=profile, options=dict(map(setting, flags)))
