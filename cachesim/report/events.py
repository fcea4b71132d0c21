"""Events as lines: a sign for the tone, then the event's own sentence."""

from collections.abc import Iterable
from typing import Final

from rich.table import Table
from rich.text import Text

from cachesim.engines.events import Event, Tone

SIGNS: Final[dict[Tone, str]] = {"loss": "-", "gain": "+", "warn": "!", "plain": " ", "quiet": " "}
STYLES: Final[dict[Tone, str]] = {
    "loss": "lost",
    "gain": "right",
    "warn": "wrong",
    "plain": "",
    "quiet": "quiet",
}


def event_lines(events: Iterable[Event]) -> Table:
    """Indented lines, `+ checkpoint 96[95..95] is saved, 1 of at most 32`."""
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(min_width=3, no_wrap=True)
    table.add_column(overflow="fold")
    for event in events:
        tone = event.loudness()
        style = "quiet" if tone == "quiet" else ""
        table.add_row(
            Text(f"  {SIGNS[tone]}", style=STYLES[tone]), Text(event.sentence, style=style)
        )
    return table
