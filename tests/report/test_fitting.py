"""A table on a terminal of any width: no number loses a digit."""

import re

import pytest
from rich.text import Text

from cachesim.report.consoles import plain_text
from cachesim.report.document import SENTENCES, FittingTable

ROWS = [
    ("b9538", "1,234,567", "12", "checkpoints are too far apart"),
    ("b11549", "7,654,321", "9", ""),
]


def table() -> FittingTable:
    made = FittingTable(title="two servers", title_style="")
    made.add_column("server")
    made.add_column("prefilled", justify="right")
    made.add_column("hits", justify="right")
    made.add_column("lost to", overflow="fold", min_width=SENTENCES)
    for name, *cells in ROWS:
        made.add_row(Text(name), *cells)
    return made


def test_where_its_columns_fit_it_is_a_table() -> None:
    lines = plain_text(table()).splitlines()

    assert ["server", "prefilled", "hits", "lost", "to"] == lines[1].split()
    assert ["b11549", "7,654,321", "9"] == lines[-1].split()


def test_where_they_do_not_it_is_a_list() -> None:
    assert [
        "two servers",
        "server",
        "b9538",
        "  prefilled: 1,234,567, hits: 12",
        "  lost to: checkpoints are too far apart",
        "b11549",
        "  prefilled: 7,654,321, hits: 9",
    ] == plain_text(table(), width=48).splitlines()


@pytest.mark.parametrize("width", range(20, 90, 7))
def test_at_any_width_every_number_and_word_is_whole(width: int) -> None:
    shown = plain_text(table(), width=width)

    words = {word for row in ROWS for cell in row for word in cell.split()}
    assert words <= set(re.split(r",?\s+", shown))
    assert max(map(len, shown.splitlines())) <= width
