"""The live view: proxied requests, one line each, and their totals."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cachesim.engines.words import counted
from cachesim.printable import printable
from cachesim.report.consoles import show
from cachesim.report.recorded import totals_line

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
    def status(self) -> int | None:
        """Status of the answer, if any."""

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
