"""The `Family` of llama.cpp's server."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.llamacpp.options import FIELDS, Options
from cachesim.engines.llamacpp.releases import HISTORY, RELEASES
from cachesim.engines.llamacpp.rules import ServerRules

FAMILY: Final[Family[ServerRules, Options]] = Family(
    name="llama.cpp",
    about="llama-server: slots, prompt cache in RAM, context checkpoints",
    repository="ggml-org/llama.cpp",
    takes_images=True,
    vocabulary="llama slots slot npast keep checkpoint checkpoints forcing gguf swa rnn",
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    configuration=f"{__package__}.fields",
    engine=f"{__package__}.router:Router",
    serves_models=lambda _: True,
    releases=RELEASES,
    patches=HISTORY.patches,
    options=Options,
    fields=FIELDS,
    renders_chats=True,
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
)
