"""Writes the figures of the page on a search's speed from the output of `benchmarks.search`.

    python -m benchmarks.search search.json
    python docs/make_search_speed.py search.json

Without a file it writes the page again from the numbers that are kept beside it. Each sentence
takes its numbers from the turns; one that they do not bear out is an error.
"""

import sys
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final

from measured import Bar, Measured, bars

from cachesim.report.charts import STYLE

ARITHMETICS: Final = ("ring", "float")

SERVER, MODEL = "llama.cpp@b11549+erase-equal", "hybrid"

Row = Mapping[str, Any]


def row_of(told: Mapping[str, Any], arithmetic: str) -> Row:
    """The row of the first server."""
    return next(
        row
        for row in told["rows"]
        if (row["profile"], row["model"], row["arithmetic"]) == (SERVER, MODEL, arithmetic)
    )


def sentences(told: Mapping[str, Any]) -> Iterator[str]:
    """The page's conclusions; one that the turns contradict raises."""
    rates = {arithmetic: median(row_of(told, arithmetic)["searched"]) for arithmetic in ARITHMETICS}
    yield (
        f"On hybrid, llama.cpp's workloads are judged at {rates['ring']:.0f} a second in ring and"
        f" {rates['float']:.0f} in float."
    )
    gains = {
        arithmetic: [
            median(row["searched"]) / median(row["whole"])
            for row in told["rows"]
            if row["arithmetic"] == arithmetic
        ]
        for arithmetic in ARITHMETICS
    }
    ring, float_ = (f"{min(gain):.2f} to {max(gain):.2f} times" for gain in gains.values())
    yield (
        "What a search leaves out, layers and steps that decide nothing, makes it"
        f" {ring} as fast in ring, and {float_} in float."
    )


def picture(told: Mapping[str, Any]) -> str:
    """For each arithmetic a bar for each profile and model."""
    plots = []
    for arithmetic in ARITHMETICS:
        title = f"{arithmetic}: workloads of six requests a second"
        rows = []
        for row in told["rows"]:
            if row["arithmetic"] == arithmetic:
                rate = median(row["searched"])
                low, high = min(row["searched"]), max(row["searched"])
                name = f"{row['profile']}, {row['model']}"
                rows.append(Bar(name, rate, low, high, f"{rate:.0f}"))
        plots.append(bars(title, rows))
    return "\n".join((f"<style>{STYLE}</style>", *plots, ""))


def written(told: Mapping[str, Any]) -> str:
    """The part of the page that is written here."""
    turns = len(told["rows"][0]["searched"])
    load = f", beside a load of {told['load']:g}" if "load" in told else ""
    measured = f"Python {told['python']}, NumPy {told['numpy']}, {turns} turns each{load}."
    lines = [measured, "", *(f"- {sentence}" for sentence in sentences(told))]
    return "\n".join(lines)


PAGE: Final = Measured(
    name="search-speed", maker="make_search_speed.py", written=written, picture=picture
)

if __name__ == "__main__":
    PAGE.write(sys.argv[1:])
