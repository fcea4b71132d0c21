"""`cachesim record`: a proxy between client and server that explains each reprocessed prompt."""

import asyncio
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from rich.text import Text

from cachesim.cli import AS_EXPECTED, NOT_AS_EXPECTED
from cachesim.cli.inputs import UNSAID, ServerFlags
from cachesim.cli.options import Page, Settings
from cachesim.cli.outputs import page_at, write_page
from cachesim.engines.words import counted
from cachesim.errors import InputError
from cachesim.files import Output
from cachesim.lab.logs.live import Live, causes_of, report_of_live
from cachesim.lab.logs.whole import UserSettings
from cachesim.lab.record.plan import Plan, RecordFile, check_no_circle, place_of, upstream_of
from cachesim.report.consoles import notes, results, show
from cachesim.report.recorded import LiveView, dump_report

if TYPE_CHECKING:
    from cachesim.lab.record.proxy import Proxy
    from cachesim.lab.record.session import Row, Session

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
    from cachesim.lab.record.proxy import serve
    from cachesim.lab.record.session import Session
    from cachesim.lab.record.tokenizer import ServerTokenizer

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
    if file.lines and (page is not None or not quiet):
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
    _name_counts("malformed requests, refused with status 400", faults.counts)
    for proxy in parts:
        _name_counts("passed without a record (no known prompt in such a request)", proxy.skipped)
    for each in sessions:
        _name_counts("recorded without a prompt", each.without_prompt)
    return NOT_AS_EXPECTED if file.problem else AS_EXPECTED


def _name_counts(what: str, counts: Mapping[str, int]) -> None:
    if counts:
        ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        named = ", ".join(f"{name} ({count})" for name, count in ranked)
        show(notes(), Text(f"{what}: {named}"))
