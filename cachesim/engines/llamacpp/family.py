"""The `Family` of llama.cpp's server."""

from typing import Any, Final

from cachesim.engines.family import ACTS, Corner, Family, Scope
from cachesim.engines.guide import Guide
from cachesim.engines.llamacpp.options import FIELDS, Options
from cachesim.engines.llamacpp.releases import HISTORY, RELEASES
from cachesim.engines.llamacpp.rules import ServerRules

TINY: Final = {
    "ctx_size": 256,
    "batch_size": 8,
    "ubatch_size": 4,
    "ctx_checkpoints": 2,
    "checkpoint_min_step": 0,
    "checkpoint_every_nt": 4,
}
"""A checkpoint is made before the last four tokens of a prompt, and a ubatch before these."""


def _guide(_rules: ServerRules, flags: Options) -> Guide:
    """Infills, moved chunks, fields of a context shift; images; models that are loaded in turn."""
    fields: list[dict[str, Any]] = [{"endpoint": "infill"}]
    if flags.cache_reuse:
        fields += [{"n_cache_reuse": each} for each in (0, 1, 4)]
    if flags.context_shift:
        fields += [{"n_keep": each} for each in (-1, 1, flags.n_ctx_slot - 1)]
        fields += [{"n_discard": each} for each in (1, 8)]
    alone = flags.context_shift or flags.cache_reuse or flags.spec_type != "none"
    return Guide(
        fields=tuple(fields),
        models=({"models_max": 1}, {"models_max": 2}),
        images="none" if alone else "few",
    )


FAMILY: Final[Family[ServerRules, Options]] = Family(
    name="llama.cpp",
    about="llama-server: slots, prompt cache in RAM, context checkpoints",
    repository="ggml-org/llama.cpp",
    takes_images=True,
    vocabulary="llama slots slot npast keep checkpoint checkpoints forcing gguf swa rnn",
    package=__package__,
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.router:Router",
    laws=f"{__package__}.laws:LlamaLaws",
    guide=_guide,
    serves_models=lambda _: True,
    releases=RELEASES,
    patches=HISTORY.patches,
    options=Options,
    fields=FIELDS,
    reuse_flags=("cache_prompt",),
    finds_again=lambda flags: int(flags.parallel == 1 or flags.slot_prompt_similarity > 0),
    renders_chats=True,
    drafting={"spec_type": "draft-mtp"},
    adapter_flag="lora",
    program="llama-server",
    swept={
        "ctx_checkpoints": (0, 8, 16, 32, 64, 128),
        "checkpoint_min_step": (64, 256, 1024, 4096, 8192),
        "cache_ram": (0, 1024, 4096, 8192, 16384, 32768),
        "parallel": (1, 2, 4),
        "kv_unified": (False, True),
        "ubatch_size": (256, 512, 1024),
        "swa_full": (False, True),
        "cache_idle_slots": (False, True),
        "slot_prompt_similarity": (0.05, 0.1, 0.5),
    },
    swept_factors={"ctx_size": 2},
    hunted=(
        {},
        {"context_shift": True, "ctx_size": 256},
        {"swa_full": True},
        {"lora": "A"},
        {"parallel": 2, "kv_unified": True},
    ),
    corners=(
        *(Corner(),) * 4,
        Corner(flags={"ctx_size": 256, "context_shift": True, "ubatch_size": 64}, replies=60),
        Corner(flags={"batch_size": 32}),
        Corner(flags={"ubatch_size": 64, "batch_size": 256, "cache_ram": 0}),
        Corner(flags={"cache_ram": 1}),
        Corner(window=8, layers=frozenset({"window"})),
    ),
    scopes=(
        Scope(flags=TINY, lengths=(1, 5, 9), window=4),
        Scope(
            flags={**TINY, "parallel": 2},
            lengths=(1, 5),
            acts=(*ACTS, "together", "cancel"),
            window=4,
        ),
        Scope(  # until b9294 states have checkpoints from 64 tokens on
            flags={
                "ctx_size": 256,
                "batch_size": 64,
                "ubatch_size": 16,
                "ctx_checkpoints": 2,
                "checkpoint_min_step": 16,
                "checkpoint_every_nt": 16,
            },
            lengths=(65, 70),
        ),
    ),
    incidents=("cancel", "slot file", "completions", "arrival", "trips"),
    exercised={
        "checkpoint-restored": "restore",
        "checkpoint-created": "checkpoint",
        "cache-entry-dropped": "eviction",
        "checkpoint-dropped": "eviction",
        "checkpoint-erased": "eviction",
        "cache-entry-loaded": "load",
        "prompt-saving": "save",
        "context-shifted": "shift",
        "chunk-reused": "shift",
        "draft-verified": "rollback",
        "full-reprocessing": "full reprocessing",
    },
)
