"""Tiny models of mlx-lm's own classes, for the real server; runs in a release's environment."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Real: TypeAlias = Any  # modules, classes and objects of the release: known only when it runs

COMMON = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}

LLAMA = {"model_type": "llama", "tie_word_embeddings": False}
GEMMA3 = {
    "model_type": "gemma3_text",
    "query_pre_attn_scalar": 8,
    "sliding_window_pattern": 2,
    "rope_local_base_freq": 10000.0,
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "num_experts": 0,
    "num_experts_per_tok": 1,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 32,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "partial_rotary_factor": 1.0,
    "max_position_embeddings": 4096,
    "full_attention_interval": 2,
}
MODELS = {
    "attn": ("llama", LLAMA),
    "swa": ("gemma3_text", GEMMA3),
    "hyb": ("qwen3_next", QWEN3_NEXT),
}


def arguments_of(model: Mapping[str, Any], vocabulary: int) -> tuple[str, Mapping[str, Any]]:
    """The module of a model, and what its class is built with."""
    if "module" in model:
        return model["module"], model["arguments"]
    name, own = MODELS[model["kind"]]
    window = {"sliding_window": model["window"]} if "window" in model else {}
    return name, {**COMMON, "vocab_size": vocabulary, **own, **window}


def build(model: Mapping[str, Any], vocabulary: int, on_call: Callable[[int, int], None]) -> Real:
    """A model in float32 that tells of every call, with given weights or random ones."""
    mx = importlib.import_module("mlx.core")
    name, arguments = arguments_of(model, vocabulary)
    module = importlib.import_module(f"mlx_lm.models.{name}")
    args = module.ModelArgs.from_dict(arguments)

    class Watched(module.Model):  # type: ignore[name-defined, misc]
        """The release's own model, watched."""

        def __call__(self, inputs: Real, *rest: Real, **more: Real) -> Real:
            on_call(*inputs.shape)
            return super().__call__(inputs, *rest, **more)

    mx.random.seed(7)
    made = Watched(args)
    if "weights" in model:
        made.load_weights(list(mx.load(model["weights"]).items()), strict=True)
    else:
        _forget_slowly(mx, made)
    made.eval()
    mx.eval(made.parameters())
    return made


def _forget_slowly(mx: Real, model: Real) -> None:
    """States that forget slowly, so that a wrong one stays wrong."""
    for _, module in model.named_modules():
        if "A_log" in module:
            module.A_log = mx.full(module.A_log.shape, -4.0)
