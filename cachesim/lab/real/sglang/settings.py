"""The configuration that SGLang's scheduler is compared with: the release's own, and exceptions.

`settings_worker` resolves a workload's flags by the release's `ServerArgs`, in a process beside the
scheduler's. `OVERRIDES` are the fields that the scheduler is given otherwise, `PRETENDED` is what
is no field.
"""

import re
from dataclasses import replace
from types import TracebackType
from typing import Final

from cachesim.lab.real.settings import Override
from cachesim.lab.real.unpacked import UnpackedWheel
from cachesim.lab.real.vllm.scheduler import PACKAGES
from cachesim.lab.real.worker_process import WorkerProcess
from cachesim.typed import Json

WORKER: Final = "cachesim.lab.real.sglang.settings_worker"

KEPT: Final = re.compile(
    r"sglang/((?!multimodal_gen/|test/|benchmark/|kernels/|srt/models/).*"
    r"|kernels/ops/attention/fla/chunk_delta_h)\.py"
)
"""Files of a wheel that its configuration imports, and the one with a kernel's chunk size."""

OVERRIDES: Final = {
    "device": "the scheduler runs on the CPU; it only places its tensors there",
    "disable_overlap_schedule": (
        "results do depend on it: simulator and real scheduler both run `event_loop_normal`, which "
        "takes each batch's tokens before it forms the next; with overlap, prompts are inserted "
        "and finished requests free their slots one batch later"
    ),
    "attention_backend": (
        "0.5.9 writes the slots of a request by a Triton kernel, or for this backend in Python"
    ),
    "pp_max_micro_batch_size": (
        "the worker of the model sets it to the requests that run at once, before the scheduler "
        "reads it"
    ),
    "speculative_algorithm": (
        "no drafter runs, so the scheduler is given none; the tree has pairs of tokens as with it"
    ),
    "hicache_io_backend": "copies move no bytes here; slots and queues are the same with each",
    "hicache_mem_layout": "the order of bytes in a buffer that is not there",
}
"""Fields of `ServerArgs` that differ from a server's start -> why."""

PRETENDED: Final = {
    "torch.cuda": (
        "a GPU",
        "the name, the memory (80 GB) and the capability of an H100",
        "the scheduler runs on the CPU; a GPU picks default budgets, which workloads name",
    ),
    "layers, kernels, models": (
        "their code",
        "empty modules",
        "the configuration reads a model's `config.json` and no weight",
    ),
    "max_total_num_tokens, size of the state cache": (
        "what the GPU has free after loading",
        "a workload's",
        "max_total_tokens and max_mamba_cache_size mean the same",
    ),
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": (
        "rust from 0.5.19 on",
        "python, or rust with `--tree-core rust`",
        "both are compared; what they decide is the same",
    ),
    "HostKVCache": (
        "buffers in the host's memory",
        "the same slots without buffers",
        "sizes, free lists and queues are the release's own",
    ),
    "HiCacheStorage, its threads": (
        "files, and threads of their own",
        "a dictionary, and a turn of each thread's function for each pass",
        "a workload names how long a transfer takes",
    ),
    "grammars, metrics, output": (
        "their managers",
        "none",
        "no request of a workload asks for a grammar; what is counted decides nothing",
    ),
}
"""Settings outside `ServerArgs`: a server's default, ours, why no result depends on it."""


class ConfiguredProcess(WorkerProcess):
    """A scheduler that is handed the configuration of a server's start with each workload."""

    def __init__(self, scheduler: WorkerProcess, core: UnpackedWheel, flags: str) -> None:
        wheel = configuration_of(core)
        wheel.ready()
        name = f"{scheduler.name}, its configuration"
        super().__init__(name, wheel.python, flags, WORKER, str(wheel.folder))
        self._scheduler = scheduler

    def order(self, wanted: Json) -> Json:
        if "config" in wanted:
            made = super().order(wanted["config"])
            if "raised" in made:
                return made
            wanted = wanted | {"config": wanted["config"] | {"server": made["results"]}}
        return self._scheduler.order(wanted)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scheduler.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)


def configuration_of(core: UnpackedWheel) -> UnpackedWheel:
    """The files of the same wheel that its configuration imports."""
    name = f"{core.name.partition('-scheduler')[0]}-python"
    return replace(core, name=name, kept=KEPT, packages=PACKAGES)


def overrides_of(configs: list[Json], process: WorkerProcess) -> list[Override]:
    """Differences of workloads' configurations from those of a server's start."""
    found: dict[str, Override] = {}
    for config in configs:
        made = process.order({"config": config, "settings": True})
        if "raised" in made:
            raise ValueError(made["raised"])
        for field, default, ours in made["results"]:
            why = OVERRIDES.get(field, "")
            found.setdefault(field, Override(field=field, default=default, ours=ours, why=why))
    pretended = [
        Override(field=field, default=default, ours=ours, why=why)
        for field, (default, ours, why) in PRETENDED.items()
    ]
    return [*pretended, *(found[field] for field in sorted(found))]
