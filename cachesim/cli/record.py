"""`cachesim record`: a proxy between client and server that explains each reprocessed prompt."""

import asyncio
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live as LiveDisplay
from rich.table import Table
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.inputs import UNSAID, ServerFlags
from cachesim.cli.options import Page, Settings
from cachesim.cli.outputs import page_at, write_page
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.files import Output
from cachesim.printable import printable
from cachesim.record.plan import Plan, RecordFile, check_no_circle, place_of, upstream_of
from cachesim.report.consoles import notes, results, show
from cachesim.report.recorded import dump_report, totals_line
from cachesim.why.explain.live import Live, causes_of, report_of_live
from cachesim.why.explain.whole import UserSettings

if TYPE_CHECKING:
    from cachesim.record.proxy import Proxy
    from cachesim.record.session import Row, Session

EXTRA: Final = (
    "cachesim record needs aiohttp, which is not installed here: pip install 'cachesim[record]'"
)
LOUDLY: Final = (
    "--keep-text: {path} WILL HOLD EVERY PROMPT AND EVERY REPLY AS TEXT. Do not share it."
)


def record_command(
    *,
    upstream: Annotated[str, Parameter(help="The server, such as http://127.0.0.1:8080.")],
    listen: Annotated[str, Parameter(help="Where clients connect: a port, or host:port.")] = (
        "127.0.0.1:8081"
    ),
    output: Annotated[
        Path, Parameter(name=["--output", "-o"], help="The file to write, one line per request.")
    ] = Path("recorded.jsonl"),
    keep_text: Annotated[
        bool, Parameter(help="Keep prompts and replies as text, not as hashes.")
    ] = False,
    public: Annotated[
        bool, Parameter(help="Allow an address that other machines can reach.")
    ] = False,
    quiet: Annotated[bool, Parameter(help="Print no table, as a service.")] = False,
    ask: Annotated[
        bool,
        Parameter(
            negative="--no-ask", help="Ask a llama-server for the exact tokens of each request."
        ),
    ] = True,
    server: ServerFlags = UNSAID,
    settings: Settings = None,
    report: Page = None,
) -> int:
    """Record a client's requests to a server; explain each miss.

    Requests are passed on unchanged.

    Example: cachesim record --upstream http://127.0.0.1:8080 --listen 127.0.0.1:8081
    """
    host, port = place_of(listen, public=public)
    plan = Plan(
        upstream=upstream_of(upstream),
        host=host,
        port=port,
        output=output,
        keep_text=keep_text,
        tokenize=ask,
    )
    check_no_circle(plan.upstream, host, port)
    about = server.wanted(settings)
    try:
        import_module("aiohttp")  # the extra
    except ImportError:
        raise InputError(EXTRA) from None
    return _recorded(plan, about, page_at(report), quiet=quiet)


def _recorded(plan: Plan, about: UserSettings, page: Output | None, *, quiet: bool) -> int:
    from cachesim.record.proxy import serve
    from cachesim.record.session import Session
    from cachesim.record.tokenizer import ServerTokenizer

    live = Live(about, forgets=True)
    live.check()
    file = RecordFile(plan.output)
    if plan.keep_text:
        show(notes(), Text(LOUDLY.format(path=plan.output), style="wrong"))
    view = LiveView(notes())
    parts: list[Proxy] = []
    sessions: list[Session] = []

    def added(row: "Row") -> None:
        if not quiet:
            view.add(row, live.totals.as_dict(), causes_of(live)[:1])

    def opened(proxy: "Proxy", loop: asyncio.AbstractEventLoop) -> "Session":
        parts.append(proxy)
        counter = ServerTokenizer(plan.upstream, proxy.session, loop) if plan.tokenize else None
        session = Session(
            file,
            keep_text=plan.keep_text,
            tokenizer=counter,
            live=live,
            view=added,
            complain=view.print_message,
        )
        sessions.append(session)
        return session

    def listening(place: str) -> None:
        show(notes(), Text(f"{place} passes on to {plan.upstream}; recording to {plan.output}"))
        sys.stderr.flush()
        if not quiet:
            view.open()

    try:
        faults = asyncio.run(serve(plan, opened, listening))
    finally:
        view.close()
        file.close()
        if not file.lines:
            plan.output.unlink(missing_ok=True)
    if live.totals.requests and (page is not None or not quiet):
        report = dump_report(report_of_live(live, source=str(plan.output)), worst=0)
        if not quiet:
            show(results(), *report)
        write_page(page, "cachesim record", report)
    requests = counted(file.lines, "request")
    if file.problem:
        text = f"RECORDING STOPPED EARLY: {plan.output}: {file.problem}"
        show(notes(), Text(f"{text}; {requests} in it", style="wrong"))
    elif file.lines:
        show(notes(), Text(f"{requests} in {plan.output}: cachesim why {plan.output}"))
    else:
        show(notes(), Text("nothing was recorded"))
    _name_counts("malformed requests, refused with status 400", faults.malformed)
    _name_counts("errors of the recorder", faults.others)
    for proxy in parts:
        _name_counts("passed without a record (no known prompt in such a request)", proxy.skipped)
    for recorded in sessions:
        _name_counts("recorded without a prompt", recorded.without_prompt)
    return NOT_AS_EXPECTED if file.problem else AS_EXPECTED


