"""Arguments of a comparison that differ from those of `Llama(model_path)`."""

from collections.abc import Mapping
from typing import Final

from cachesim.engines.llama_cpp_python.family import FAMILY
from cachesim.lab.real.llama_cpp_python.compare import RealInstances
from cachesim.lab.real.playing import Override

LOGITS: Final = (
    "logits are compared more closely; rules know sizes alone, and scenarios are played with f16"
)
OVERRIDES: Final[Mapping[str, str]] = {
    "temperature": "the likeliest token is the same in each run; rules know tokens alone",
    "n_threads": "sums in one order: logits are the same in each run",
    "n_threads_batch": "as n_threads",
    "type_k": LOGITS,
    "type_v": LOGITS,
    "verbose": "lines on standard error; `cachesim why` reads them",
    "swa_full": "None leaves llama.cpp's default, which is True",
    "simulator: swa_full": "None leaves llama.cpp's default, which is True",
    "simulator: draft_model": "none is None",
    "simulator: type_k": "None leaves llama.cpp's default, which is f16",
    "simulator: type_v": "None leaves llama.cpp's default, which is f16",
}
"""Arguments, and defaults of the simulator's options, that differ -> why no result does."""

PRETENDED: Final = {
    "model_path": (
        "a model",
        "a tiny one with random weights, of the same layers",
        "caches know shapes and tokens alone",
    ),
    "input_ids": (
        "uninitialised memory",
        "-1, before the first call",
        "a draft's lookup would read chance where nothing was written",
    ),
    "sample": (
        "the sampled token",
        "the token of the workload's reply, where it has one",
        "half of the drawn calls have none, and sample",
    ),
    "cache_dir": (
        ".cache/llama_cache",
        "an empty folder for each workload",
        "states of another model would be loaded",
    ),
}
"""Settings without an argument: the package's, ours, why no result depends on it."""


def overrides(release: str) -> list[Override]:
    """Arguments that differ, and defaults of the simulator."""
    with RealInstances(release) as real:
        started, used = real.settings()
    rows = [(name, started[name], used[name]) for name in started if started[name] != used[name]]
    for option in FAMILY.declared:
        ours = str(FAMILY.default(option, release))
        if option.name in started and started[option.name] != ours:
            rows.append((f"simulator: {option.name}", started[option.name], ours))
    reasons = [(name, one, other, OVERRIDES.get(name, "")) for name, one, other in rows]
    pretended = [(name, *rest) for name, rest in PRETENDED.items()]
    return [
        Override(field=name, default=default, ours=ours, why=why)
        for name, default, ours, why in (*pretended, *reasons)
    ]
