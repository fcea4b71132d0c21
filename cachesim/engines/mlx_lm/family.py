"""`Family` value of mlx-lm's server."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.mlx_lm.families import family_of
from cachesim.engines.mlx_lm.options import FIELDS, MlxOptions
from cachesim.engines.mlx_lm.profiles import PATCHES, RELEASES, MlxRules

_SAMPLING: Final = "sampling changes nothing that is stored, and is greedy here"
_PLACE: Final = "it is about the machine, not about what is stored"
_MODEL: Final = "the model of the scenario stands in its place"
ELSEWHERE: Final = {
    **dict.fromkeys(("temp", "temperature", "top_p", "top_k", "min_p", "logit_bias"), _SAMPLING),
    **dict.fromkeys(("host", "port", "log_level", "allowed_origins", "pipeline"), _PLACE),
    **dict.fromkeys(("model", "adapter_path", "trust_remote_code"), _MODEL),
    "chat_template_args": "say it with each request: chat_template_kwargs",
    "max_kv_size": "mlx_lm.server has no such flag: only mlx_lm.generate, which stores nothing",
    "use_default_chat_template": "name a template with chat_template",
}
"""Flags and fields of the real server that are not simulated, and why."""

FAMILY: Final[Family[MlxRules, MlxOptions]] = Family(
    name="mlx-lm",
    about="mlx_lm.server: prompt trie, cache classes per layer, batches",
    repository="ml-explore/mlx-lm",
    room=__package__,
    engine=f"{__package__}.engine:MlxLm",
    releases=RELEASES,
    patches=PATCHES,
    options=MlxOptions,
    fields=FIELDS,
    has_slots=False,
    may_decline=False,
    renders_chats=True,
    check_model=family_of,
    records_provenance="provenance",
    asks={"seed": 0},
    draft_flag="draft_model",
    reply_cost=(7e-4, 6e-8),
    program="mlx_lm.server",
    swept={"prompt_cache_size": (1, 2, 5, 10, 20, 50, 100)},
    hunted=(
        {},
        {"prompt_concurrency": 2, "prefill_step_size": 8},
        {"prompt_concurrency": 2, "prefill_step_size": 4},
    ),
    elsewhere=ELSEWHERE,
    exercised={
        "prompt-cache-evicted": "eviction",
        "store-trimmed": "eviction",
        "insertion": "save",
        "worker-died": "worker death",
    },
)
