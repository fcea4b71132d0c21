"""Every flag of `mlx_lm.server` 0.32.2, and what becomes of it here."""

from collections.abc import Mapping
from typing import Final

from cachesim.engines.fields import Field, fields_of

_SAMPLING: Final = "sampling changes nothing that is stored, and is greedy here"

SOURCES: Final[Mapping[str, str]] = {"mlx_lm.server": "mlx_lm/server.py:main"}

FIELDS: Final[tuple[Field, ...]] = (
    *fields_of(
        "mlx_lm.server",
        simulated="""
            chat_template decode_concurrency draft_model kv_bits kv_group_size max_tokens
            num_draft_tokens prefill_step_size prompt_cache_bytes prompt_cache_size
            prompt_concurrency quantized_kv_start
        """,
        no_influence={
            _SAMPLING: "min_p temp top_k top_p",
            "it is about the machine, not about what is stored": (
                "allowed_origins host log_level pipeline port"
            ),
            "the model of the scenario stands in its place": "adapter_path model trust_remote_code",
        },
        differs={
            "say it with each request: chat_template_kwargs": "chat_template_args",
            "the tokenizer's own template stands in; name one with chat_template": (
                "use_default_chat_template"
            ),
        },
    ),
    *fields_of("a request", no_influence={_SAMPLING: "logit_bias temperature"}, flagless="*"),
    *fields_of(
        "mlx_lm.generate",
        differs={
            "mlx_lm.server has no such flag, and mlx_lm.generate stores nothing": "max_kv_size"
        },
    ),
)
"""The fields of a request, and of the other program, are those that are asked for by mistake."""
