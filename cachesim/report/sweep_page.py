"""A sweep as one HTML page: plots and the table, without scripts or anything from elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from cachesim.report.charts import STYLE as CHARTS
from cachesim.report.charts import line_chart, stacked_bars
from cachesim.report.sweep import by_trace, causes_in, server_of
from cachesim.report.why_page import STYLE

MOST_BARS: Final = 40
MOST_PARTS: Final = 7

Rows = Sequence[Mapping[str, Any]]


def html_page(rows: Rows, name: str) -> str:
    """The page."""
    body = "\n".join(_parts(rows, name))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{STYLE}{CHARTS}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _parts(rows: Rows, name: str) -> Iterator[str]:
    yield f"<h1>{escape(name)}</h1>"
    yield "<p>Requests come one after the other; nothing here is a claim about time.</p>"
    for title, members in by_trace(rows):
        yield f"<h2>{escape(title)}</h2>"
        for flag in swept(members):
            yield f"<h3>Share of the prompts that is reused, over {escape(flag)}</h3>"
            yield line_chart(lines(members, flag), x=flag, title=f"share over {flag}")
        bars = losses(members)
        if bars:
            yield "<h3>Computed before and not reused, by cause, in tokens</h3>"
            yield stacked_bars(bars, title="tokens lost by cause")
        yield _table(members)


def swept(rows: Rows) -> list[str]:
    """The flags that have several numbers as values."""
    values: dict[str, set[float]] = {}
    for row in rows:
        for flag, value in row["settings"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(flag, set()).add(value)
    return [flag for flag, found in values.items() if len(found) > 1]


def lines(rows: Rows, flag: str) -> dict[str, list[tuple[float, float]]]:
    """A line for each server that is alike but for the flag, and one for the bound."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if flag in row["settings"]:
            rest = {name: value for name, value in row["settings"].items() if name != flag}
            server = server_of({**row, "settings": rest})
            found.setdefault(server, []).append((row["settings"][flag], row["rate"]))
    ends = sorted({at for points in found.values() for at, _ in points})
    for row in rows:
        if row["profile"] == "bound":
            found[server_of(row)] = [(ends[0], row["rate"]), (ends[-1], row["rate"])]
    return found


def losses(rows: Rows) -> dict[str, dict[str, float]]:
    """For each server the tokens that a cause took; what a cause gave back is left out."""
    causes = causes_in(rows)
    named = causes[:MOST_PARTS]
    bars = {}
    for row in rows[:MOST_BARS]:
        parts = {cause: float(max(0, row["lost"].get(cause, 0))) for cause in named}
        parts["others"] = float(
            sum(max(0, count) for cause, count in row["lost"].items() if cause not in named)
        )
        parts = {cause: count for cause, count in parts.items() if count}
        if parts and row["profile"] != "bound":
            bars[server_of(row)] = parts
    return bars


def _table(rows: Rows) -> str:
    heads = ("server", "tokens", "reused", "share", "refused")
    head = "".join(f"<th{'' if name == 'server' else ' class=n'}>{name}</th>" for name in heads)
    lines = [
        f"<tr><td>{escape(server_of(row))}</td><td class=n>{row['prompt_tokens']:,}</td>"
        f"<td class=n>{row['cached']:,}</td><td class=n>{row['rate']:.4f}</td>"
        f"<td class=n>{row['refused']:,}</td></tr>"
        for row in rows
    ]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
