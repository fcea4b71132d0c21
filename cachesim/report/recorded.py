"""A report of recorded requests, and the live view of proxied ones."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cachesim.engines.words import counted
from cachesim.printable import printable
from cachesim.report.consoles import show
from cachesim.report.document import SENTENCES, FittingTable, Heading, facts
from cachesim.report.why import shown


def dump_report(found: Mapping[str, Any], *, worst: int) -> list[RenderableType]:
    """Totals, recurring causes, other servers, and the most expensive requests."""
    totals = found["totals"]
    names = ", ".join(found["dump"]["sources"])
    parts: list[RenderableType] = [
        Heading(f"{names}: {counted(totals['requests'], 'recorded request')}"),
        Text(totals_line(totals)),
    ]
    if found["server"] is not None:
        server = found["server"]
        agreement = found["agreement"]
        compared = (
            f"it reuses as many tokens as the server did in {agreement['agreeing']} of "
            f"{agreement['comparable']} requests."
            if agreement["comparable"]
            else "no answer reports cached tokens to compare it with."
        )
        line = (
            f"Replayed on {server['profile']} ({server['profile_known']}) with a {server['model']} "
            f"model ({server['model_known']}): {compared}"
        )
        parts.append(
            Text(f"{line} It ended early: {server['problem']}" if server["problem"] else line)
        )
        if totals["reported"]["prompt_tokens"] < totals["answered"]:
            parts.append(Text(ESTIMATED))
    if found["causes"]:
        parts += [Text(), _causes(found["causes"])]
    else:
        parts.append(Text("Every request continues an earlier one, or is a new conversation."))
    if found["what_if"]:
        parts += [Text(), _elsewhere(found["what_if"])]
    ranked = sorted(
        (each for each in found["requests"] if each["parting"] is not None or each["again"]),
        key=lambda each: (-(each["again"] or 0), each["number"]),
    )
    for each in ranked[:worst]:
        parts += [Text(), recorded_request(each)]
    return parts


ESTIMATED: Final = (
    "Where an answer reports no prompt tokens, the replay takes a length that is estimated from "
    "the characters."
)


def totals_line(totals: Mapping[str, Any]) -> str:
    """Prompt tokens of all requests by outcome, as far as answers report them."""
    answered, reported = totals["answered"], totals["reported"]
    prompts, cached, processed = (reported[key] for key in ("prompt_tokens", "cached", "processed"))
    if not answered:
        return "No request was answered."
    reused, read = (f"{shown(totals[key])} {word}" for key, word in PARTS)
    again = f"{shown(totals['again'])} of these reprocessed."
    whole = f"{shown(totals['prompt_tokens'])} prompt tokens"
    if prompts == cached == processed == answered:
        rest = totals["prompt_tokens"] - totals["cached"] - totals["processed"]
        unknown = f", {rest:,} unknown" if rest else ""  # of prompts whose client left
        return f"{whole}: {reused}, {read}{unknown}, {again}"
    if not prompts and not cached and not processed:
        return "Prompt, reused and processed tokens: unknown, no answer reports them."
    first = f"{whole} in {prompts} of {answered} answered requests."
    if not prompts:
        first = "Prompt tokens: unknown, no answer reports them."
    elif prompts == answered:
        first = f"{whole}."
    if not cached and not processed:
        return f"{first} Reused and processed: unknown, no answer reports cached tokens."
    if cached == processed:
        return f"{first} In {cached} of {answered} answered requests: {reused}, {read}, {again}"
    some = f"{reused} in {cached} of {answered} answered requests" if cached else "Reused: unknown"
    return f"{first} {some}; {read} in {processed} of {answered}."


PARTS: Final = (("cached", "reused"), ("processed", "processed"))
"""Counts of prompt tokens and their labels."""


def tokens_of(count: int | None) -> str:
    """A number of tokens, or `unknown`."""
    return "unknown" if count is None else counted(count, "token")


def _causes(groups: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = FittingTable()
    table.add_column("reprocessed", justify="right")
    table.add_column("requests", justify="right")
    table.add_column("by", no_wrap=True)
    table.add_column("what happened, and what helps", overflow="fold", min_width=SENTENCES)
    for each in groups:
        words = Text(each["kind"], style="name")
        words.append(f"\n{each['example']}. {each['advice']}".rstrip(), style="")
        table.add_row(shown(each["tokens"]), str(len(each["requests"])), each["by"], words)
    return table


def _elsewhere(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    table = FittingTable()
    table.add_column("the same requests on", no_wrap=True)
    for name in ("processed", "reused", "requests that reuse"):
        table.add_column(name, justify="right")
    table.add_column("", overflow="fold")
    for each in rows:
        numbers = (each[key] for key in ("processed", "cached", "hits"))
        table.add_row(each["name"], *map(shown, numbers), each["problem"])
    return table


def recorded_request(each: Mapping[str, Any]) -> RenderableType:
    """A recorded request."""
    head = Text(f"request {each['number']}", style="name")
    head.append(f"  line {each['line']}")
    table = facts(gap=2)
    table.add_row("prompt", tokens_of(each["prompt_tokens"]))
    table.add_row("cached", tokens_of(each["cached"]))
    if each["continues"] is not None:
        table.add_row(
            "continues",
            f"request {each['continues']}: {each['equal_characters']:,} of "
            f"{each['characters']:,} characters are equal",
        )
    parting = each["parting"]
    if parting is not None:
        after = each["tokens_after"]
        about = "" if each["known"]["tokens_after"] == "computed" else "about "
        known = "follow it" if each["cached"] is None else "after it are reprocessed"
        cost = "" if after is None else f"; {about}{after:,} tokens {known}"
        table.add_row("parts", f"{parting['sentence']}{cost}")
        table.add_row("helps", parting["advice"])
    for loss in each["losses"]:
        table.add_row("rule", f"{loss['sentence']}: {loss['from']:,} to {loss['to']:,} tokens")
    return Group(head, Padding(table, (0, 0, 0, 2)))


SHOWN: Final = 12
"""Rows of the table."""

OFTEN: Final = 4
"""Redraws per second."""


class Row(Protocol):
    """Row of the live table."""

    @property
    def number(self) -> int:
        """The number of the line in the file."""

    @property
    def client(self) -> str:
        """Client's address."""

    @property
    def cancelled(self) -> bool:
        """True if the client left before the end."""

    @property
    def prompt(self) -> int | None:
        """Tokens of the prompt, if known."""

    @property
    def cached(self) -> int | None:
        """Number of reused prompt tokens."""

    @property
    def again(self) -> int | None:
        """Number of reprocessed tokens."""

    @property
    def why(self) -> str:
        """The cause."""

    @property
    def how(self) -> str:
        """Source of `prompt` and `cached`; empty without a prompt."""


