"""The configuration of a server, by SGLang's own `ServerArgs` of a workload's flags.

`ServerArgs` with a model's `config.json` and the flags that a workload names is resolved by the
release's own code, as when a server starts on a machine with one GPU. `OVERRIDES` lists later
changes. Kernels, quantizations, models, and the outside packages that only they need are empty; the
GPU only has a name, a size and a capability. Runs in a worker apart from the scheduler's.
"""

import dataclasses
import importlib
import importlib.machinery
import json
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from cachesim.prove import worker_side
from conformance.real.sglang import hicache_worker, stand_ins
from conformance.real.vllm.models import STARTED as HYBRIDS

_LAYERS: Final = 4

_WINDOWS: Final[dict[str, Any]] = HYBRIDS["dense"] | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": _LAYERS,
    "layer_types": ["sliding_attention", "full_attention"] * (_LAYERS // 2),
    "sliding_window": 128,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
}

STARTED: Final[dict[str, dict[str, Any]]] = {
    "full": HYBRIDS["dense"],
    "eagle": HYBRIDS["dense"] | {"architectures": ["LlamaForCausalLMEagle"]},
    "window": _WINDOWS,
    "mamba": HYBRIDS["hybrid"],
    "window-mamba": HYBRIDS["hybrid"]
    | {"is_hybrid_swa": True, "hybrid_layer_pattern": [1, 1, 1, 0], "sliding_window": 128},
}
"""`config.json` of each kind of model, and of a drafter."""

EMPTY: Final = (
    "sglang.jit_kernel",
    "sglang.kernels",
    "sglang.srt.entrypoints",
    "sglang.srt.layers",
    "sglang.srt.models",
)
"""Parts of the release that hold kernels or weights."""

NAME: Final = "NVIDIA H100 80GB HBM3"
MEMORY: Final = 80 << 30
"""Bytes of the GPU that is pretended to be there."""

CAPABILITY: Final = (9, 0)


def _is_missing(name: str) -> bool:
    """True for imports of the release itself, not for PyTorch's lookups."""
    top = name.partition(".")[0]
    if top == "sglang":
        return name.startswith(EMPTY)
    return importlib.machinery.PathFinder.find_spec(top) is None and _importer() == "sglang"


def _importer() -> str:
    frame: worker_side.Real = sys._getframe(1)
    while frame is not None:
        named = frame.f_globals.get("__name__", "")
        if not named.startswith(("importlib", "cachesim", "conformance", "_frozen")):
            return str(named.partition(".")[0])
        frame = frame.f_back
    return ""


def install(root: Path) -> None:
    """Make `import sglang.srt.server_args` work from an unpacked wheel."""
    torch: worker_side.Real = importlib.import_module("torch")
    transformers: worker_side.Real = importlib.import_module("transformers")
    for name in ("AutoProcessor", "AutoTokenizer", "AutoConfig"):  # before anything is empty
        getattr(transformers, name)
    importlib.import_module("transformers.processing_utils")
    images = worker_side.Stub(register=lambda *_, **__: None)  # they need another package
    vars(sys.modules["transformers"]).update(AutoImageProcessor=images)
    importlib.import_module("torch.utils.cpp_extension")
    torch.compile = stand_ins.compile_nothing
    vars(torch.cuda).update(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_device_name=lambda *_: NAME,
        get_device_capability=lambda *_: CAPABILITY,
        mem_get_info=lambda *_: (MEMORY, MEMORY),
        get_device_properties=lambda *_: worker_side.Stub(
            name=NAME, major=9, minor=0, total_memory=MEMORY, multi_processor_count=132
        ),
    )
    torch.version.cuda = "12.9"
    # It writes a processor of logits as text, which nobody reads here.
    sys.modules["dill"] = dill = ModuleType("dill")
    vars(dill).update(dumps=lambda _: b"")
    sys.path.insert(0, str(root))
    sys.meta_path.insert(0, worker_side.EmptyModules(_is_missing))
    stand_ins.name_chunk_size(root)
    common: worker_side.Real = importlib.import_module("sglang.srt.utils.common")
    common.get_nvgpu_memory_capacity = lambda: MEMORY >> 20


