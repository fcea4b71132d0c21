"""Tiny models as configurations of real classes, by what a workload calls their layers."""

from typing import Any, Final

from cachesim.real.vllm.models import STARTED as HYBRIDS

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
