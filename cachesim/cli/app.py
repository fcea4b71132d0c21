"""The commands and their options: a thin parser in front of plain functions."""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter

from cachesim.cli import Format, version
from cachesim.cli.outputs import Page
from cachesim.model import ArithmeticName
from cachesim.report.consoles import results

INTRODUCTION: Final = """\
cachesim checks whether an LLM server's cached answer matches a cold recompute.

  cachesim run llama.cpp-three-requests      what was reused, and was it right?
  cachesim explain llama.cpp-three-requests  the same, step by step
  cachesim list                              the scenarios that are shipped
  cachesim --help                            every command"""

Profiles = Annotated[
    list[str] | None,
    Parameter(
        name=["--profile", "-p"],
        negative="",
        help="A profile to use instead of those listed; may be repeated.",
    ),
]
Arithmetic = Annotated[
    ArithmeticName,
    Parameter(
        help="float: a real network; ring: exact 64-bit integers (no rounding); "
        "counts: no answers, not judged."
    ),
]
Report = Annotated[
    Path | None, Parameter(help="Write one HTML page to step through the events in a browser.")
]
Settings = Annotated[
    list[str] | None,
    Parameter(
        "--set",
        negative="",
        help="A flag of the server, as in ctx_checkpoints=0; the scenario's [[expect]] blocks are"
        " then ignored. May be repeated.",
    ),
]
Seed = Annotated[int | None, Parameter(help="Another seed for weights and spans.")]


def _usage(error: CycloptsError) -> str:
    """The parser's message; for a missing argument with the example of the command's help."""
    found = re.search(r"^ *Example: (.+)", error.target.__doc__ or "", re.MULTILINE)
    if found is None or not isinstance(error, MissingArgumentError):
        return f"cachesim: {error}"
    return f"cachesim: {str(error).removesuffix('.')}, as in: {found[1]}"


LOOKS: Final[dict[str, Any]] = {
    "help": "Checks whether an LLM server's cached answer matches a cold recompute.",
    "version": version,
    "help_format": "plaintext",
    "error_formatter": _usage,
    "help_epilogue": "Exit status: 0 all as expected, 1 a check failed, as a wrong answer that"
    " no scenario expects, 2 wrong usage or a wrong file, 3 a bug in cachesim, 130 interrupted.",
}


def run(
    *names: Annotated[str, Parameter(help="Files, folders, shipped scenarios, or -.")],
    profile: Profiles = None,
    format: Annotated[Format, Parameter(help="How to print.")] = "text",
    seed: Seed = None,
    arithmetic: Arithmetic = "float",
    verify: Annotated[bool, Parameter(help="Compare every answer with a cold recompute.")] = True,
    watch: Annotated[bool, Parameter(negative="", help="Step through the events.")] = False,
    detail: Annotated[
        bool, Parameter(negative="", help="In JSON: what was held after every event, and whose.")
    ] = False,
    report: Report = None,
    settings: Settings = None,
    jobs: Annotated[int | None, Parameter(help="Processes; all processors if left out.")] = None,
    timeout: Annotated[
        float | None,
        Parameter(help="Stop after this many seconds, and show what was played so far."),
    ] = None,
    brief: Annotated[
        bool, Parameter(negative="", help="A line per engine and class, not one per run.")
    ] = False,
) -> int:
    """Run scenarios on profiles: what was reused, why, and whether the answers are right.

    Example: cachesim run llama.cpp-24143-hybrid -p b9538 -p b9538+24143
    """
    from cachesim.cli.jobs import setting
    from cachesim.cli.run import run_command
    from cachesim.cli.watch import watch_command
    from cachesim.cli.workers import processes_wanted

    if watch:
        return watch_command(names, profiles=profile or (), seed=seed, arithmetic=arithmetic)
    return run_command(
        names,
        profiles=profile or (),
        output=format,
        seed=seed,
        arithmetic=arithmetic,
        verify=verify,
        detail=detail,
        report=report,
        settings=dict(map(setting, settings or ())),
        processes=processes_wanted(jobs),
        timeout=timeout,
        brief=brief,
    )


