"""The float network beside llama.cpp itself: same weights, same prompts, the same logits.

The real server computes in float32, with flash attention off and keys and values kept as float32;
what is left is rounding. One thing is more: ggml looks GELU up in a table of half-precision
numbers, so the one preset with GELU is off by as much as such numbers are coarse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from cachesim.model.network import FloatNetwork
from cachesim.model.presets import PRESETS, preset
from cachesim.real.environment import EnvironmentUnavailableError
from cachesim.real.llama_cpp.drafts import compare_drafts
from cachesim.real.llama_cpp.gguf import write_model
from cachesim.real.llama_cpp.greedy import PRECISE, drawn_prompt, generate
from cachesim.real.llama_cpp.random_flags import PRESETS as LOADED_BY
from cachesim.real.llama_cpp.server import Played, RealServer, as_release, environment_for
from cachesim.real.llama_cpp.workload import Outcome, Release, Step
from cachesim.units import Array, Tokens

TOP: Final = 8
"""How many of the likeliest tokens are compared at each step."""

ENOUGH: Final = 0.99
"""The share of prompts that must agree token by token: now and then two logits nearly tie."""

TOLERANCE: Final = 1e-3
"""How far log probabilities may lie apart: a hundred times what float32 was seen to do."""

GELU_TOLERANCE: Final = 3e-2
"""The same for a model with GELU, because of ggml's table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How a preset's answers compare over some prompts."""

    preset: str
    equal: int  # prompts whose generated tokens are all the same
    distances: tuple[float, ...]  # per prompt, the largest distance of two log probabilities

    @property
    def tolerance(self) -> float:
        """What this preset may differ by."""
        return GELU_TOLERANCE if PRESETS[self.preset].activation == "gelu" else TOLERANCE

    @property
    def agrees(self) -> bool:
        """99 of 100 prompts with equal tokens, and no log probability too far off."""
        enough = self.equal >= ENOUGH * len(self.distances)
        return enough and max(self.distances) <= self.tolerance


def compare_logits(
    release: Release,
    names: Sequence[str],
    *,
    prompts: int = 100,
    length: int = 64,
    predict: int = 16,
    seed: int = 0,
) -> list[Agreement]:
    """Play the same prompts on the real server and on the network, for each preset."""
    found = []
    with RealServer(release) as real, TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.gguf"
            write_model(preset(name, seed=seed), path)
            network = FloatNetwork(preset(name, seed=seed))
            random = np.random.default_rng(seed)
            with real.started(PRECISE, path, probabilities=TOP) as server:
                pairs = [
                    _play(network, server, drawn_prompt(random, length), predict)
                    for _ in range(prompts)
                ]
            equal = sum(same for same, _ in pairs)
            distances = tuple(distance for _, distance in pairs)
            found.append(Agreement(preset=name, equal=equal, distances=distances))
    return found


def _play(
    network: FloatNetwork, server: Played, prompt: Tokens, predict: int
) -> tuple[bool, float]:
    """Whether both generate the same, and how far their log probabilities lie apart at most."""
    step = Step(name="prompt", prompt=prompt, predict=predict, cache_prompt=False)
    (outcome,) = server.ask((step,))
    mine, rows = generate(network, prompt, predict)
    return mine == outcome.reply, distance(outcome, mine, rows)


def distance(outcome: Outcome, reply: Tokens, rows: Sequence[Array]) -> float:
    """The largest distance among the likeliest tokens, as long as both generate the same."""
    largest = 0.0
    for top, theirs, mine, row in zip(outcome.top, outcome.reply, reply, rows, strict=True):
        apart = (abs(likelihood - float(row[token])) for token, likelihood in top.items())
        largest = max(largest, *apart)
        if theirs != mine:
            break
    return largest


def real_logits(*, release: str = "b9538", prompts: int = 100, seed: int = 0) -> int:
    """Compare the network's log probabilities with those of a real llama.cpp server.

    Example: cachesim real llama.cpp --logits --release b9538

    Parameters
    ----------
    release
        b9093, b9538 or b11549.
    prompts
        How many for each preset: 64 tokens, then 16 generated ones; as many for the MTP head.
    seed
        What weights and prompts are drawn from.

    """
    wheel = as_release(release)
    try:
        environment_for(wheel).ready()
    except EnvironmentUnavailableError as error:
        Console(stderr=True).print(f"NOT COMPARED: {error}", markup=False)
        return 1
    names = [name for name, releases in LOADED_BY.items() if wheel in releases]
    found = compare_logits(wheel, names, prompts=prompts, seed=seed)
    out = Console(soft_wrap=True)
    out.print(agreement_table(release, found))
    agree = all(each.agrees for each in found)
    if any(PRESETS[name].mtp_depth for name in names):
        pairs = compare_drafts(wheel, prompts=prompts, seed=seed)
        same = sum(real == expected for real, expected in pairs)
        out.print(f"drafts of the MTP head: counted alike on {same} of {len(pairs)} prompts")
        agree = agree and same >= ENOUGH * len(pairs)
    return 0 if agree else 1


def agreement_table(release: str, found: Sequence[Agreement]) -> Table:
    """One line per preset."""
    table = Table(title=f"log probabilities beside llama.cpp {release}", title_style="")
    for head in ("preset", "equal replies", "largest distance", "typical", "allowed", ""):
        table.add_column(head, justify="left" if head == "preset" else "right")
    for each in found:
        table.add_row(
            each.preset,
            f"{each.equal} of {len(each.distances)}",
            f"{max(each.distances):.1e}",
            f"{median(each.distances):.1e}",
            f"{each.tolerance:.0e}",
            "ok" if each.agrees else "DIFFERS",
        )
    return table