FLAGS: Final = {
    "page_size": "page",
    "chunked_prefill_size": "chunk",
    "max_prefill_tokens": "max_prefill",
    "max_running_requests": "max_running",
    "max_total_tokens": "tokens",
    "max_mamba_cache_size": "states",
    "mamba_scheduler_strategy": "strategy",
    "mamba_radix_cache_strategy": "strategy",
    "mamba_track_interval": "interval",
    "mamba_max_states_per_path": "cap",
    "radix_eviction_policy": "policy",
    "enable_mixed_chunk": "mixes",
    "enable_streaming_session": "streams",
    "schedule_policy": "schedule",
    "max_loras_per_batch": "loras",
    "enable_priority_scheduling": "prioritizes",
    "schedule_low_priority_values_first": "low_first",
    "priority_scheduling_preemption_threshold": "threshold",
    "disable_priority_preemption": "keeps_running",
    "retraction_policy": "retraction",
    "context_length": "max_len",
    "strip_thinking_cache": "strips",
    "prefill_max_requests": "most_prefill",
    "schedule_conservativeness": "conservativeness",
}
"""Flag of `ServerArgs` -> its name in a workload."""


DRAFTS: Final = {
    "steps": "speculative_num_steps",
    "topk": "speculative_eagle_topk",
    "tokens": "speculative_num_draft_tokens",
}


class ConfigFactory:
    """Configurations built by a release's own code."""

    def __init__(self, root: Path) -> None:
        install(root)
        self.arguments: worker_side.Real = importlib.import_module(
            "sglang.srt.server_args"
        ).ServerArgs
        self._folder = worker_side.folder_of(STARTED)

    def model(self, name: str) -> str:
        return str(Path(self._folder.name, name))

    def flags(self, config: worker_side.Json) -> dict[str, worker_side.Real]:
        given = {flag: config[name] for flag, name in FLAGS.items() if name in config}
        given["model_path"] = self.model(config["kind"])
        given["max_running_requests"] = config.get("requested", config.get("max_running"))
        if config.get("strategy") == "no_buffer" or config.get("serial"):  # 0.5.23 asks for it
            given["disable_overlap_schedule"] = True
        if "window_tokens" in config:
            given["swa_full_tokens_ratio"] = config["window_tokens"] / config["tokens"]
        if config.get("eagle"):
            given["speculative_algorithm"] = "EAGLE"
            given["speculative_draft_model_path"] = self.model("eagle")
        for name, flag in DRAFTS.items():
            if name in config.get("drafts", {}):
                given[flag] = config["drafts"][name]
        given |= hicache_worker.flags(config.get("host"))
        return given

    def answer(self, wanted: worker_side.Json) -> worker_side.Json:
        """The names of all fields, or the configuration of a workload's flags."""
        return self.names() if "names" in wanted else self.resolved(wanted)

    def names(self) -> list[str]:
        """The fields that the release declares."""
        return sorted(
            getattr(self.arguments, "__struct_fields__", None)
            or [field.name for field in dataclasses.fields(self.arguments)]
        )

    def resolved(self, config: worker_side.Json) -> dict[str, worker_side.Json]:
        """Every field of the configuration that a server would start with."""
        args = worker_side.fitting(self.arguments, **self.flags(config))
        if hasattr(args, "resolve_once"):
            args.resolve_once()
            found = args.resolved_dict()
        else:  # 0.5.9 resolves when it is made
            found = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
        found |= {
            "random_seed": None,  # drawn at every start
            "mamba_cache_chunk_size": self._chunk_size(args, config),
        }
        plain = json.loads(json.dumps(found, default=str))
        folder = self._folder.name
        return {
            name: value.replace(f"{folder}/", "") if isinstance(value, str) else value
            for name, value in plain.items()
        }

    def _chunk_size(self, args: worker_side.Real, config: worker_side.Json) -> int | None:
        if "mamba" not in config["kind"]:
            return None
        if hasattr(self.arguments, "mamba_cache_chunk_size"):
            return int(args.mamba_cache_chunk_size)
        overrides: worker_side.Real = importlib.import_module("sglang.srt.arg_groups.overrides")
        return int(overrides.mamba_cache_chunk_size(args))


def main() -> None:
    """Answer flags until the input ends."""
    answers = worker_side.own_output()
    logging.disable(logging.CRITICAL)
    start = ConfigFactory(Path(sys.argv[1]))
    worker_side.answer_lines(answers, start.answer)
