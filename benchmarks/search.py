"""Workloads of six requests that a search judges in a second of one processor.

    python -m benchmarks search                    the table
    python -m benchmarks.search search.json        and its numbers, for docs/make_search_speed.py

The median turn counts. Time is the processor's own, so that a busy machine counts for less.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from cachesim.engines.family import Profile
from cachesim.model.arithmetic import ArithmeticName
from cachesim.scenario.format import Scenario
from cachesim.testing.search import trial_of, workloads
from cachesim.testing.workloads import Shape

SIX: Final = Shape(min_steps=6, max_steps=6)
RUNS: Final = 5

PROFILES: Final = (
    "llama.cpp@b11549+erase-equal",
    "ik_llama.cpp@8337e4cd3",
    "mlx-lm@0.32.2",
    "vllm@0.33.0",
    "sglang@0.5.23",
    "marconi@artifact",
)
MODELS: Final = ("hybrid", "dense", "swa", "recurrent", "hybrid-delta")

COUNTS: Final[dict[ArithmeticName, int]] = {"ring": 64, "float": 32}
"""Workloads of a run: enough for their differences to even out."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Workloads a second, turn by turn: on all layers, and as a search plays them."""

    profile: str
    model: str
    arithmetic: ArithmeticName
    whole: Sequence[float]
    searched: Sequence[float]


def rates(
    drawn: Sequence[Scenario], profile: Profile, model: str, arithmetic: ArithmeticName
) -> Rates:
    """Play the same workloads in turns."""
    turns: tuple[list[float], list[float]] = ([], [])
    for turn in range(RUNS + 1):
        for side in range(2):
            begin = time.process_time()
            for number, scenario in enumerate(drawn):
                trial_of(
                    side * number, scenario, profile, arithmetic=arithmetic
                )  # 0: on all layers
            if turn:  # the first is for getting warm
                turns[side].append(len(drawn) / (time.process_time() - begin))
    return Rates(str(profile), model, arithmetic, *turns)


def measured() -> Iterator[Rates]:
    """Every model on the first profile, the first model on the others."""
    pairs = [(PROFILES[0], model) for model in MODELS]
    for text, model in [*pairs, *((each, MODELS[0]) for each in PROFILES[1:])]:
        profile = Profile.parse(text)
        for arithmetic, count in COUNTS.items():
            drawn = list(islice(workloads(profile, model, shape=SIX), count))
            yield rates(drawn, profile, model, arithmetic)


def told(found: Sequence[Rates]) -> dict[str, Any]:
    """The rates of every turn, and where they were measured, for docs/make_search_speed.py."""
    rows = [
        asdict(each)
        | {side: [round(rate, 1) for rate in getattr(each, side)] for side in ("whole", "searched")}
        for each in found
    ]
    load = {"load": round(os.getloadavg()[0], 1), "processors": os.cpu_count()}
    return {"python": platform.python_version(), "numpy": np.__version__, **load, "rows": rows}


def run(out: Console, *, file: Path | None = None) -> None:
    """Print the table; its numbers are kept where a file is named."""
    table = Table(title="search, workloads of six requests a second", title_style="")
    for head in ("profile", "model", "arithmetic"):
        table.add_column(head)
    for head in ("all layers", "as searched", "least to most"):
        table.add_column(head, justify="right")
    found = []
    for each in measured():
        found.append(each)
        medians = (f"{median(turns):.0f}" for turns in (each.whole, each.searched))
        spread = f"{min(each.searched):.0f}-{max(each.searched):.0f}"
        table.add_row(each.profile, each.model, each.arithmetic, *medians, spread)
    out.print(table)
    if file is not None:
        file.write_text(json.dumps(told(found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(Console(width=120, highlight=False), file=Path(sys.argv[1]) if sys.argv[1:] else None)
