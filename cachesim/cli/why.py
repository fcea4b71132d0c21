"""`cachesim why`: a server's log with every miss explained, and the alternatives."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from cyclopts import Parameter
from rich.console import RenderableType
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.inputs import UNSAID, Chats, InputFile, ServerFlags, given, requests_in
from cachesim.cli.jobs import only_scenario, workers
from cachesim.cli.options import Gguf, ModelSizes, Page, Settings, TextOrJson, refuse_beside
from cachesim.cli.outputs import (
    output_at,
    page_at,
    print_report,
    progress,
    tracked,
    write,
    write_page,
)
from cachesim.engines.llamacpp.family import FAMILY
from cachesim.engines.tokens import Rope, Run
from cachesim.errors import InputError
from cachesim.files import Output
from cachesim.model.spec import Sizes
from cachesim.report.consoles import notes, results, show
from cachesim.report.recorded import dump_report, recorded_request
from cachesim.report.requests import answer, doctor_report
from cachesim.report.why import request as request_text
from cachesim.report.why import tune_report, why_report
from cachesim.scenario.files import to_toml
from cachesim.scenario.shipped import STDIN, shipped_under
from cachesim.typed import check_whole
from cachesim.why.explain.doctor import doctor_of_dump, doctor_of_log, doctor_of_nothing
from cachesim.why.explain.live import Live, report_of_dump
from cachesim.why.explain.report import worst as worst_of
from cachesim.why.explain.whole import (
    Following,
    Read,
    UserSettings,
    open_log,
    read_files,
    replays_of,
)
from cachesim.why.explain.whole import why as why_of
from cachesim.why.extract import worst_of_recording, worst_scenario
from cachesim.why.infer.model_memory import memory_of
from cachesim.why.infer.sizes import ASSUMED, WHOSE, sizes_of_gguf
from cachesim.why.read.dump import Recorded, is_dump
from cachesim.why.rebuild.from_recording import request_of
from cachesim.why.replay.other import workload_of
from cachesim.why.replay.replayed import Replay

if TYPE_CHECKING:
    from cachesim.why.advise.tuning import Trial, TrialResult, Tuned


def trace_of_log(replays: Sequence[Replay]) -> str:
    """Rebuilt requests in the order of their start, without the log's clock."""
    names = _Names()
    lines = []
    for life, replay in enumerate(replays):
        workload = workload_of(replay)
        for what, number in workload.order:
            if what == "launch":
                request = workload.submitted[number]
                lines.append(names.line(life, 0.0, request.prompt, request.reply))
    return _all(lines)


def trace_of_dump(requests: Sequence[Recorded], wanted: UserSettings) -> str:
    """Recorded requests with an answer, with the milliseconds since the first."""
    live = Live(wanted)
    live.add_all(requests)
    names = _Names()
    began = [prompt.recorded.began for prompt in live.prompts if prompt.recorded.began is not None]
    zero = min(began, default=0.0)
    lines = []
    for prompt in live.prompts:
        if prompt.recorded.was_read and len(prompt.rope):
            time = 1000 * ((prompt.recorded.began or zero) - zero)
            lines.append(names.line(0, round(time, 3), prompt.rope, request_of(prompt).reply))
    return _all(lines)


def _all(lines: Sequence[str]) -> str:
    if not lines:
        msg = "--trace: no request of it has a known prompt, so there is nothing to write"
        raise InputError(msg)
    return "".join(lines)


