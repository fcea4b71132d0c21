"""`cachesim tune`: a workload's server with other settings, on all cores."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter
from rich.progress import Progress

from cachesim.cli.status import AS_EXPECTED
from cachesim.cli.why import options_of, write
from cachesim.cli.workers import workers
from cachesim.errors import InputError
from cachesim.logs.other import Workload, workload_of
from cachesim.logs.sizes import sizes_of_gguf
from cachesim.logs.tuning import (
    Trial,
    Tried,
    alone,
    command_line,
    front,
    recommended,
    together,
    tried,
)
from cachesim.logs.whole import Wanted, open_log, read_files, replays_of
from cachesim.report.consoles import notes, plain_text, results, show
from cachesim.report.tune import tune_page

PAGE: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>cachesim tune</title>'
    "<style>body{{font:15px/1.4 ui-monospace,monospace;margin:2rem;white-space:pre}}</style>"
    "</head><body>{text}</body></html>\n"
)


def tune(
    *files: Annotated[str, Parameter(help="Logs of one server, in order.")],
    gguf: Annotated[
        Path | None, Parameter(help="The model's file, for the bytes of its memory.")
    ] = None,
    format: Annotated[Literal["text", "json"], Parameter(help="How to print.")] = "text",
    report: Annotated[Path | None, Parameter(help="Write one HTML page.")] = None,
    profile: Annotated[str | None, Parameter(help="The server's release, as b9538.")] = None,
    model: Annotated[str | None, Parameter(help="A preset with the model's memory.")] = None,
    window: Annotated[int | None, Parameter(help="The model's sliding window.")] = None,
    set: Annotated[
        list[str] | None,
        Parameter(name=["--set", "-s"], negative="", help="A flag of the server, as parallel=2."),
    ] = None,
) -> int:
    """Play a log's requests with other settings, and recommend those that read fewest tokens.

    Example: cachesim tune server.log
    """
    wanted = Wanted(profile=profile, model=model, window=window, options=options_of(set or ()))
    workload, options, source = _workload(files, wanted, gguf)
    found = swept(workload, options)
    told = told_of(found, options, source=source, requests=len(workload.asked))
    if report is not None:
        text = plain_text(tune_page(told), width=100)
        write(report, PAGE.format(text=escape(text)), "--report")
    if format == "json":
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
    else:
        show(results(), tune_page(told))
    return AS_EXPECTED


def _workload(
    files: Sequence[str], wanted: Wanted, gguf: Path | None
) -> tuple[Workload, Mapping[str, Any], str]:
    """The life of the server with most requests."""
    if not files:
        msg = "name a log: cachesim tune server.log"
        raise InputError(msg)
    opened = [open_log(name) for name in files]
    try:
        read = read_files(opened)
    finally:
        for _, file in opened:
            file.close()
    found = replays_of(read, wanted)
    replays = [each for each in found if each.settings.is_played]
    if not replays:
        engine = found[0].settings.engine
        msg = f"{', '.join(files)}: a log of {engine} cannot be played with other settings"
        raise InputError(msg)
    replay = max(replays, key=lambda each: len(each.requests))
    if gguf is not None:
        sizes, _ = sizes_of_gguf(gguf)
        replay.settings.sizes = sizes
    spec = replay.settings.spec
    return replace(workload_of(replay), spec=spec), replay.settings.values, ", ".join(files)


def swept(workload: Workload, options: Mapping[str, Any]) -> list[Tried]:
    """Everything that was tried, the user's own settings first."""
    first = _played(alone(workload, options))
    if not first:
        msg = "the server refuses its own settings; name its release with --profile"
        raise InputError(msg)
    return first + _played(together(workload, options, first))


def _played(trials: Sequence[Trial]) -> list[Tried]:
    screen = notes()
    found: list[Tried] = []
    with (
        workers(len(trials)) as do,
        Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar,
    ):
        task = bar.add_task("trying settings", total=len(trials))
        for each in do(tried, trials):
            bar.advance(task)
            if each is not None:
                found.append(each)
    return found


def told_of(
    found: Sequence[Tried], options: Mapping[str, Any], *, source: str, requests: int
) -> dict[str, Any]:
    """What `--format json` prints."""
    best = recommended(found)
    return {
        "format": 1,
        "source": source,
        "requests": requests,
        "options": dict(options),
        "own": found[0].as_dict(),
        "recommended": best.as_dict(),
        "command": command_line(options, best.changes),
        "front": [each.as_dict() for each in front(found)],
        "tried": [each.as_dict() for each in found],
    }
