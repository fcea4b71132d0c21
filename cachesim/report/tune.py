"""A sweep of settings: prefilled tokens and memory, the recommendation, and a plot."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from cachesim.engines.words import MIB, counted, mib
from cachesim.report.charts import scatter
from cachesim.report.document import FittingTable, Heading, Picture

WIDTH, HEIGHT, MARGIN = 60, 12, 14
"""Columns and lines of the plot, and columns to its left."""

NOW, BEST, BOTH, TRIED = "o", "*", "@", "."
SIGNS: Final = {NOW: "now", BEST: "recommended", BOTH: "now, and recommended", TRIED: "tried"}
"""Series of the plot."""


def tune_report(found: Mapping[str, Any]) -> list[RenderableType]:
    """The Pareto front, the plot, the recommended settings and their cost."""
    own, best = found["own"], found["recommended"]
    title = f"{found['requests']:,} requests played with {len(found['tried'])} settings"
    front = found["front"]
    table = FittingTable()
    table.add_column("settings", overflow="fold")
    for head in ("prefill tokens", "change", "memory (MiB)", "change"):
        table.add_column(head, justify="right")
    for each in [*front, *([] if own in front else [own])]:
        tokens, size = each["processed"] - own["processed"], held(each) - held(own)
        table.add_row(
            words_of(each["changes"]) + ("  *" if each == best else ""),
            f"{each['processed']:,}",
            f"{tokens:+,}" if tokens else "",
            mib(held(each)),
            f"{size / MIB:+,.1f}" if mib(abs(size)) != mib(0) else "",
        )
    parts: list[RenderableType] = [Heading(f"{found['source']}: {title}"), Text(), table, Text()]
    if len({each["processed"] for each in found["tried"]}) > 1:  # else one line of signs
        parts += [Picture(_Plot(found["tried"], own, best), _scatter(found)), Text()]
    parts += [Text(verdict(own, best, found["tried"])), Text(), Text(found["command"], "bold")]
    if found["bytes_say"]:
        parts += [Text(), Text(found["bytes_say"], style="quiet")]
    if found["assumed"]:
        parts += [Text(), Text(f"assumed: {', '.join(found['assumed'])}", style="quiet")]
    return parts


def _scatter(found: Mapping[str, Any]) -> str:
    """The plot of a page."""
    own, best = found["own"], found["recommended"]
    groups: dict[str, list[Mapping[str, Any]]] = {
        "tried": [each for each in found["tried"] if each not in (own, best)],
        "recommended": [best] if best != own else [],
        "now" if best != own else "now, and recommended": [own],
    }
    return scatter(
        {
            name: [(round(held(each) / MIB, 1), each["processed"]) for each in members]
            for name, members in groups.items()
            if members
        },
        x="memory (MiB)",
        y="prefill tokens",
        title="prefill tokens and memory of each of the settings",
        names={"recommended": words_of(best["changes"])},
    )


def words_of(changes: Mapping[str, Any]) -> str:
    """The differences from the user's settings, as flags."""
    return " ".join(flag(name, value) for name, value in changes.items()) or "as it is"


def flag(name: str, value: object) -> str:
    """A setting as a flag of a command line."""
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{words}" if value else f"--no-{words}"
    return f"--{words} {value}"


def held(each: Mapping[str, Any]) -> int:
    """Bytes of the server's contexts and, at the peak, of its prompt cache and checkpoints."""
    return int(each["peak_bytes"]) + int(each["context_bytes"])


@dataclass(frozen=True, slots=True)
class _Plot:
    """Tokens upwards, bytes to the right, one sign for each setting."""

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
        yield f"{'prefill':>{MARGIN - 2}} +{'-' * width}"
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
        """The signs in the grid, and the legend of those visible."""
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
    """The tokens saved by the recommended settings, and their memory."""
    saved, cost = own["processed"] - best["processed"], held(best) - held(own)
    if not best["changes"]:
        return "The settings as they are: none of the settings tried prefills clearly fewer tokens."
    if best["failed"] < own["failed"]:
        answered = counted(own["failed"] - best["failed"], "request")
        return (
            f"{answered} more would be answered, with {_cost(cost)}: {words_of(best['changes'])}."
        )
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
        f"Best: {words_of(best['changes'])} prefills {part:.{part < 1:d}f} % fewer tokens "
        f"({best['processed']:,} instead of {own['processed']:,}), with {_cost(cost)}."
    )


def _cost(size: int) -> str:
    if not size:
        return "no more memory"
    number = mib(abs(size)) if mib(abs(size)) != mib(0) else f"under {mib(MIB // 10)}"
    return f"{number} MiB {'more' if size > 0 else 'less'}"