def explain(
    name: str,
    *,
    profile: Profiles = None,
    seed: Seed = None,
    arithmetic: Arithmetic = "float",
    report: Report = None,
    step: Annotated[str | None, Parameter(help="One step: its name, or its number.")] = None,
) -> int:
    """Show a scenario step by step: tokens, checkpoints, caches, and the rule at work.

    Example: cachesim explain llama.cpp-24143-hybrid --profile b9538
    """
    from cachesim.cli.explain import explain_command

    return explain_command(
        name, profiles=profile or (), seed=seed, arithmetic=arithmetic, report=report, step=step
    )


def diff(
    one: str,
    other: str,
    name: str,
    *,
    seed: Seed = None,
    arithmetic: Arithmetic = "float",
    set_one: Annotated[
        list[str] | None,
        Parameter(negative="", help="A flag of the first server only, as in ctx_checkpoints=0."),
    ] = None,
    set_other: Annotated[
        list[str] | None, Parameter(negative="", help="A flag of the other server only.")
    ] = None,
    report: Page = None,
) -> int:
    """Compare two profiles on a scenario: where they first differ, and by which rule.

    Example: cachesim diff b9538 b9538+24143 llama.cpp-24143-hybrid
    """
    from cachesim.cli.diff import diff_command
    from cachesim.cli.jobs import setting

    settings = (dict(map(setting, set_one or ())), dict(map(setting, set_other or ())))
    return diff_command(
        one, other, name, seed=seed, arithmetic=arithmetic, settings=settings, report=report
    )


def compare(
    workload: Annotated[str, Parameter(help="A scenario: a file, or the name of a shipped one.")],
    *,
    rows: Annotated[
        str,
        Parameter(
            help="engines: each at its newest release; releases: all of them; policies: those for "
            "windows and recurrent states, with the flags that matter; or a file of rows."
        ),
    ] = "engines",
    row: Annotated[
        list[str] | None,
        Parameter(negative="", help="One more, as in sglang@0.5.23,page_size=16."),
    ] = None,
    arithmetic: Annotated[
        Literal["ring", "float", "counts"],
        Parameter(
            help="ring: exact 64-bit integers; float: a real network; counts: decisions only."
        ),
    ] = "ring",
    format: Annotated[Literal["text", "json"], Parameter(help="How to print.")] = "text",
    plot: Annotated[Path | None, Parameter(help="Write a picture of it, as SVG.")] = None,
    report: Page = None,
) -> int:
    """Play one workload on all engines: tokens reused, lost by cause, wrong answers, bytes held.

    Example: cachesim compare sglang-one-trace --rows policies
    """
    from cachesim.cli.compare import compare_command

    return compare_command(
        workload,
        rows=rows,
        settings=tuple(row or ()),
        arithmetic=arithmetic,
        output=format,
        picture=plot,
        report=report,
    )


def bisect(
    name: str,
    *,
    arithmetic: Annotated[
        Literal["ring", "float"],
        Parameter(help="ring: exact 64-bit integers; float: a real network."),
    ] = "ring",
    real: Annotated[
        bool, Parameter(negative="", help="Play the real servers, each release's own wheel.")
    ] = False,
    profile: Annotated[str | None, Parameter(help="For a log: the release, as b9538.")] = None,
    model: Annotated[str | None, Parameter(help="For a log: a preset with its memory.")] = None,
    window: Annotated[int | None, Parameter(help="For a log: the sliding window.")] = None,
    report: Page = None,
) -> int:
    """Play every release: the first bad one, the first good one, and what landed in between.

    NAME is a scenario, or a server's log: then its worst miss, as `cachesim why` finds it.

    Example: cachesim bisect llama.cpp-24411-first-turn-again
    """
    from cachesim.cli.bisect import bisect_command
    from cachesim.lab.logs.whole import Wanted

    wanted = Wanted(profile=profile, model=model, window=window)
    return bisect_command(name, arithmetic=arithmetic, real=real, wanted=wanted, report=report)