class _Names:
    """Numbers of texts, from 0; starts of a server are separate."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def line(self, life: int, time: float, prompt: Rope, reply: Rope) -> str:
        """The line of a request."""
        from cachesim.traces.reading import line_of

        return line_of(time, list(self._runs(life, prompt)), list(self._runs(life, reply)))

    def _runs(self, life: int, rope: Rope) -> Iterator[Run]:
        for text, first, last in rope.runs:
            yield self._numbers.setdefault((life, text), len(self._numbers)), first, last


SEARCHING: Final = "The search of settings continues; --no-tune leaves it out."

SLOW: Final = 40
"""Number of requests from which a progress bar is shown."""

POLL_SECONDS: Final = 1.0
"""Seconds between two reads of a followed log."""


def why_command(
    *files: Annotated[
        str,
        Parameter(
            help="Logs of one server, in order, its recorded requests, or its KV events; - for "
            "standard input. With --tune also one scenario."
        ),
    ],
    tune: Annotated[
        bool | None,
        Parameter(
            negative="--no-tune",
            help="Replay the requests with other flags; print the best. With --no-tune, `why` "
            "explains the log and tries no other settings.",
        ),
    ] = None,
    doctor: Annotated[
        bool,
        Parameter(help="Say what the input lacks, and the lines that change it."),
    ] = False,
    sizes: ModelSizes = None,
    gguf: Gguf = None,
    what_if: Annotated[
        list[str] | None,
        Parameter(
            help="Another profile (b11549+24143) or flag (ctx_checkpoints=64); may be repeated."
        ),
    ] = None,
    follow: Annotated[bool, Parameter(help="Wait for new lines, and explain them.")] = False,
    request: Annotated[
        list[int] | None, Parameter(help="Explain only this request; may be repeated.")
    ] = None,
    worst: Annotated[int, Parameter(help="Explain this many of the worst requests.")] = 3,
    scenario: Annotated[
        Path | None, Parameter(help="Write the worst miss as a scenario, as short as possible.")
    ] = None,
    trace: Annotated[
        Path | None, Parameter(help="Write the requests as a trace for `compare` and `sweep`.")
    ] = None,
    server: ServerFlags = UNSAID,
    settings: Settings = None,
    chats: Chats = False,
    format: TextOrJson = "text",
    report: Page = None,
) -> int:
    """Explain each miss in a server's log; --tune tries its flags.

    Example: cachesim why server.log --what-if ctx_checkpoints=64
    """
    check_whole("--worst", worst, 0)
    wanted = server.wanted(settings, chats=chats)
    smallest, requested = output_at(scenario, "--scenario"), output_at(trace, "--trace")
    page = page_at(report)
    others: dict[str, object] = {"--what-if": what_if, "--request": request is not None}
    others |= {"--scenario": scenario, "--trace": trace}
    if doctor:
        refuse_beside("--doctor", {"--tune": tune, "--follow": follow, **others})
        return doctor_command(files, wanted, format=format, page=page)
    if tune:
        refuse_beside("--tune", {"--follow": follow, **others})
        given_sizes = _sizes_of(sizes, gguf, wanted)
        return tune_command(files, wanted, given_sizes, format=format, page=page)
    for flag in (flag for flag, value in {"--sizes": sizes, "--gguf": gguf}.items() if value):
        msg = f"{flag} gives --tune the bytes of a model; add --tune, or leave {flag} out"
        raise InputError(msg)
    if follow:
        others |= {"--report": report, "--format json": format == "json"}
        refuse_beside("--follow", others)
        return _follow_command(files, wanted)
    if len(files) == 1 and _are_events(Path(files[0])):
        return _audit(Path(files[0]), format=format, page=page)
    with given(files, example="cachesim why server.log") as inputs:
        requests = requests_in(inputs)
        if requests:
            source = ", ".join(file.name for file in inputs)
            asked = what_if or (() if tune is None else None)
            dump = report_of_dump(requests, source=source, about=wanted, what_if=asked)
            if smallest is not None:
                write(smallest, to_toml(worst_of_recording(requests, wanted)))
            if requested is not None:
                write(requested, trace_of_dump(requests, wanted))
            parts = dump_report(dump, worst=worst)
            write_page(page, "cachesim why", parts)
            return _print(dump, parts, recorded_request, numbers=request, format=format)
        read, replays = _replayed(inputs, wanted)
    found = why_of(read, replays)
    if what_if or tune is None:
        shown = partial(announced, found)
        from cachesim.why.advise.what_if import add_other_settings

        add_other_settings(found, replays, what_if or (), on_all_cores, shown)
    if smallest is not None:
        write(smallest, to_toml(worst_scenario(replays)))
    if requested is not None:
        write(requested, trace_of_log(replays))
    parts = why_report(found, worst=worst_of(found["requests"], worst))
    write_page(page, "cachesim why", parts)
    return _print(found, parts, request_text, numbers=request, format=format)


def _print(
    found: dict[str, Any],
    parts: Sequence[RenderableType],
    details: Callable[[dict[str, Any]], RenderableType],
    *,
    numbers: Sequence[int] | None,
    format: str,
) -> int:
    """Print a report; of requests that are named, their details alone."""
    if numbers and format == "text":
        parts = [*map(details, _numbered(found, numbers, "log" if "log" in found else "dump"))]
    print_report(parts, found, format=format)
    return AS_EXPECTED


def _are_events(path: Path) -> bool:
    """True for a file of KV events. A log begins with a word: `why` loads no traces for it."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(1).isalnum():
                return False
    from cachesim.traces.audit import is_events

    return is_events(path)


