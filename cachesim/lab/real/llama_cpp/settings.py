"""Differences of a comparison's settings from `llama-server -m model`, by the wheel's parser."""

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from cachesim.engines.llamacpp.family import FAMILY
from cachesim.lab.real.llama_cpp import worker
from cachesim.lab.real.llama_cpp.flags import PARAMETERS, WORDS, Abilities, parameters
from cachesim.lab.real.llama_cpp.server import QUIET, as_release, environment_for
from cachesim.lab.real.playing import Override, overrides_of
from cachesim.lab.real.worker_side import differences
from cachesim.typed import JsonObject

MODEL: Final = "model.gguf"

THREADS: Final = "an answer's tokens do not depend on the number of threads that compute them"

SIZES: Final = (
    "a default of these tools, named in their help; every tenth workload is run with the "
    "command line's own"
)

OVERRIDES: Final[Mapping[str, str]] = {
    "cpuparams.n_threads": THREADS,
    "cpuparams_batch.n_threads": THREADS,
    "speculative.draft.cpuparams.n_threads": THREADS,
    "speculative.draft.cpuparams_batch.n_threads": THREADS,
    "speculative.cpuparams.n_threads": THREADS,
    "speculative.cpuparams_batch.n_threads": THREADS,
    "default_template_kwargs": "no chat template of these tools reads `preserve_reasoning`",
    "fit_params": "the model's memory is not fitted to a GPU: there is none",
    "n_ctx": SIZES,
    "n_gpu_layers": "there is no GPU",
    "n_parallel": SIZES,
    "n_threads_http": "requests that arrive together are put in order by the comparison",
    "slot_save_path": "slot files need a folder; without one their requests are refused",
    "tensor_buft_overrides": "an empty list, closed by the parser or not",
    "verbosity": "what is logged decides nothing",
    "warmup": "a warm-up's cells are cleared before the first request",
    "simulator: parallel": SIZES,
    "simulator: ctx_size": SIZES,
}
"""Fields of `CommonParams`, and defaults of the simulator's options, that differ -> why."""


def overrides(name: str) -> list[Override]:
    """Settings that differ: of the server, and of the simulator's defaults."""
    release = as_release(name)
    values = parameters({}) | {
        "model.path": MODEL,
        "verbosity": QUIET,
        "slot_save_path": "slots/",
    }
    found = _configurations(release, values)
    rows = differences(found["started"], found["used"])
    return overrides_of((*rows, *_of_simulator(release, found["started"])), OVERRIDES)


def _configurations(release: str, values: JsonObject) -> dict[str, dict[str, str]]:
    python = environment_for(release).ready()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
    done = subprocess.run(
        [str(python), worker.__file__],
        input=json.dumps({"arguments": ["-m", MODEL], "values": values}) + "\n",
        capture_output=True,
        text=True,
        check=True,
        env=clean,
        timeout=120,
    )
    configurations: dict[str, dict[str, str]] = json.loads(done.stdout)
    return configurations


def _of_simulator(release: str, started: Mapping[str, str]) -> list[tuple[str, str, str]]:
    able, found = Abilities(release), list[tuple[str, str, str]]()
    for option in FAMILY.declared:
        flag = option.name
        ours: Any = FAMILY.default(option, release)
        if flag not in PARAMETERS or not isinstance(ours, bool | int | float) or flag in WORDS:
            continue
        known = [each for each in PARAMETERS[flag].split("|") if each in started]
        said = f"{ours:g}" if isinstance(ours, float) else str(ours)
        if able.has(flag) and known and started[known[0]] != said:
            found.append((f"simulator: {flag}", started[known[0]], said))
    return found
