"""Writes the figures of the page on speed from the output of `benchmarks.model`.

    python -m benchmarks.model speed.json
    python docs/make_speed.py speed.json

Without a file it writes the page again from the numbers that are kept beside it. Each sentence
takes its numbers from the turns; one that they do not bear out is an error.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from measured import Bar, Measured, bars, hold

from cachesim.report.charts import STYLE

LONG: Final = 1_000
"""Tokens of the prefill that the page tells of."""

NARROW: Final = frozenset({"recurrent", "hybrid-swa"})
"""Presets whose layers look at a few tokens only."""

EVEN: Final = 1.1
"""Up to which a token after a long prompt takes as long as one after a short."""


@dataclass(frozen=True, slots=True)
class Column:
    """One measurement: seconds, preset by preset, turn by turn, on both sides."""

    name: str
    tokens: int
    ours: Mapping[str, Sequence[float]]
    theirs: Mapping[str, Sequence[float]]

    def times(self, preset: str) -> float:
        """The multiple of llama.cpp's speed, by the median turns."""
        return median(self.theirs[preset]) / median(self.ours[preset])

    def spread(self, preset: str) -> tuple[float, float]:
        """The least and the most of that among the turns."""
        turns = zip(self.theirs[preset], self.ours[preset], strict=True)
        times = [theirs / ours for theirs, ours in turns]
        return min(times), max(times)


def columns(told: Mapping[str, Any]) -> tuple[Column, Column, Column]:
    """A prefill of 1,000, and decoding after 100 tokens and after 1,000."""
    at = told["prefills"].index(LONG)
    named = [(f"prefill of {LONG:,}", LONG, at)] + [
        (f"decode after {count:,}", told["decoded"], len(told["prefills"]) + index)
        for index, count in enumerate(told["after"])
    ]

    def side(name: str, column: int) -> dict[str, list[float]]:
        rows = (row for row in told["rows"] if row["side"] == name)
        return {row["preset"]: [turn[column] for turn in row["turns"]] for row in rows}

    prefill, short, long = (
        Column(name, tokens, side("float", column), side("llama.cpp", column))
        for name, tokens, column in named
    )
    return prefill, short, long


def sentences(told: Mapping[str, Any]) -> Iterator[str]:
    """The page's conclusions; one that the turns contradict raises."""
    prefill, short, long = columns(told)
    presets = list(prefill.ours)
    least, second = sorted(presets, key=prefill.times)[:2]
    yield (
        f"A prefill of {LONG:,} tokens has {prefill.times(least):.2f} times llama.cpp's speed on"
        f" {least}, and at least {prefill.times(second):.2f} times on every other preset."
    )
    least = min(presets, key=short.times)
    yield (
        f"A token decoded after 100 takes at most"
        f" {1 / short.times(least):.2f} times as long as llama.cpp's; that is on {least}."
    )
    wide = [preset for preset in presets if preset not in NARROW]
    least = min(wide, key=long.times)
    hold(
        fact=long.times(least) >= 1,
        what="a decode after a long prompt has llama.cpp's speed where a layer attends to all",
    )
    yield (
        f"After {LONG:,} tokens every preset with full attention decodes at least"
        f" {long.times(least):.2f} times as fast as llama.cpp."
    )
    later = [median(long.ours[each]) / median(short.ours[each]) for each in sorted(NARROW)]
    hold(fact=max(later) < EVEN, what="a long prompt costs states and windows nothing")
    yield (
        f"On {' and '.join(sorted(NARROW))} a token takes at most {max(later):.2f} times as long"
        f" after {LONG:,} tokens as after 100."
    )


def picture(told: Mapping[str, Any]) -> str:
    """A bar for each preset and column, a whisker from the least turn to the most, a line at 1."""
    return "\n".join((f"<style>{STYLE}</style>", *map(bars_of, columns(told)), ""))


def bars_of(column: Column) -> str:
    """The bars of one column."""
    title = f"{column.name}: times llama.cpp's speed"
    rows = []
    for preset in column.ours:
        times, (low, high) = column.times(preset), column.spread(preset)
        rows.append(Bar(preset, times, low, high, f"{times:.2f}"))
    return bars(title, rows, 1.0)


def written(told: Mapping[str, Any]) -> str:
    """The part of the page that is written here."""
    measured = (
        f"Measured beside llama.cpp {told['release']}, with Python {told['python']} and NumPy"
        f" {told['numpy']}, {len(told['rows'][0]['turns'])} runs each; the medians of the runs are"
        f" compared."
    )
    lines = [measured, "", *(f"- {sentence}" for sentence in sentences(told))]
    return "\n".join(lines)


PAGE: Final = Measured(name="speed", maker="make_speed.py", written=written, picture=picture)

if __name__ == "__main__":
    PAGE.write(sys.argv[1:])