def _audit(path: Path, *, format: str, page: Output | None) -> int:
    """Print whether a stream of KV events is consistent; 1 if it is not."""
    from cachesim.traces.audit import Audit
    from cachesim.traces.reading import lines_of

    audit = Audit.of(lines_of(path, str(path)))
    parts = [Text(sentence) for sentence in audit.sentences()]
    write_page(page, "cachesim why", parts)
    print_report(parts, audit.as_dict(), format=format)
    return AS_EXPECTED if audit.consistent else NOT_AS_EXPECTED


def _numbered(found: dict[str, Any], numbers: Sequence[int], kind: str) -> Iterator[dict[str, Any]]:
    by_number = {request["number"]: request for request in found["requests"]}
    for number in numbers:
        if number not in by_number:
            msg = f"--request {number}: the {kind} has requests 0 to {max(by_number, default=-1)}"
            raise InputError(msg)
        yield by_number[number]


def _replayed(inputs: Sequence[InputFile], wanted: UserSettings) -> tuple[Read, list[Replay]]:
    read = read_files([(file.name, file.file) for file in inputs])
    requests = sum(len(server.requests) for server in read.servers)
    lines = read.tally.lines
    with progress("replaying", lines, "lines", shown=requests > SLOW) as move:
        return read, replays_of(read, wanted, in_passes(move, lines))


def in_passes(move: Callable[..., None], lines: int) -> Callable[[int], None]:
    """Progress of a replay that goes over the lines of a log several times."""
    last, number = 0, 1

    def at(line: int) -> None:
        nonlocal last, number
        number += line < last
        last = line
        again = f", pass {number}" if number > 1 else ""
        move(line, f"{line:,} of {lines:,} lines{again}")

    return at


MOST_AT_ONCE: Final = 1 << 24
"""Most bytes of a log that are read at once."""


def _follow_command(files: Sequence[str], wanted: UserSettings) -> int:
    """Print each finished request of a growing log; standard input ends."""
    if len(files) != 1:
        msg = f"--follow reads one log, not {len(files)}; write `cachesim why --follow server.log`"
        raise InputError(msg)
    following = Following(wanted)
    if files[0] in {"-", STDIN}:
        while data := cast("BufferedReader", sys.stdin.buffer).read1(MOST_AT_ONCE):
            _show_ended(following, data)
        return AS_EXPECTED
    _, file = open_log(files[0])
    with file:
        data = file.read(MOST_AT_ONCE)
        if is_dump(data):
            raise InputError(
                f"{files[0]}: has recorded requests, not a log; `cachesim record` explains them as "
                "they arrive, and `cachesim why` without --follow afterwards"
            )
        while True:
            _show_ended(following, data)
            if not data:
                time.sleep(POLL_SECONDS)
            data = file.read(MOST_AT_ONCE)


def _show_ended(following: Following, data: bytes) -> None:
    """Print the requests that end in these bytes."""
    for line in following.take(data):
        if "inferred" in line:
            then = "From here on, this server's requests are replayed with these states."
            show(results(), f"{line['inferred']} {then}")
        show(results(), request_text(line))


def doctor_command(
    files: Sequence[str], wanted: UserSettings, *, format: str, page: Output | None
) -> int:
    """Print what a log or a recording lacks; without one, the commands of each server."""
    found = doctor_of_nothing()
    if files:
        with given(files, example="cachesim why --doctor server.log") as inputs:
            names = [file.name for file in inputs]
            if requests := requests_in(inputs):
                live = Live(wanted)
                live.add_all(requests)
                found = doctor_of_dump(requests, live, names)
            else:
                found = doctor_of_log(_replayed(inputs, wanted)[1], names)
    parts = doctor_report(found)
    write_page(page, "cachesim why --doctor", parts)
    print_report(parts, found, format=format)
    return AS_EXPECTED


