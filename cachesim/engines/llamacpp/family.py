"""The `Family` of llama.cpp's server."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.llamacpp.options import FIELDS, Options
from cachesim.engines.llamacpp.profiles import PATCHES, RELEASES
from cachesim.engines.llamacpp.rules import ServerRules

FAMILY: Final[Family[ServerRules, Options]] = Family(
    name="llama.cpp",
    about="llama-server: slots, prompt cache in RAM, context checkpoints",
    repository="ggml-org/llama.cpp",
    room=__package__,
    engine=f"{__package__}.server:LlamaCpp",
    releases=RELEASES,
    patches=PATCHES,
    options=Options,
    fields=FIELDS,
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
    incidents=("cancel", "slot file", "completions", "arrival"),
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
