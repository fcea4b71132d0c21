"""The `Family` of ik_llama.cpp's server."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.ik_llama.options import FIELDS, Options
from cachesim.engines.ik_llama.profiles import PATCHES, RELEASES
from cachesim.engines.ik_llama.rules import Rules

FAMILY: Final[Family[Rules, Options]] = Family(
    name="ik_llama.cpp",
    about="llama.cpp's sibling: tolerant matching, checkpoints while generating, companions",
    repository="ikawrakow/ik_llama.cpp",
    room=__package__,
    engine=f"{__package__}.server:IkLlama",
    releases=RELEASES,
    patches=PATCHES,
    options=Options,
    fields=FIELDS,
    kin=("llama.cpp",),
    drafting={
        "companion": "attn",
        "draft_max": 3,
        "recurrent_ckpt_mode": "cpu",
        "parallel": 1,  # the server refuses drafts beside further slots
    },
    incidents=("slot file",),
    exercised={
        "checkpoint-restored": "restore",
        "checkpoint-created": "checkpoint",
        "checkpoint-erased": "eviction",
        "prompt-evicted": "eviction",
        "prompt-loaded": "load",
        "prompt-saved": "save",
        "context-shifted": "shift",
        "draft-verified": "rollback",
        "checkpoint-reset": "full reprocessing",
        "full-reset": "full reprocessing",
    },
)
