"""Workloads of six requests that a search judges in a second of one processor.

The best of some runs counts, because a machine is never slow by itself. Time is the processor's
own, so that a busy machine counts for less.
"""

import time
from collections.abc import Sequence
from itertools import islice
from typing import Final

from rich.console import Console
from rich.table import Table

from cachesim.engines.profile import Profile
from cachesim.model.arithmetic import ArithmeticName
from cachesim.scenario.format import Scenario
from cachesim.testing.search import look, workloads
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
"""How many workloads a run plays: enough for their differences to even out."""


def rates(
    drawn: Sequence[Scenario], profile: Profile, arithmetic: ArithmeticName
) -> tuple[float, float]:
    """Workloads a second, on all layers and as a search plays them; both take turns."""
    best = [0.0, 0.0]
    for turn in range(RUNS + 1):
        for side in range(2):
            begin = time.process_time()
            for number, scenario in enumerate(drawn):
                look(side * number, scenario, profile, arithmetic=arithmetic)  # 0: on all layers
            if turn:  # the first is for getting warm
                best[side] = max(best[side], len(drawn) / (time.process_time() - begin))
    return best[0], best[1]


def run(out: Console) -> None:
    """Print the table: every model on the first profile, the first model on the others."""
    table = Table(title="search, workloads of six requests a second", title_style="")
    for head in ("profile", "model"):
        table.add_column(head)
    for arithmetic in COUNTS:
        table.add_column(f"{arithmetic}, all layers", justify="right")
        table.add_column(arithmetic, justify="right")
    pairs = [(PROFILES[0], model) for model in MODELS]
    for text, model in [*pairs, *((each, MODELS[0]) for each in PROFILES[1:])]:
        profile = Profile.parse(text)
        found = (
            each
            for arithmetic, count in COUNTS.items()
            for each in rates(
                list(islice(workloads(profile, model, shape=SIX), count)), profile, arithmetic
            )
        )
        table.add_row(text, model, *(f"{each:.0f}" for each in found))
    out.print(table)