def _name_counts(what: str, counts: Mapping[str, int]) -> None:
    if counts:
        ranked = sorted(counts.items(), key=lambda count: (-count[1], count[0]))
        named = ", ".join(f"{name} ({count})" for name, count in ranked)
        show(notes(), Text(f"{what}: {named}"))


# -- the live view ---------------------------------------------------------------------------------

SHOWN: Final = 12
"""Rows of the table."""

OFTEN: Final = 4
"""Redraws per second."""


class LiveView:
    """A table on a terminal, redrawn with each request; elsewhere a line for each."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._rows: deque[Row] = deque(maxlen=SHOWN)
        self._totals: Mapping[str, Any] = {}
        self._worst: Sequence[Mapping[str, Any]] = ()
        self._live = (
            LiveDisplay(console=screen, refresh_per_second=OFTEN, get_renderable=self._page)
            if screen.is_terminal
            else None
        )
        self._headed = False

    def open(self) -> None:
        """Start drawing."""
        if self._live is not None:
            self._live.start()

    def close(self) -> None:
        """Stop; the last table stays."""
        if self._live is not None:
            self._live.stop()

    def add(
        self, row: "Row", totals: Mapping[str, Any], worst: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add a finished request."""
        self._rows.append(row)
        self._totals, self._worst = dict(totals), list(worst)
        if self._live is None:
            if not self._headed:
                self._headed = True
                show(self._screen, Text(LINE.format("request", "prompt", "cached", "again", "why")))
            cells = (row.number, *numbers(row), status_text(row))
            show(self._screen, Text(LINE.format(*cells)), wrap=False)
            self._screen.file.flush()

    def print_message(self, text: str) -> None:
        """Print a message above the table."""
        show(self._screen, Text(text, style="wrong"))
        self._screen.file.flush()

    def _page(self) -> RenderableType:
        rows = list(self._rows)
        totals = self._totals
        worst = self._worst
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, expand=True)
        for name in ("request", "prompt", "cached", "again"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("client", no_wrap=True, overflow="ellipsis", max_width=18)
        table.add_column("why", ratio=1, overflow="fold")
        for row in rows:
            prompt, cached, again = numbers(row)
            table.add_row(
                str(row.number),
                prompt,
                cached,
                Text(again, style="again" if row.again else ""),
                printable(row.client),
                printable(status_text(row)),
            )
        parts: list[RenderableType] = [table]
        if totals:
            requests = counted(totals["requests"], "request")
            parts.append(Text(f"{requests}. {totals_line(totals)}", style="name"))
        if worst:
            most = worst[0]
            tokens = most["tokens"]
            cost = "" if tokens is None else f", {tokens:,} tokens prefilled again"
            times = f"{len(most['requests'])} times" if len(most["requests"]) > 1 else "once"
            parts.append(
                Text(f"worst: {most['kind']}, {times}{cost}. {most['advice']}", style="lost")
            )
        return Group(*parts)


LINE: Final = "{:>7}  {:>8}  {:>8}  {:>8}  {}"


def status_text(row: "Row") -> str:
    """The cause, and an abnormal end."""
    return f"cancelled; {row.why}" if row.cancelled else row.why


def numbers(row: "Row") -> tuple[str, str, str]:
    """Prompt, cached and again prefilled tokens; empty without a prompt."""
    if not row.how:
        return "", "", ""
    return number(row.prompt), number(row.cached), number(row.again)


def number(value: int | None) -> str:
    """A number of tokens, if known."""
    return "?" if value is None else f"{value:,}"
