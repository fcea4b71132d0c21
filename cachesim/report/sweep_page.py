"""A sweep as one HTML page: plots and the table, without scripts or anything from elsewhere."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from cachesim.report.areas import stacked_areas
from cachesim.report.balance import balance_bars
from cachesim.report.charts import STYLE as CHARTS
from cachesim.report.charts import legend, line_chart, stacked_bars
from cachesim.report.holdings import KINDS, in_words, timeline_of
from cachesim.report.knees import knees
from cachesim.report.sweep import (
    by_trace,
    causes_in,
    endings,
    holding,
    lines,
    notes,
    server_of,
    swept,
    whose_bytes,
)
from cachesim.report.upgrades import told, upgrades
from cachesim.report.why_page import STYLE

MOST_BARS: Final = 40
MOST_PARTS: Final = 6
"""Causes with a colour of their own."""

MOST_SMALL: Final = 12
"""Charts of what a server holds."""

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
        sentences = (*endings(members), *notes(members))
        yield from (f"<p>{escape(each)}</p>" for each in sentences)
        for flag in swept(members):
            yield f"<h3>Share of the prompts that is reused, over {escape(flag)}</h3>"
            yield from _curves(members, flag)
        bars = losses(members)
        if bars:
            yield "<h3>Computed before and not reused, by cause, in tokens</h3>"
            yield stacked_bars(bars, title="tokens lost by cause")
        yield from _upgrades(members)
        yield from _holdings(members)
        yield _table(members)


def _curves(rows: Rows, flag: str) -> Iterator[str]:
    drawn = lines(rows, flag)
    found = {server: knees(points) for server, points in drawn.items()}
    rings = {server: [knee.at for knee in each] for server, each in found.items()}
    yield line_chart(drawn, x=flag, title=f"share over {flag}", rings=rings)
    told = [f"{server}: {knee.sentence}" for server, each in found.items() for knee in each]
    if told:
        items = "".join(f"<li>{escape(each)}</li>" for each in told)
        yield f"<p>Knees, ringed in the plot:</p><ul>{items}</ul>"


def _upgrades(rows: Rows) -> Iterator[str]:
    found = upgrades(rows)
    if not found:
        return
    yield "<h3>Difference between releases, in tokens</h3>"
    changed = [each for each in found if each.changes]
    yield f"<p>{escape(told(found))}.</p>"
    if changed:
        yield "<p>To the right what is lost less than before, to the left what is lost more.</p>"
        bars = _fewer(
            {
                f"{each.server}: {each.releases}, {each.reused:+,} reused": each.lost
                for each in changed[:MOST_BARS]
            }
        )
        yield balance_bars(bars, title="tokens lost more and less by cause, release by release")


def _fewer(bars: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    totals: Counter[str] = Counter()
    for bar in bars.values():
        totals.update({cause: abs(count) for cause, count in bar.items()})
    named = [cause for cause, _ in totals.most_common(MOST_PARTS)]
    found = {}
    for name, bar in bars.items():
        rest = [count for cause, count in bar.items() if cause not in named]
        more = sum(count for count in rest if count > 0)
        parts = {cause: count for cause, count in bar.items() if cause in named}
        parts |= {"others, more": more, "others, less": sum(rest) - more}
        found[name] = {cause: count for cause, count in parts.items() if count}
    return found


def _holdings(rows: Rows) -> Iterator[str]:
    shown = holding(rows)
    if not shown:
        return
    whose = escape(whose_bytes(rows))
    yield f"<h3>Bytes held by kind, over the requests ({whose})</h3><div class='small'>"
    for name, row in shown[:MOST_SMALL]:
        requests, columns = timeline_of(row)
        most = in_words(max(map(sum, zip(*columns.values(), strict=True))))
        areas = stacked_areas(requests, columns, kinds=list(KINDS), most=most, title=name)
        yield f"<figure>{areas}<figcaption>{escape(name)}</figcaption></figure>"
    yield "</div>" + legend(list(KINDS.values()), filled=True)
    if len(shown) > MOST_SMALL:
        yield f"<p>{len(shown) - MOST_SMALL} more in --format json.</p>"


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
    body = []
    for row in rows:
        numbers = (row["prompt_tokens"], row["cached"], row["rate"], row["refused"])
        words = (f"{n:.4f}" if isinstance(n, float) else f"{n:,}" for n in numbers)
        cells = (
            f"<td class=n data-head='{name}'>{each}</td>"
            for name, each in zip(heads[1:], words, strict=True)
        )
        body.append(f"<tr><td>{escape(server_of(row))}</td>{''.join(cells)}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
