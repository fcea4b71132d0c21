"""The `Family` of vLLM: options and capabilities."""

from typing import Final

from cachesim.engines.family import Family
from cachesim.engines.option import request_field
from cachesim.engines.vllm.options import MOST_BLOCKS, VllmOptions, by_device
from cachesim.engines.vllm.releases import HISTORY, RELEASES
from cachesim.engines.vllm.rules import Rules

FAMILY: Final[Family[Rules, VllmOptions]] = Family(
    name="vllm",
    about="vLLM: block pool, chained ids, one manager for attention, windows and states",
    repository="vllm-project/vllm",
    vocabulary="vllm gdn connector align block eagle dflash schedule retention",
    takes_images=True,
    package=__package__,
    search=f"{__package__}.search:SEARCH",
    engine=f"{__package__}.server:Vllm",
    configuration=f"{__package__}.fields",
    releases=RELEASES,
    patches=HISTORY.patches,
    options=VllmOptions,
    fields=(
        request_field(
            "cache_salt", "text", "separates this request's prefixes from those of other salts"
        ),
        request_field(
            "lora",
            "any",
            "the adapter to answer with: a table with 'name', and 'path' among --enable-lora; with "
            "'weights' among them instead, any path, at which they are now",
        ),
        request_field(
            "priority",
            "whole number",
            "under the policy `priority`: smaller numbers are served first",
            low=-(1 << 31),
            high=1 << 31,
        ),
        request_field(
            "failed_block",
            "whole number",
            "beside `store-async` and `nixl`: the block of this request's first load that does not "
            "arrive, from 0; of `nixl`, and beside windows, chunks or states, nothing of it does",
            low=0,
            high=MOST_BLOCKS,
        ),
    ),
    has_slots=False,
    plays_chunks=True,
    plays_compressed=True,
    groups_layers=True,
    by_device=by_device,
)
