"""A sweep of settings: what they prefill and hold, the best of them, and a plot."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from cachesim.engines.words import MIB, counted, mib
from cachesim.report.fitting import FittingTable

WIDTH, HEIGHT, MARGIN = 60, 12, 14
"""Columns and lines of the plot, and columns to its left."""

NOW, BEST, BOTH, TRIED = "o", "*", "@", "."
SIGNS: Final = {
    NOW: "now",
    BEST: "recommended",
    BOTH: "now, and recommended",
    TRIED: "tried",
}
"""What stands in the plot."""


def tune_page(found: Mapping[str, Any]) -> RenderableType:
    """The Pareto front, the plot, what is recommended and what it costs."""
    own, best = found["own"], found["recommended"]
    parts: list[RenderableType] = [
        Text(
            f"{found['source']}: {found['requests']:,} requests played with "
            f"{len(found['tried'])} settings",
            style="name",
        ),
        Text(),
        _table(found["front"], own, best),
        Text(),
        *_drawn(found["tried"], own, best),
        Text(verdict(own, best, found["tried"])),
        Text(),
        Text(found["command"], style="name"),
    ]
    if found["bytes_say"]:
        parts += [Text(), Text(found["bytes_say"], style="quiet")]
    if found["assumed"]:
        parts += [Text(), Text(f"assumed: {', '.join(found['assumed'])}", style="quiet")]
    return Group(*parts)


def words_of(changes: Mapping[str, Any]) -> str:
    """What differs from the user's settings."""
    return ", ".join(f"{name}={value}" for name, value in changes.items()) or "as it is"


def _table(
    front: Sequence[Mapping[str, Any]], own: Mapping[str, Any], best: Mapping[str, Any]
) -> RenderableType:
    table = FittingTable()
    table.add_column("settings", overflow="fold")
    for head in ("prefilled", "than now", "MiB held", "than now"):
        table.add_column(head, justify="right")
    rows = list(front)
    if own not in rows:
        rows.append(own)
    for each in rows:
        mark = "  *" if each == best else ""
        table.add_row(
            words_of(each["changes"]) + mark,
            f"{each['processed']:,}",
            _more(each["processed"] - own["processed"]),
            mib(held(each)),
            _more_mib(held(each) - held(own)),
        )
    return table


def held(each: Mapping[str, Any]) -> int:
    """Bytes in all."""
    return int(each["peak_bytes"]) + int(each["context_bytes"])


def _more(difference: int) -> str:
    return f"{difference:+,}" if difference else ""


def _more_mib(difference: int) -> str:
    return f"{difference / MIB:+,.1f}" if mib(abs(difference)) != mib(0) else ""


def _drawn(
    tried: Sequence[Mapping[str, Any]], own: Mapping[str, Any], best: Mapping[str, Any]
) -> list[RenderableType]:
    """The plot, where settings differ in tokens; one line of signs would show nothing."""
    differ = len({each["processed"] for each in tried}) > 1
    return [_Plot(tried, own, best), Text()] if differ else []


@dataclass(frozen=True, slots=True)
class _Plot:
    """Tokens upwards, bytes to the right: a sign for each setting, as wide as the terminal."""

    tried: Sequence[Mapping[str, Any]]
    own: Mapping[str, Any]
    best: Mapping[str, Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, min(WIDTH, options.max_width - MARGIN))
        yield Text("\n".join(self._lines(width)), no_wrap=True)

    def _lines(self, width: int) -> Iterator[str]:
        reads = [each["processed"] for each in self.tried]
        low, high = min(reads), max(reads)
        grid, signs = self._grid(width)
        for number, row in enumerate(grid):
            label = {0: f"{high:,}", HEIGHT - 1: f"{low:,}"}.get(number, "")
            yield f"{label:>{MARGIN - 2}} |{''.join(row)}"
        yield f"{'prefilled':>{MARGIN - 2}} +{'-' * width}"
        least, most = map(mib, self._ends())
        ends = f"{least} MiB held"
        yield f"{'':>{MARGIN}}{ends}{most:>{max(len(most) + 1, width - len(ends))}}"
        legend = [f"{sign} {words}" for sign, words in signs.items()]
        whole = "   ".join(legend)
        for line in [whole] if len(whole) <= width else legend:
            yield f"{'':>{MARGIN}}{line}"

    def _ends(self) -> tuple[int, int]:
        bytes_held = [held(each) for each in self.tried]
        return min(bytes_held), max(bytes_held)

    def _grid(self, width: int) -> tuple[list[list[str]], Mapping[str, str]]:
        """The signs in their places, and what those that are seen stand for."""
        low = min(each["processed"] for each in self.tried)
        high = max(each["processed"] for each in self.tried)
        left, right = self._ends()

        def place(each: Mapping[str, Any]) -> tuple[int, int]:
            y = (each["processed"] - low) * (HEIGHT - 1) // max(1, high - low)
            return HEIGHT - 1 - y, (held(each) - left) * (width - 1) // max(1, right - left)

        marks = dict.fromkeys(map(place, self.tried), TRIED)
        marks |= {place(self.own): NOW, place(self.best): BEST}
        if place(self.own) == place(self.best):
            marks[place(self.own)] = BOTH
        grid = [[marks.get((y, x), " ") for x in range(width)] for y in range(HEIGHT)]
        return grid, {sign: words for sign, words in SIGNS.items() if sign in marks.values()}


def verdict(
    own: Mapping[str, Any], best: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]
) -> str:
    """What the recommended settings save, and the memory that they take."""
    saved, cost = own["processed"] - best["processed"], held(best) - held(own)
    if not best["changes"]:
        return "The settings as they are: none of the settings tried prefills clearly fewer tokens."
    if best["failed"] < own["failed"]:
        answered = counted(own["failed"] - best["failed"], "request")
        return f"{answered} more would be answered, for {_cost(cost)}: {words_of(best['changes'])}."
    if saved <= 0:
        fewest = min(each["processed"] for each in tried if each["failed"] <= own["failed"])
        clearly = "clearly " if fewest < own["processed"] else ""
        tokens = "The same number of tokens is" if saved == 0 else f"{-saved:,} more tokens are"
        return (
            f"None of the settings tried prefills {clearly}fewer tokens. {tokens} prefilled with "
            f"{_cost(cost)}: {words_of(best['changes'])}."
        )
    part = 100 * saved / max(1, own["processed"])
    return (
        f"{saved:,} fewer tokens are prefilled ({part:.0f} %) for {_cost(cost)}: "
        f"{words_of(best['changes'])}."
    )


def _cost(size: int) -> str:
    if not size:
        return "no more memory"
    number = mib(abs(size)) if mib(abs(size)) != mib(0) else f"under {mib(MIB // 10)}"
    return f"{number} MiB {'more' if size > 0 else 'less'}"
