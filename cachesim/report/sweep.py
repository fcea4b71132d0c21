"""A report of servers on traces: reuse, tokens lost by cause, knees, releases, bytes held.

A row is the plain data of one cell, as `cachesim compare` and `cachesim sweep` print it in JSON.
"""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import log2
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cachesim.engines.words import counted
from cachesim.report.charts import balance_bars, legend, line_chart, stacked_areas, stacked_bars
from cachesim.report.document import Bar, FittingTable, Heading, PageOnly, Picture


def fleet_report(
    rows: Sequence[Mapping[str, Any]], name_of: Callable[[Mapping[str, Any]], str]
) -> Iterator[RenderableType]:
    """A line for each fleet; nothing without any."""
    by_server: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if "fleet" in row:
            by_server.setdefault(name_of(row).partition(", router ")[0], []).append(row)
    if not by_server:
        return
    yield Heading("fleets: what other replicas held when the router chose", level=3)
    for server, members in by_server.items():
        table = FittingTable()
        table.add_column(server, overflow="fold", ratio=1)
        for head in ("reused", "held elsewhere", "best choice", "busiest", "shares"):
            table.add_column(head, justify="right", no_wrap=True)
        for row in members:
            fleet = row["fleet"]
            rates = [replica["rate"] for replica in fleet["by_replica"] if replica["requests"]]
            table.add_row(
                fleet["router"],
                f"{row['cached']:,}",
                _count(fleet["elsewhere"]),
                _count(fleet["best"]),
                f"{fleet['spread']:.2f}",
                f"{min(rates):.3f} to {max(rates):.3f}" if rates else "",
            )
        yield table
        yield Text()
    yield Text(
        "held elsewhere: tokens computed again though another replica held them. best choice: "
        "tokens reused if each request had gone to the replica that held most of it. busiest: "
        "tokens computed by the busiest replica, over the mean. shares: of the prompts' tokens "
        "that a replica reused, from the lowest to the highest."
    )
    yield Text()


def _count(number: int | None) -> str:
    return "not known" if number is None else f"{number:,}"


BOUND: Final = "keep:bound"


def gaps(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int | str, float]]:
    """For each policy and memory, its distance to the bound in percentage points."""
    best = {_place(row): row["rate"] for row in rows if row["profile"] == BOUND}
    found: dict[str, dict[int | str, float]] = {}
    for row in rows:
        if row["profile"].startswith("keep:") and row["profile"] != BOUND and _place(row) in best:
            rest = {name: value for name, value in row["settings"].items() if name != "memory"}
            flags = "".join(f", {name}={value}" for name, value in rest.items())
            name = f"{row['profile']}, {row['model']}{flags}"
            gap = 100 * (best[_place(row)] - row["rate"])
            found.setdefault(name, {})[row["settings"]["memory"]] = gap
    return found


def _place(row: Mapping[str, Any]) -> tuple[str, object]:
    return row["model"], row["settings"].get("memory")


def gaps_report(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """A line for each policy, a column for each memory; nothing without the bound."""
    found = gaps(rows)
    if not found:
        return
    yield Heading("policies: percentage points below the bound for the same memory", level=3)
    table = FittingTable()
    table.add_column("policy", overflow="fold", ratio=1)
    sizes = list(dict.fromkeys(size for gaps in found.values() for size in gaps))
    for size in sizes:
        table.add_column(
            size if isinstance(size, str) else f"{size / 10**9:,g} GB",
            justify="right",
            no_wrap=True,
        )
    for name, by_size in found.items():
        table.add_row(name, *(f"{by_size[size]:.1f}" if size in by_size else "" for size in sizes))
    yield table
    yield Text()


Rows = Sequence[Mapping[str, Any]]

KINDS: Final = {
    "attention": "attention, in use or cached",
    "window": "windows, in use or cached",
    "states": "recurrent states, live or cached",
    "checkpoints": "checkpoints of slots",
    "parked": "prompt-cache entries",
}
"""The kinds in drawing order, with their descriptions."""

LEVELS: Final = "▁▂▃▄▅▆▇█"
UNITS: Final = ("bytes", "KiB", "MiB", "GiB")


def timeline_of(row: Mapping[str, Any]) -> tuple[list[int], dict[str, list[int]]]:
    """Request counts, and the bytes of each kind held at some time."""
    held = row["held"]
    return held["requests"], {kind: held[kind] for kind in KINDS if kind in held}


def in_words(size: float) -> str:
    """A size such as `1.2 MiB`."""
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} {UNITS[0]}" if unit == 0 else f"{size:,.1f} {UNITS[unit]}"