class LiveView:
    """A table on a terminal, redrawn with each request; elsewhere a line for each."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._rows: deque[Row] = deque(maxlen=SHOWN)
        self._totals: Mapping[str, Any] = {}
        self._worst: Sequence[Mapping[str, Any]] = ()
        self._live = (
            Live(console=screen, refresh_per_second=OFTEN, get_renderable=self._page)
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

    def add(self, row: Row, totals: Mapping[str, Any], worst: Sequence[Mapping[str, Any]]) -> None:
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
        for name in ("request", "prompt", "cached", "reprocessed"):
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
            cost = "" if tokens is None else f", {tokens:,} tokens reprocessed"
            times = f"{len(most['requests'])} times" if len(most["requests"]) > 1 else "once"
            parts.append(
                Text(f"worst: {most['kind']}, {times}{cost}. {most['advice']}", style="lost")
            )
        return Group(*parts)


LINE: Final = "{:>7}  {:>8}  {:>8}  {:>8}  {}"


def status_text(row: Row) -> str:
    """The cause, and an abnormal end."""
    return f"cancelled; {row.why}" if row.cancelled else row.why


def numbers(row: Row) -> tuple[str, str, str]:
    """Prompt, cached and reprocessed tokens; empty without a prompt."""
    if not row.how:
        return "", "", ""
    return number(row.prompt), number(row.cached), number(row.again)


def number(value: int | None) -> str:
    """A number of tokens, if known."""
    return "?" if value is None else f"{value:,}"