def list_(
    what: str = "scenarios",
    *,
    symptom: Annotated[
        str, Parameter(help="Scenarios whose report sounds like this, the closest first.")
    ] = "",
    format: Annotated[Literal["text", "json"], Parameter(help="How to print.")] = "text",
) -> int:
    """List scenarios, engines, releases, patches or presets, one line each.

    Example: cachesim list scenarios --symptom "every turn reprocesses the whole prompt"
    """
    from cachesim.cli.listing import list_command

    return list_command(what, symptom=symptom, output=format)


def show(
    name: str,
    *,
    raw: Annotated[
        bool, Parameter(negative="", help="A shipped scenario's file exactly as it is.")
    ] = False,
    flags: Annotated[
        bool, Parameter(negative="", help="The flags of an engine's server, or of one release.")
    ] = False,
) -> int:
    """Show one scenario, engine, release, patch or preset.

    Example: cachesim show llama.cpp-three-requests --raw > mine.toml
    """
    if flags:
        from cachesim.cli.flags import flags_command

        return flags_command(name)
    from cachesim.cli.listing import show_command

    return show_command(name, raw=raw)


def new(
    name: str = "my-scenario",
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="The file.")] = None,
    source: Annotated[
        str | None, Parameter("--from", help="A shipped scenario to copy instead.")
    ] = None,
) -> int:
    """Print a commented scenario to start from.

    Example: cachesim new my-report -o my-report.toml
    """
    from cachesim.cli.new import new_command

    return new_command(name, output=output, source=source)


def completion(shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a script that lets a shell complete commands and options.

    Example: cachesim completion bash > ~/.local/share/bash-completion/completions/cachesim
    """
    from cachesim.cli.completion import completion_command

    return completion_command(shell, COMMANDS, lambda commands: whole_app(["real"], commands))


def schema(what: str = "scenario") -> int:
    """Print the JSON Schema of the scenario file, or of the output.

    Example: cachesim schema output > output.json
    """
    from cachesim.cli.schema import schema_command

    return schema_command(what)


def learn(
    number: int | None = None,
    *answers: Annotated[str, Parameter(help="With --check: what you predict, in order.")],
    check: Annotated[bool, Parameter(negative="", help="Mark the exercises.")] = False,
    whole: Annotated[
        bool, Parameter(name="--all", negative="", help="Print the whole lesson without questions.")
    ] = False,
) -> int:
    """Show a lesson: its code runs as you read, and it asks you to predict the results.

    Without a number the lessons are listed. In a pipe nothing is asked.

    Example: cachesim learn 4 --check 8 8 6
    """
    from cachesim.cli.learn import learn_command

    return learn_command(number, answers, check=check, whole=whole)


COMMANDS: Final[dict[str, Callable[..., int]]] = {
    "run": run,
    "explain": explain,
    "diff": diff,
    "compare": compare,
    "bisect": bisect,
    "list": list_,
    "show": show,
    "new": new,
    "schema": schema,
    "learn": learn,
    "completion": completion,
}


def whole_app(words: list[str], commands: Mapping[str, Callable[..., int]] | None = None) -> App:
    """The parser with every command; what the words ask for is hung in with all its parts."""
    from cachesim.cli.mounts import mount

    whole = App(name="cachesim", suppress_keyboard_interrupt=False, console=results(), **LOOKS)
    for name, command in (commands or COMMANDS).items():
        whole.command(command, name=name)
    mount(whole, words)
    return whole


def parse(arguments: list[str] | None, **settings: Any) -> int:
    """Run the command that the arguments name."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words:
        sys.stdout.write(f"{INTRODUCTION}\n")
        return 0
    whole = whole_app(words)
    if "-" in words:  # the parser takes `-` for an option
        from cachesim.scenario.shipped import STDIN

        words = [STDIN if word == "-" else word for word in words]
    status = whole(words, result_action="return_value", **settings)
    return status if isinstance(status, int) else 0
