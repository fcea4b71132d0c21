"""A server's flags as the wheel's parameters."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from cachesim.engines.llamacpp.options import TRAINED_CONTEXT, Drafting, Ngrams
from cachesim.errors import OptionError
from cachesim.typed import JsonObject, Value

PARAMETERS: Final[Mapping[str, str]] = {
    "parallel": "n_parallel",
    "ctx_size": "n_ctx",
    "batch_size": "n_batch",
    "ubatch_size": "n_ubatch",
    "kv_unified": "kv_unified",
    "kv_unified_per_slot": "kv_unified_per_slot",
    "ctx_checkpoints": "n_ctx_checkpoints",
    "checkpoint_min_step": "checkpoint_min_step",
    "checkpoint_every_nt": "checkpoint_every_nt",
    "cache_ram": "cache_ram_mib",
    "cache_reuse": "n_cache_reuse",
    "cache_idle_slots": "cache_idle_slots|clear_idle",
    "cache_prompt": "cache_prompt",
    "context_shift": "ctx_shift",
    "slot_prompt_similarity": "slot_prompt_similarity",
    "swa_full": "swa_full",
    "keep": "n_keep",
    "predict": "n_predict",
    "cache_type_k": "cache_type_k",
    "cache_type_v": "cache_type_v",
    "flash_attn": "flash_attn_type",
    "spec_type": "speculative.types",
    "spec_draft_n_max": "speculative.draft.n_max",
    "spec_draft_n_min": "speculative.draft.n_min",
    "spec_draft_p_min": "speculative.draft.p_min",
    "spec_draft_model": "speculative.draft.mparams.path",
    "lora": "lora_adapters",
    "model_draft": "speculative.draft.mparams.path",
    "embedding": "embedding",
    "pooling": "pooling_type",
    "sleep_idle_seconds": "sleep_idle_seconds",
}
"""Flag -> the wheel's parameter; older names, for older wheels, stand behind a bar."""

SPECULATION: Final[Mapping[str, str]] = {
    "none": "NONE",
    "draft-simple": "DRAFT_SIMPLE",
    "draft-mtp": "DRAFT_MTP",
    **{each: each.upper().replace("-", "_") for each in get_args(Ngrams)},
}

SURROUNDINGS: Final[Mapping[str, Any]] = {
    "n_ctx": 4096,
    "n_batch": 2048,
    "n_ubatch": 512,
    "warmup": False,
    "fit_params": False,
    "n_gpu_layers": 0,
    "n_threads_http": 2,
    "cpuparams.n_threads": 1,
    "cpuparams_batch.n_threads": 1,
}
"""Flags that no workload sets: no warm-up, no fitting, one thread."""


NO_FLAGS: Final[Mapping[str, Any]] = {"parallel": -1, "ctx_size": 0}
"""Flags of a server that is started with its model alone, where these tools set other values."""


def parameters(options: Mapping[str, Any], folder: Path = Path()) -> JsonObject:
    """The wheel's parameters for a server's flags; files of adapters lie in a folder."""
    values: JsonObject = dict(SURROUNDINGS)
    for flag, value in options.items():
        if flag not in PARAMETERS:
            msg = f"the real server is not driven with {flag!r}; there are {', '.join(PARAMETERS)}"
            raise OptionError(msg)
        values[PARAMETERS[flag]] = _as_parameter(flag, value, folder)
    return values


def adapter_names(options: Mapping[str, Any]) -> list[str]:
    """The adapters that a server is started with."""
    return [each.strip() for each in str(options.get("lora", "")).split(",") if each.strip()]


def adapter_file(folder: Path, name: str) -> Path:
    """The path of an adapter's file."""
    return folder / f"adapter-{name}.gguf"


def model_file(folder: Path, preset: str, window: int = 0) -> Path:
    """The path of a model's file."""
    return folder / f"{preset}-{window}.gguf"


WORDS: Final[Mapping[str, Callable[[Value], Value]]] = {
    "pooling": lambda value: f"enum:llama_pooling_type.LLAMA_POOLING_TYPE_{value.upper()}",
    "cache_type_k": lambda value: f"enum:ggml_type.GGML_TYPE_{value.upper()}",
    "cache_type_v": lambda value: f"enum:ggml_type.GGML_TYPE_{value.upper()}",
    "flash_attn": lambda value: (
        f"enum:llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_{'EN' if value else 'DIS'}ABLED"
    ),
}
"""Flags whose values have names of their own in the wheel."""


def _as_parameter(flag: str, value: Value, folder: Path) -> Value:
    if flag == "lora":
        return [
            {"adapter": str(adapter_file(folder, each))} for each in adapter_names({flag: value})
        ]
    if flag == "spec_type":
        name = f"COMMON_SPECULATIVE_TYPE_{SPECULATION[value]}"
        return [f"enum:common_speculative_type.{name}"]
    if flag == "model_draft":
        return str(model_file(folder, value))
    return WORDS[flag](value) if flag in WORDS else value


def effective_ubatch(values: Mapping[str, Any]) -> int:
    """The ubatch size that a server started with these parameters works with."""
    context = int(values["n_ctx"]) or TRAINED_CONTEXT
    return min(context, *(int(values[each]) for each in ("n_batch", "n_ubatch")))


def drafting(options: Mapping[str, Any]) -> bool:
    """True where a companion drafts; what n-grams propose is the server's own affair."""
    return options.get("spec_type", "none") in get_args(Drafting)
