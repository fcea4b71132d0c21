"""vLLM's releases, patches, options and capabilities."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.option import asked
from cachesim.engines.vllm.options import VllmOptions
from cachesim.engines.vllm.profiles import PATCHES, RELEASES
from cachesim.engines.vllm.rules import Rules

FAMILY: Final[Family[Rules, VllmOptions]] = Family(
    name="vllm",
    about="vLLM: block pool, chained ids, one manager for attention, windows and states",
    repository="vllm-project/vllm",
    room=__package__,
    engine=f"{__package__}.server:Vllm",
    releases=RELEASES,
    patches=PATCHES,
    options=VllmOptions,
    fields=(
        asked(
            "cache_salt",
            "text",
            "separates this request's prefixes from those of other salts",
        ),
        asked(
            "lora",
            "any",
            "the adapter to answer with: a table with 'name', and 'path' among --enable-lora",
        ),
        asked(
            "priority",
            "whole number",
            "under the policy `priority`: smaller numbers are served first",
            low=-(1 << 31),
            high=1 << 31,
        ),
    ),
    asks={"priority": -1},
    has_slots=False,
    plays_chunks=True,
    groups_layers=True,
    interrupts=True,
    draft_flag="speculative_method",
    exercised={
        "block-evicted": "eviction",
        "blocks-published": "save",
        "drafts-verified": "rollback",
    },
)