def sparkline(numbers: Sequence[float], top: float) -> str:
    """A character for each number, from empty to the maximum."""
    if not top:
        return LEVELS[0] * len(numbers)
    return "".join(LEVELS[min(7, int(8 * number / top))] for number in numbers)


def memory_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """The bytes of each server by kind over the requests, scaled to the highest of all."""
    top = max(
        (max(column) for _, row in rows for column in timeline_of(row)[1].values()), default=0
    )
    table = FittingTable()
    table.add_column("server", overflow="fold")
    table.add_column("kind", no_wrap=True)
    table.add_column("over the requests", no_wrap=True)
    table.add_column("at most", justify="right", no_wrap=True)
    for name, row in rows:
        for at, cells in enumerate(_lines(row, top)):
            table.add_row("" if at else name, *cells)
    return table


def _lines(row: Mapping[str, Any], top: float) -> Iterator[tuple[str, str, str]]:
    for kind, column in timeline_of(row)[1].items():
        name = "prompt cache" if kind == "parked" else kind
        yield name, sparkline(_some(column), top), in_words(max(column))


def _some(column: Sequence[int]) -> Sequence[int]:
    if len(column) <= 20:
        return column
    return [column[(len(column) - 1) * (at + 1) // 20] for at in range(20)]


LEAST: Final = 0.01
"""Smallest gain of a doubling before a knee: one point."""

DROP: Final = 2
"""Smallest ratio of the gains before and after a knee."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """A size, its share, and the gains of a doubling before and after it."""

    at: float
    share: float
    before: float
    after: float

    @property
    def sentence(self) -> str:
        """The share at the knee, and the gain of a doubling on both sides."""
        return (
            f"{100 * self.share:.1f} % at {self.at:,g}: doubling up to {self.at:,g} gains "
            f"{100 * self.before:.1f} points, doubling beyond {100 * self.after:.1f}"
        )


def knees(points: Sequence[tuple[float, float]]) -> list[Knee]:
    """The knees of a share over a size, smallest size first."""
    sizes = sorted(point for point in points if point[0] > 0)
    gains = [
        (high - low) / log2(large / small) if large > small else 0.0
        for (small, low), (large, high) in pairwise(sizes)
    ]
    return [
        Knee(at=at, share=share, before=before, after=after)
        for (at, share), (before, after) in zip(sizes[1:], pairwise(gains), strict=False)
        if before >= LEAST and before >= DROP * after
    ]


SHOWN: Final = 4
"""Most causes named in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """Difference between two consecutive releases of a sweep."""

    server: str
    before: str
    after: str
    reused: int  # tokens more, or less
    points: float  # of the share
    lost: Mapping[str, int]  # by cause: tokens more that are lost, or less; what changed alone

    @property
    def releases(self) -> str:
        """The two releases, as `from to`."""
        return f"{self.before} to {self.after}"

    @property
    def changes(self) -> bool:
        """True if reuse or losses differ."""
        return bool(self.reused or self.lost)


def upgrades(rows: Rows) -> list[Upgrade]:
    """Consecutive releases in the rows, all else equal."""
    alike: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        engine, at, _ = row["profile"].partition("@")
        if at:
            flags = ", ".join(f"{name}={value}" for name, value in row["settings"].items())
            size = f"{row['fleet']['replicas']} replicas" if "fleet" in row else ""
            key = (engine, row["model"], ", ".join(filter(None, (flags, size, _fleet(row)))))
            alike.setdefault(key, []).append(row)
    return [
        _upgrade(", ".join(filter(None, key)), before, after)
        for key, members in alike.items()
        for before, after in pairwise(members)
    ]


def _upgrade(server: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Upgrade:
    causes = dict.fromkeys([*before["lost"], *after["lost"]])
    more = {cause: after["lost"].get(cause, 0) - before["lost"].get(cause, 0) for cause in causes}
    return Upgrade(
        server=server,
        before=before["profile"].partition("@")[2],
        after=after["profile"].partition("@")[2],
        reused=after["cached"] - before["cached"],
        points=round(100 * (after["rate"] - before["rate"]), 4),
        lost={
            cause: count
            for cause, count in sorted(
                more.items(), key=lambda change: (-abs(change[1]), change[0])
            )
            if count
        },
    )


def sentence_of(found: Sequence[Upgrade]) -> str:
    """The number of pairs of releases, and of those without a difference."""
    pairs = counted(len(found), "pair")
    same = sum(not upgrade.changes for upgrade in found)
    if same == len(found):
        return f"No difference between releases ({pairs} compared, all else equal)."
    return f"{pairs} of releases compared, all else equal: {same} without a difference."


def upgrades_table(changed: Sequence[Upgrade]) -> RenderableType:
    """A line for each pair that differs."""
    table = FittingTable()
    table.add_column("server", overflow="fold", ratio=2)
    table.add_column("reused", justify="right", no_wrap=True)
    table.add_column("points", justify="right", no_wrap=True)
    table.add_column("lost more, or less", overflow="fold", ratio=2)
    for upgrade in changed:
        causes = [f"{count:+,} {cause}" for cause, count in upgrade.lost.items()]
        more = len(causes) - SHOWN
        causes = causes[:SHOWN] + ([f"{more} more"] if more > 0 else [])
        table.add_row(
            f"{upgrade.server}: {upgrade.releases}",
            f"{upgrade.reused:+,}",
            f"{upgrade.points:+.2f}",
            ", ".join(causes),
        )
    return table


BAR: Final = 24
"""Columns of a full bar."""

MOST_ROWS: Final = 60
"""Most lines of the table of causes."""

MOST_HELD: Final = 12
"""Most servers whose bytes are drawn."""

MOST_LIMITS: Final = 6
"""Most servers whose limits in bytes are explained."""

MOST_BARS: Final = 40
MOST_PARTS: Final = 6
"""Most causes with a colour."""


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Flat rows as CSV; a missing flag or cause is an empty cell."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    written = io.StringIO()
    table = csv.DictWriter(written, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return written.getvalue()


def sweep_report(rows: Rows, name: str = "") -> list[RenderableType]:
    """The tables and pictures of each trace; `name` heads a page."""
    order = "Requests come one after the other; nothing here is a claim about time."
    parts: list[RenderableType] = [PageOnly((Heading(name), Text(order)))] if name else []
    for title, members in by_trace(rows):
        table = FittingTable()
        table.add_column("server", overflow="fold")
        for head in ("tokens", "reused", "share"):
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        refused = any(row["refused"] for row in members)
        if refused:
            table.add_column("refused", justify="right")
        for row in members:
            counts = [f"{row['prompt_tokens']:,}", f"{row['cached']:,}", f"{row['rate']:.4f}"]
            if row["refused"] == row["requests"]:  # no answer to count; a note says why
                counts = ["-"] * len(counts)
            bar = Bar(row["rate"], BAR)
            last = [f"{row['refused']:,}"] if refused else []
            table.add_row(server_of(row), *counts, bar, *last)
        parts += [Heading(title, level=2), Text()]
        for flag in swept(members):
            heading = Heading(f"share of the prompts that is reused, over {flag}", level=3)
            parts += [heading, _curves(members, flag), Text()]
        parts += [table, Text()]
        for sentence in (*endings(members), *notes(members)):
            parts += [Text(sentence), Text()]
        parts += [*gaps_report(members), *fleet_report(members, server_of)]
        if any(row["lost"] for row in members if row["profile"] != "bound"):
            bars = losses(members)
            drawn = (
                stacked_bars(bars, title="tokens lost by cause", order=causes_in(members))
                if bars
                else ""
            )
            heading = Heading("tokens computed before and not reused, by cause", level=3)
            parts += [heading, Picture(_losses(members), drawn), Text()]
        parts += [*_upgrades(members), *_memory_report(members)]
    return parts


def endings(rows: Rows) -> list[str]:
    """A sentence for each server that ended before the trace."""
    return [
        f"{server_of(row)} ended before the trace did, at {row['ended']}"
        for row in rows
        if row["ended"]
    ]


def notes(rows: Rows) -> list[str]:
    """Notes on the trace, then on each server's limits in bytes."""
    found = list(dict.fromkeys(note for row in rows for note in row["notes"]))
    limits = [
        f"{server_of(row)}: {row['bytes']['note']}"
        for row in rows
        if row["bytes"] and row["bytes"]["note"]
    ]
    left = len(limits) - MOST_LIMITS
    more = [f"{counted(left, 'server')} more with a limit in bytes, in --format json"]
    return found + limits[:MOST_LIMITS] + (more if left > 0 else [])


def whose_bytes(rows: Rows) -> str:
    """The holders of the bytes, for a heading."""
    given = {row["bytes"]["of"] == "given" for row in rows if row["bytes"]}
    if len(given) > 1:
        return "your model's where its sizes are given, else a small network's"
    return "your model's" if given == {True} else "a small network's"


def by_trace(rows: Rows) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Rows that are comparable: same trace, part and scale."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(title_of(row), []).append(row)
    yield from groups.items()


def title_of(row: Mapping[str, Any]) -> str:
    """Title of a trace."""
    title = f"{row['trace']}: {counted(row['requests'], 'request')}"
    if row["scale"] != 1:
        title += f", scaled down {row['scale']}:1"
    if row["replies"] is not None:
        title += f", replies of {row['replies']}"
    if row["rank"] is not None:
        title += f", data-parallel rank {row['rank']}"
    if row["turn"]:
        title += f", turns of {row['turn']} ms"
        title += f", timestamps in {row['timestamps']}" if row["timestamps"] else ""
    return title


def settings_of(row: Mapping[str, Any]) -> str:
    """The flags of a row."""
    return ", ".join(f"{name}={value}" for name, value in row["settings"].items())


def swept(rows: Rows) -> list[str]:
    """The flags with several numeric values."""
    values: dict[str, set[float]] = {}
    for row in rows:
        for flag, value in row["settings"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(flag, set()).add(value)
    return [flag for flag, found in values.items() if len(found) > 1]


def lines(rows: Rows, flag: str) -> dict[str, list[tuple[float, float]]]:
    """A line for each server that differs only in the flag, and one for the bound."""
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


def server_of(row: Mapping[str, Any]) -> str:
    """A row's server, model and flags."""
    if row["profile"] == "bound":
        return "upper bound (infinite cache)"
    text = f"{row['profile']}, {row['model']}"
    text = f"{text}, {settings_of(row)}" if row["settings"] else text
    fleet = _fleet(row)
    return f"{row['fleet']['replicas']} x {text}, {fleet}" if fleet else text


def _fleet(row: Mapping[str, Any]) -> str:
    """The router, the changes, and the replicas that differ; empty for one server."""
    if "fleet" not in row:
        return ""
    fleet = row["fleet"]
    return ", ".join([f"router {fleet['router']}", *fleet["changes"], *fleet["others"]])


def _curves(rows: Rows, flag: str) -> Picture:
    table = FittingTable()
    table.add_column("server", overflow="fold")
    table.add_column("share", no_wrap=True)
    table.add_column("knees", overflow="fold")
    curves = {name: sorted(points) for name, points in lines(rows, flag).items()}
    top = max(share for points in curves.values() for _, share in points)
    found = {server: knees(points) for server, points in curves.items()}
    for server, points in curves.items():
        bends = "; ".join(knee.sentence for knee in found[server])
        table.add_row(server, sparkline([share for _, share in points], top), bends)
    rings = {server: [knee.at for knee in knees] for server, knees in found.items()}
    drawn = line_chart(curves, x=flag, title=f"share over {flag}", rings=rings)
    items = "".join(
        f"<li>{escape(f'{server}: {knee.sentence}')}</li>"
        for server, knees in found.items()
        for knee in knees
    )
    return Picture(
        table, drawn + (f"<p>Knees, ringed in the plot:</p><ul>{items}</ul>" * bool(items))
    )


def _upgrades(rows: Rows) -> Iterator[RenderableType]:
    found = upgrades(rows)
    if not found:
        return
    changed = [upgrade for upgrade in found if upgrade.changes]
    yield Heading("difference between releases, in tokens", level=3)
    yield Text(sentence_of(found))
    if changed:
        bars = _fewer(
            {
                f"{upgrade.server}: {upgrade.releases}, {upgrade.reused:+,} reused": upgrade.lost
                for upgrade in changed[:MOST_BARS]
            }
        )
        title = "tokens lost more and less by cause, release by release"
        drawn = balance_bars(bars, title=title, order=causes_in(rows))
        sides = "<p>Left of the line: tokens lost more than before. Right: tokens lost less.</p>"
        yield Picture(upgrades_table(changed), sides + drawn)
    yield Text()


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


def _memory_report(rows: Rows) -> Iterator[RenderableType]:
    shown = [(server_of(row), row) for row in rows if timeline_of(row)[1]]
    if not shown:
        return
    drawn_of = [(name, *timeline_of(row)) for name, row in shown[:MOST_HELD]]
    highest = [max(map(sum, zip(*drawn.values(), strict=True))) for _, _, drawn in drawn_of]
    figures = []
    for (name, requests, columns), most in zip(drawn_of, highest, strict=True):
        areas = stacked_areas(
            requests, columns, kinds=[*KINDS], most=in_words(most), top=max(highest), title=name
        )
        figures.append(f"<figure>{areas}<figcaption>{escape(name)}</figcaption></figure>")
    drawn = f"<div class='small'>{''.join(figures)}</div>"
    yield Heading(f"bytes held by kind, over the requests ({whose_bytes(rows)})", level=3)
    seen = {kind for _, _, columns in drawn_of for kind in columns}
    colours = legend(
        {words: at for at, (kind, words) in enumerate(KINDS.items()) if kind in seen}, filled=True
    )
    yield Picture(memory_table(shown[:MOST_HELD]), drawn + colours)
    if len(shown) > MOST_HELD:
        yield Text(f"{len(shown) - MOST_HELD} servers more, in --format json")
    yield Text()


def causes_in(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The causes of these rows, the largest first."""
    totals: dict[str, int] = {}
    for row in rows:
        for cause, count in row["lost"].items():
            totals[cause] = totals.get(cause, 0) + abs(count)
    return sorted(totals, key=lambda cause: (-totals[cause], cause))


def _losses(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each server: its causes, the largest first; restored tokens count as gains."""
    table = FittingTable()
    table.add_column("server", overflow="fold", ratio=2)
    table.add_column("tokens", overflow="fold", ratio=3)
    for row in rows[:MOST_ROWS]:
        if row["profile"] != "bound":
            text = (f"{count:,} {cause}" for cause, count in row["lost"].items() if count)
            table.add_row(server_of(row), ", ".join(text))
    if len(rows) > MOST_ROWS:
        table.add_row(f"{len(rows) - MOST_ROWS} more", "in --format json, --csv and --report")
    return table


def losses(rows: Rows) -> dict[str, dict[str, float]]:
    """Tokens lost by each cause, for each server; gains are left out."""
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