# -- the search for settings -----------------------------------------------------------------------


def tune_command(
    files: Sequence[str],
    wanted: UserSettings,
    sizes: Sizes | None,
    *,
    format: str,
    page: Output | None,
) -> int:
    """Replay requests with other settings, and recommend those that process the fewest tokens."""
    from cachesim.traces.replay import limits_of
    from cachesim.why.advise import tuning
    from cachesim.why.advise.what_if import swept

    tuned = _tuned_of(files, wanted, sizes)
    run = tuned.runs[0]
    limits = limits_of(f"{run.subject.engine}@{run.subject.release}", wanted.options)
    for name in (name for name in limits if name in wanted.options and tuned.sizes == ASSUMED):
        raise InputError(
            f"--set {name}={wanted.options[name]} limits bytes, and those of the model are not "
            "known; write --sizes MODEL or --gguf FILE"
        )
    found = swept(tuned, on_all_cores)
    result = {
        "format": 1,
        "source": ", ".join(files),
        "requests": tuned.requests,
        "small_network": tuned.sizes == ASSUMED,
        "sizes": tuned.sizes,
        "bytes_say": WHOSE.get(tuned.sizes, ""),
        "options": dict(run.options),
    } | tuning.summary(found, tuned)
    parts = tune_report(result)
    write_page(page, "cachesim why --tune", parts)
    print_report(parts, result, format=format)
    return AS_EXPECTED


def _sizes_of(model: str | None, gguf: Path | None, wanted: UserSettings) -> Sizes | None:
    if model is not None and gguf is not None:
        msg = f"--sizes {model} and --gguf {gguf}: the sizes of one model; leave one of the two out"
        raise InputError(msg)
    if model is not None:
        engine, named, _ = (wanted.profile or "").partition("@")
        return memory_of(model).sizes(engine if named else FAMILY.name)
    return None if gguf is None else sizes_of_gguf(gguf)[0]


def _tuned_of(files: Sequence[str], wanted: UserSettings, sizes: Sizes | None) -> "Tuned":
    from cachesim.why.advise import tuning

    if len(files) == 1 and _is_scenario(files[0]):
        scenario = only_scenario(files[0], "tune")
        if wanted.model or wanted.window:
            msg = f"{files[0]}: --model and --window are for logs; a scenario has its own model"
            raise InputError(msg)
        return tuning.of_scenario(scenario, wanted, sizes)
    with given(files, example="cachesim why --tune server.log") as inputs:
        requests = requests_in(inputs)
        if requests:
            return tuning.of_dump(requests, wanted, sizes)
        read = read_files([(file.name, file.file) for file in inputs])
    found = replays_of(read, wanted)
    replays = [replay for replay in found if replay.settings.is_played]
    if not replays:
        engine = found[0].settings.engine
        msg = f"{', '.join(files)}: a log of {engine} cannot be replayed with other settings"
        raise InputError(msg)
    return tuning.of_log(replays, sizes)


def _is_scenario(name: str) -> bool:
    """True for a scenario's file or a shipped name; other files are logs or recordings."""
    path = Path(name)
    if name in {"-", STDIN} or path.is_dir():
        return False
    return path.suffix == ".toml" or (not path.exists() and shipped_under(name) is not None)


def on_other_servers(entries: Iterator[dict[str, Any]], servers: int) -> Iterator[dict[str, Any]]:
    """Replays on other servers, with a progress line."""
    return tracked(entries, servers, "replaying on others", "servers")


def announced(
    found: Mapping[str, Any], entries: Iterator[dict[str, Any]], servers: int
) -> Iterator[dict[str, Any]]:
    """Replays on other servers, after the answer without them where they take a while."""
    if found["totals"]["requests"] > SLOW or notes().is_terminal:
        show(notes(), *answer(found), Text(SEARCHING))
    return on_other_servers(entries, servers)


def on_all_cores(trials: Sequence["Trial"]) -> list["TrialResult"]:
    """Trials run by worker processes, with a progress line."""
    from cachesim.why.advise import tuning

    with workers(len(trials)) as do:
        done = tracked(do(tuning.run_trial, trials), len(trials), "trying", "settings")
        return [result for result in done if result is not None]
