"""Differences of a comparison's settings from `mlx_lm.server --model MODEL`, by its parser."""

from collections.abc import Mapping
from typing import Final

from cachesim.engines.mlx_lm.family import FAMILY
from cachesim.lab.real.mlx_lm.process import RealProcess
from cachesim.lab.real.mlx_lm.server import WORKER
from cachesim.lab.real.settings import Override

OVERRIDES: Final[Mapping[str, str]] = {
    "port": "any free port",
    "simulator: chat_template": "empty is the tokenizer's own, which is chatml in these tools",
}
"""Flags, and defaults of the simulator's options, that differ from the parser's -> why."""

PRETENDED: Final = {
    "the model": (
        "that of the command line",
        "a tiny one of the same class with random weights, and a tokenizer of words",
        "caches and stores know shapes and tokens alone",
    ),
    "the sampler": (
        "make_sampler, by a request's temperature",
        "a sampler that returns the reply of the workload",
        "a workload does not depend on weights; log probabilities are the model's own",
    ),
    "TimeBudget": (
        "seconds of prefill or decoding before the generation thread looks for requests",
        "a count of turns, which a workload names",
        "which turn a request is read in would be chance",
    ),
    "Queue": (
        "requests in the order in which HTTP threads get there",
        "requests in the order of the workload",
        "the order would be chance",
    ),
    "LRUPromptCache": (
        "the store",
        "the same, watched",
        "what is inserted and fetched is written down, and nothing else is done",
    ),
}
"""Settings without a flag: a server's default, ours, why no result depends on it."""


def overrides(release: str) -> list[Override]:
    """Flags that differ: of the server, and of the simulator's defaults."""
    with RealProcess(release, WORKER, quiet=True) as real:
        started, used = real.order({"settings": {}})
    rows = [(flag, started[flag], used[flag]) for flag in started if started[flag] != used[flag]]
    for option in FAMILY.declared:
        ours = str(FAMILY.default(option, release))
        if option.name in started and started[option.name] != ours and not option.internal:
            rows.append((f"simulator: {option.name}", started[option.name], ours))
    pretended = [
        Override(field=field, default=default, ours=ours, why=why)
        for field, (default, ours, why) in PRETENDED.items()
    ]
    found = [
        Override(field=field, default=default, ours=ours, why=OVERRIDES.get(field, ""))
        for field, default, ours in rows
    ]
    return [*pretended, *found]
