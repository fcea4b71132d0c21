"""`cachesim probe`: the cache of a live server, tested over HTTP."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED, UNTESTED
from cachesim.cli.options import TextOrJson
from cachesim.probe.command import Finished, Settings, run
from cachesim.probe.result import HEADS
from cachesim.report.consoles import notes, results, show
from cachesim.report.document import FittingTable

DEFAULT: Final = Settings()
CLEAR: Final = "\r\x1b[K"
BETWEEN: Final = 10.0
"""Seconds between two progress lines without a terminal."""

SIGNS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def interruptible() -> Iterator[None]:
    """End the run in order at the first of these signals; ignore the next, and those of nohup."""

    def interrupt(*_: object) -> None:
        for sign in before:
            signal.signal(sign, signal.SIG_IGN)
        raise KeyboardInterrupt

    handlers = {sign: signal.getsignal(sign) for sign in SIGNS}
    before = {sign: handler for sign, handler in handlers.items() if handler is not signal.SIG_IGN}
    for sign in before:
        signal.signal(sign, interrupt)
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Progress in one line of a terminal; a line each `BETWEEN` seconds elsewhere."""
    screen, last = notes(), [0.0]

    def progress(line: str) -> None:
        if screen.is_terminal:
            sys.stderr.write(f"{CLEAR}{line[: screen.width - 1]}")
            sys.stderr.flush()
        elif time.monotonic() - last[0] > BETWEEN:
            last[0] = time.monotonic()
            show(screen, Text(line))

    yield progress
    if screen.is_terminal:
        sys.stderr.write(CLEAR)


def probe_command(
    url: Annotated[str, Parameter(help="The server, as http://127.0.0.1:8080.")] = "",
    *,
    settings: Settings = DEFAULT,
    emit: Annotated[
        Path, Parameter(help="Write report, scenario and recording to this folder.")
    ] = Path("probe"),
    format: TextOrJson = "text",
) -> int:
    """Search a live server, over HTTP, for wrong cached answers.

    Example: cachesim probe --start "llama-server -m model.gguf --port {port}" --minutes 5
    """
    with interruptible(), telling() as progress:
        finished = run(replace(settings, url=url, emit=emit), progress)
    if format == "json":
        files = [str(file) for file in finished.files]
        sys.stdout.write(json.dumps({**finished.result.as_json(), "files": files}, indent=1) + "\n")
    else:
        show(results(), *_parts(finished))
    if not finished.result.right:
        return NOT_AS_EXPECTED
    return UNTESTED if finished.result.missing else AS_EXPECTED


def _parts(finished: Finished) -> Iterator[Text | Table]:
    result = finished.result
    yield from map(Text, result.head())
    for finding in result.outcome.findings:
        verdict, *more = result.wrong(finding)
        yield Text(verdict, style="wrong")
        yield from map(Text, more)
        table = FittingTable(title_style="", box=None)
        for head in HEADS:
            table.add_column(head, justify="left" if head == "answer" else "right")
        for row in result.rows(finding):
            table.add_row(*row)
        if table.row_count:
            yield table
    for at, line in enumerate(result.rest()):
        good = "wrong" if result.missing else "right"
        yield Text(line, style=good if result.right and not at else "")
    yield from (Text(f"written: {file}") for file in finished.files)
